// Package report shows what a run has measured: for a terminal, and as the files of
// docs/benchmarks.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"sandbox.internal/bench/measure"
)

// Report is what a run found. It names no host and no path: of the machine it has its size, its
// software and what else it was doing.
type Report struct {
	Date time.Time `json:"date"`
	// of the repository, with "+changes" where files differ from it
	Commit  string       `json:"commit"`
	Seconds int          `json:"seconds"` // of the whole run
	Machine machine      `json:"machine"`
	Load    Load         `json:"load"`
	Rows    []rowResults `json:"rows"`
}

type rowResults struct {
	Name       string            `json:"name"`
	What       string            `json:"what"`
	Floor      string            `json:"floor"`
	Unit       measure.Unit      `json:"unit"`
	Better     measure.Direction `json:"better"`
	Ours       sideResults       `json:"ours"`
	FloorSide  sideResults       `json:"floor_side"`
	Peer       *peerResult       `json:"rival,omitempty"`
	Ratio      *float64          `json:"ratio"` // null where the floor is nothing
	Difference float64           `json:"difference"`
	Target     targetResult      `json:"target"`

	goal string
}

type sideResults struct {
	Median  float64      `json:"median"`
	P99     float64      `json:"p99"`
	P99Unit measure.Unit `json:"p99_unit"` // "ms" where single requests were timed, else the row's
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
	Of    measure.Compared `json:"of"`
	Limit float64          `json:"limit"`
	Met   bool             `json:"met"`
	// Low and High are what 95% of resampled runs give for the value that is compared, null where a
	// side has fewer than three rounds; InNoise is whether the limit lies between them.
	Low     *float64 `json:"low"`
	High    *float64 `json:"high"`
	InNoise bool     `json:"in_noise"`
}

// keptSamples is how many figures of one kind a row keeps in the file.
const keptSamples = 1000

// New returns the report of a run that took so long, while the machine did that beside it.
func New(results []measure.Result, took time.Duration, during Load) Report {
	r := Report{
		Date: time.Now().UTC().Truncate(time.Second), Commit: commit(),
		Seconds: int(took.Seconds()), Machine: thisMachine(), Load: during,
	}
	for _, found := range results {
		row, p, good := found.Row, found.Pair, found.Row.Unit.Better()
		low, high := p.Interval(row.Target, good)
		result := rowResults{
			Name: row.Name, What: row.What, Floor: row.Floor, Unit: row.Unit, Better: good,
			Ours:       side(p.Ours, row),
			FloorSide:  side(p.Floor, row),
			Ratio:      finite(measure.Rounded(p.Ratio(good))),
			Difference: measure.Rounded(p.Difference(good)),
			Target: targetResult{
				Of: row.Target.Of, Limit: row.Target.Limit, Met: row.Target.Met(p, good),
				Low: finite(measure.Rounded(low)), High: finite(measure.Rounded(high)),
				InNoise: low <= row.Target.Limit && row.Target.Limit <= high,
			},
			goal: row.Goal(),
		}
		if len(p.Peer.Values) > 0 {
			result.Peer = &peerResult{row.Peer, side(p.Peer, row)}
		}
		r.Rows = append(r.Rows, result)
	}
	return r
}

func side(s measure.Sample, of measure.Row) sideResults {
	result := sideResults{
		Median: measure.Rounded(s.Median()), P99: measure.Rounded(s.P99(of.Unit.Better())), P99Unit: of.Unit,
		P99Of:    len(s.Values),
		Attempts: s.Attempts, Success: measure.Rounded(s.Success()), Values: kept(s.Values),
		Requests: kept(s.Requests),
	}
	if len(s.Requests) > 0 {
		result.P99Unit, result.P99Of = measure.Milliseconds, len(s.Requests)
	}
	return result
}

func kept(values []float64) []float64 {
	kept := make([]float64, 0, min(len(values), keptSamples))
	for _, value := range measure.Thinned(values, keptSamples) {
		kept = append(kept, measure.Rounded(value))
	}
	return kept
}

// tail is the p99 for readers, with its unit where that is not the row's.
func (s sideResults) tail(unit measure.Unit) string {
	if s.P99Unit != unit {
		return measure.Number(s.P99) + " " + string(s.P99Unit)
	}
	return measure.Number(s.P99)
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
		ratio = measure.Number(*r.Ratio) + "×"
	}
	return []string{
		r.Name, string(r.Unit), measure.Number(r.Ours.Median), r.Ours.tail(r.Unit), measure.Number(r.FloorSide.Median),
		r.FloorSide.tail(r.Unit),
		ratio, fmt.Sprintf("%s%%", measure.Number(100*r.Ours.Success)), r.goal, met,
	}
}

func header() []string {
	return []string{"row", "unit", "ours", "p99", "floor", "p99", "ratio", "success", "target",
		"met"}
}

// Table is the report for a terminal.
func (r Report) Table() string {
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
func (r Report) markdown() string {
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
				row.Peer.What, measure.Number(row.Peer.Median), row.Unit, row.Peer.Attempts)
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

// Write puts the run into the directory: as JSON, as a page and as a picture, and adds its ratios
// to those of earlier runs.
func (r Report) Write(directory string) error {
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

// finite is nil for what is no number, as JSON has none for it.
func finite(value float64) *float64 {
	if math.IsInf(value, 0) || math.IsNaN(value) {
		return nil
	}
	return &value
}
