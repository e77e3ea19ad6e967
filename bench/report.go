package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a run found. It names no host and no path: of the machine it has its size, its
// software and what else it was doing.
type report struct {
	Date time.Time `json:"date"`
	// of the repository, with "+changes" where files differ from it
	Commit  string       `json:"commit"`
	Seconds int          `json:"seconds"` // of the whole run
	Machine machine      `json:"machine"`
	Load    load         `json:"load"`
	Rows    []rowResults `json:"rows"`
}

type rowResults struct {
	Name       string       `json:"name"`
	What       string       `json:"what"`
	Floor      string       `json:"floor"`
	Unit       unit         `json:"unit"`
	Better     direction    `json:"better"`
	Ours       sideResults  `json:"ours"`
	FloorSide  sideResults  `json:"floor_side"`
	Peer       *peerResult  `json:"rival,omitempty"`
	Ratio      *float64     `json:"ratio"` // null where the floor is nothing
	Difference float64      `json:"difference"`
	Target     targetResult `json:"target"`

	goal string
}

type sideResults struct {
	Median  float64 `json:"median"`
	P99     float64 `json:"p99"`
	P99Unit unit    `json:"p99_unit"` // "ms" where single requests were timed, else the row's
	// how many figures it is of; of fewer than 100 it is the worst
	P99Of    int     `json:"p99_of"`
	Attempts int     `json:"attempts"`
	Success  float64 `json:"success_rate"`
	// Values are what the median is of, and Requests the single requests, in milliseconds. Of more
	// than 1000 there are 1000 quantiles.
	Values   []float64 `json:"values"`
	Requests []float64 `json:"requests,omitempty"`
}

type peerResult struct {
	What string `json:"what"`
	sideResults
}

type targetResult struct {
	Of    compared `json:"of"`
	Limit float64  `json:"limit"`
	Met   bool     `json:"met"`
	// Low and High are what 95% of resampled runs give for the value that is compared, null where a
	// side has fewer than three rounds; InNoise is whether the limit lies between them.
	Low     *float64 `json:"low"`
	High    *float64 `json:"high"`
	InNoise bool     `json:"in_noise"`
}

// keptSamples is how many figures of one kind a row keeps in the file.
const keptSamples = 1000

// newReport returns the report of a run that took so long, while the machine did that beside it.
func newReport(results []result, took time.Duration, during load) report {
	r := report{
		Date: time.Now().UTC().Truncate(time.Second), Commit: commit(),
		Seconds: int(took.Seconds()), Machine: thisMachine(), Load: during,
	}
	for _, found := range results {
		row, p, good := found.row, found.pair, found.row.unit.better()
		low, high := p.interval(row.target, good)
		result := rowResults{
			Name: row.name, What: row.what, Floor: row.floor, Unit: row.unit, Better: good,
			Ours:       side(p.ours, row),
			FloorSide:  side(p.floor, row),
			Ratio:      finite(rounded(p.ratio(good))),
			Difference: rounded(p.difference(good)),
			Target: targetResult{
				Of: row.target.of, Limit: row.target.limit, Met: row.target.met(p, good),
				Low: finite(rounded(low)), High: finite(rounded(high)),
				InNoise: low <= row.target.limit && row.target.limit <= high,
			},
			goal: row.goal(),
		}
		if len(p.peer.values) > 0 {
			result.Peer = &peerResult{row.peer, side(p.peer, row)}
		}
		r.Rows = append(r.Rows, result)
	}
	return r
}

func side(s sample, of row) sideResults {
	result := sideResults{
		Median: rounded(s.median()), P99: rounded(s.p99(of.unit.better())), P99Unit: of.unit,
		P99Of:    len(s.values),
		Attempts: s.attempts, Success: rounded(s.success()), Values: kept(s.values),
		Requests: kept(s.requests),
	}
	if len(s.requests) > 0 {
		result.P99Unit, result.P99Of = milliseconds, len(s.requests)
	}
	return result
}

func kept(values []float64) []float64 {
	kept := make([]float64, 0, min(len(values), keptSamples))
	for _, value := range thinned(values, keptSamples) {
		kept = append(kept, rounded(value))
	}
	return kept
}

