package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// report is what a run found. It names no host and no path: what a reader needs to know of the machine is its size and
// its software.
type report struct {
	Date    time.Time    `json:"date"`
	Seconds int          `json:"seconds"` // of the whole run
	Machine machine      `json:"machine"`
	Rows    []rowResults `json:"rows"`
}

type machine struct {
	CPUs   int    `json:"cpus"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

type rowResults struct {
	Name       string       `json:"name"`
	What       string       `json:"what"`
	Floor      string       `json:"floor"`
	Unit       string       `json:"unit"`
	Better     direction    `json:"better"`
	Ours       sideResults  `json:"ours"`
	FloorSide  sideResults  `json:"floor_side"`
	Ratio      *float64     `json:"ratio"` // null where the floor is nothing
	Difference float64      `json:"difference"`
	Target     targetResult `json:"target"`

	text string
}

type sideResults struct {
	Median   float64 `json:"median"`
	P99      float64 `json:"p99"`
	Attempts int     `json:"attempts"`
	Success  float64 `json:"success_rate"`
}

type targetResult struct {
	Of    measure `json:"of"`
	Limit float64 `json:"limit"`
	Met   bool    `json:"met"`
}

func (b *bench) report(took time.Duration) report {
	var name unix.Utsname
	unix.Uname(&name) // fails only for a bad pointer
	r := report{
		Date:    time.Now().UTC().Truncate(time.Second),
		Seconds: int(took.Seconds()),
		Machine: machine{CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, Kernel: unix.ByteSliceToString(name.Release[:]), Go: runtime.Version()},
	}
	for _, row := range rows() {
		p := b.results[row.name]
		if len(p.ours.values) == 0 || !b.wants(row.name) {
			continue
		}
		r.Rows = append(r.Rows, rowResults{
			Name: row.name, What: row.what, Floor: row.floor, Unit: row.unit, Better: row.good,
			Ours:      side(p.ours, row.good),
			FloorSide: side(p.floor, row.good),
			Ratio:     finite(rounded(p.ratio(row.good))), Difference: rounded(p.difference(row.good)),
			Target: targetResult{Of: row.target.of, Limit: row.target.limit, Met: row.target.met(p, row.good)},
			text:   row.text(),
		})
	}
	return r
}

func side(s sample, good direction) sideResults {
	return sideResults{Median: rounded(s.median()), P99: rounded(s.p99(good)), Attempts: s.attempts, Success: rounded(s.success())}
}

// cells are the columns of the tables.
func (r rowResults) cells() []string {
	met, ratio := "no", "-"
	if r.Target.Met {
		met = "yes"
	}
	if r.Ratio != nil {
		ratio = number(*r.Ratio) + "×"
	}
	return []string{
		r.Name, r.Unit,
		number(r.Ours.Median), number(r.Ours.P99), number(r.FloorSide.Median), number(r.FloorSide.P99),
		ratio, fmt.Sprintf("%s%%", number(100*r.Ours.Success)), r.text, met,
	}
}

func header() []string {
	return []string{"row", "unit", "ours", "p99", "floor", "p99", "ratio", "success", "target", "met"}
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
	fmt.Fprintf(&text, "<!-- Written by `make bench`. Do not edit. -->\n\n# Latest run\n\n%s, %d CPUs, %s, Linux %s, %s; %d s in all. What the columns mean: [README](README.md).\n\n",
		r.Date.Format("2006-01-02 15:04 MST"), r.Machine.CPUs, r.Machine.Arch, r.Machine.Kernel, r.Machine.Go, r.Seconds)
	line := func(cells []string) { fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | ")) }
	line(header())
	line(strings.Split(strings.Repeat("---,", len(header())-1)+"---", ","))
	for _, row := range r.Rows {
		line(row.cells())
	}
	text.WriteString("\n")
	line([]string{"row", "what is measured", "its floor"})
	line([]string{"---", "---", "---"})
	for _, row := range r.Rows {
		line([]string{row.Name, row.What, row.Floor})
	}
	return text.String()
}

// write puts latest.json and latest.md into the folder.
func (r report) write(folder string) error {
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, "latest.json"), append(encoded, '\n'), 0o644),
		os.WriteFile(filepath.Join(folder, "latest.md"), []byte(r.markdown()), 0o644),
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
