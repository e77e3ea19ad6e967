package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// summary is what is kept of a run when the next one replaces it.
type summary struct {
	Date   time.Time            `json:"date"`
	Commit string               `json:"commit"`
	Rows   map[string]oldFigure `json:"rows"`
}

// oldFigure is a row of an earlier run. A row whose floor was another one then is not comparable.
type oldFigure struct {
	Ratio float64 `json:"ratio"`
	Floor string  `json:"floor"`
}

func (r Report) summary() summary {
	kept := summary{Date: r.Date, Commit: r.Commit, Rows: make(map[string]oldFigure)}
	for _, row := range r.Rows {
		if row.Ratio != nil {
			kept.Rows[row.Name] = oldFigure{*row.Ratio, row.Floor}
		}
	}
	return kept
}

// readHistory returns the earlier runs, oldest first; none where there is no file.
func readHistory(path string) ([]summary, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var runs []summary
	if err := json.Unmarshal(text, &runs); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return runs, nil
}

// earlier are the comparable ratios of a row, oldest first.
func (r rowResults) earlier(runs []summary) []float64 {
	var ratios []float64
	for _, run := range runs {
		if then, measured := run.Rows[r.Name]; measured && then.Floor == r.Floor {
			ratios = append(ratios, then.Ratio)
		}
	}
	return ratios
}