// tail is the p99 for readers, with its unit where that is not the row's.
func (s sideResults) tail(unit unit) string {
	if s.P99Unit != unit {
		return number(s.P99) + " " + string(s.P99Unit)
	}
	return number(s.P99)
}

// cells are the columns of the tables.
func (r rowResults) cells() []string {
	met, ratio := "no", "-"
	if r.Target.Met {
		met = "yes"
	}
	if r.Target.InNoise {
		met += ", within noise"
	}
	if r.Ratio != nil {
		ratio = number(*r.Ratio) + "×"
	}
	return []string{
		r.Name, string(r.Unit), number(r.Ours.Median), r.Ours.tail(r.Unit), number(r.FloorSide.Median),
		r.FloorSide.tail(r.Unit),
		ratio, fmt.Sprintf("%s%%", number(100*r.Ours.Success)), r.goal, met,
	}
}

func header() []string {
	return []string{"row", "unit", "ours", "p99", "floor", "p99", "ratio", "success", "target",
		"met"}
}

// table is the report for a terminal.
func (r report) table() string {
	var text strings.Builder
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, strings.Join(header(), "\t"))
	for _, row := range r.Rows {
		fmt.Fprintln(out, strings.Join(row.cells(), "\t"))
	}
	out.Flush() // a strings.Builder takes everything
	return text.String()
}

// markdown is the report for docs/.
func (r report) markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text,
		"<!-- Written by `make bench`. Do not edit. -->\n\n# Latest run\n\n%s, commit %s, %d CPUs, %s, Linux %s, %s, %s; %d s in all, %s. What the columns mean: [README](README.md).\n\n",
		r.Date.Format("2006-01-02 15:04 MST"), r.Commit, r.Machine.CPUs, r.Machine.Arch,
		r.Machine.Kernel, r.Machine.Go, r.Machine.FileSystem, r.Seconds, r.Load)
	fmt.Fprintf(&text,
		"![Each row's ratio to its floor, its target, and the ratios of earlier runs](%s)\n\n",
		pictureFile)
	line := func(cells []string) { fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | ")) }
	line(header())
	line(strings.Split(strings.Repeat("---,", len(header())-1)+"---", ","))
	for _, row := range r.Rows {
		line(row.cells())
	}
	text.WriteString("\n")
	for _, row := range r.Rows {
		if row.Peer != nil {
			fmt.Fprintf(&text, "Beside %s: %s takes %s %s (median of %d).\n\n", row.Name,
				row.Peer.What, number(row.Peer.Median), row.Unit, row.Peer.Attempts)
		}
	}
	line([]string{"row", "what is measured", "its floor"})
	line([]string{"---", "---", "---"})
	for _, row := range r.Rows {
		line([]string{row.Name, row.What, row.Floor})
	}
	return text.String()
}

// The files of a run.
const (
	latestFile  = "latest.json"
	pageFile    = "latest.md"
	pictureFile = "ratios.svg"
	historyFile = "history.json"
)

// write puts the run into the directory: as JSON, as a page and as a picture, and adds its ratios
// to those of earlier runs.
func (r report) write(directory string) error {
	earlier, err := readHistory(filepath.Join(directory, historyFile))
	if err != nil {
		return err
	}
	history := append(earlier, r.summary())
	encodedHistory, historyErr := json.MarshalIndent(history, "", " ")
	encoded, err := json.Marshal(r)
	if err := errors.Join(err, historyErr); err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(directory, 0o755),
		os.WriteFile(filepath.Join(directory, latestFile), append(encoded, '\n'), 0o644),
		os.WriteFile(filepath.Join(directory, pageFile), []byte(r.markdown()), 0o644),
		os.WriteFile(filepath.Join(directory, historyFile), append(encodedHistory, '\n'), 0o644),
		os.WriteFile(filepath.Join(directory, pictureFile), []byte(r.picture(earlier)), 0o644),
	)
}

// rounded keeps four digits: more would be noise.
func rounded(value float64) float64 {
	short, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 4, 64), 64)
	if err != nil {
		return value
	}
	return short
}

// finite is nil for what is no number, as JSON has none for it.
func finite(value float64) *float64 {
	if math.IsInf(value, 0) || math.IsNaN(value) {
		return nil
	}
	return &value
}

// number prints a figure to three digits, and large ones in full.
func number(value float64) string {
	if value >= 1000 || value <= -1000 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}
