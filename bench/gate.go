package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// baselines are the ratios that a change may not make worse: those that come out alike from run to
// run.
type baselines struct {
	// Runs is how often they were measured, on a quiet machine.
	Runs int                 `json:"runs"`
	Rows map[string]baseline `json:"rows"`
}

type baseline struct {
	Ratio float64 `json:"ratio"` // median of the runs
	Noise float64 `json:"noise"` // standard deviation of the runs, relative to the ratio
	// what fails: the ratio and six times its noise, at least a quarter
	Worst float64 `json:"worst"`
}

// gateRows are the rows that may get a baseline: each takes seconds, and its floor does the same
// kind of work.
func gateRows() []string {
	return []string{rowCommand, rowFirstByte, rowStop, rowCell, rowLines, rowUpload, rowSearch,
		rowCreate, rowDelete, rowPause, rowGet, rowList}
}

// least is the allowance of a row however steady it is: another machine's ratios are a little
// different.
const (
	leastAllowance = 0.25
	deviations     = 6
)

func newBaseline(ratios []float64, good direction) baseline {
	s := sample{values: ratios}
	mean, variance := 0.0, 0.0
	for _, r := range ratios {
		mean += r / float64(len(ratios))
	}
	for _, r := range ratios {
		variance += (r - mean) * (r - mean) / float64(max(len(ratios)-1, 1))
	}
	b := baseline{Ratio: rounded(s.median()), Noise: rounded(math.Sqrt(variance) / mean)}
	allowance := max(leastAllowance, deviations*b.Noise)
	if good == higher {
		b.Worst = rounded(b.Ratio / (1 + allowance))
	} else {
		b.Worst = rounded(b.Ratio * (1 + allowance))
	}
	return b
}

func (b baseline) holds(ratio float64, good direction) bool {
	if good == higher {
		return ratio >= b.Worst
	}
	return ratio <= b.Worst
}

func readBaselines(path string) (baselines, error) {
	var read baselines
	text, err := os.ReadFile(path)
	if err != nil {
		return read, err
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return read, fmt.Errorf("%s: %w", path, err)
	}
	for name := range read.Rows {
		if !slices.ContainsFunc(rows(), func(r row) bool { return r.name == name }) {
			return read, fmt.Errorf("%s: no row is called %s", path, name)
		}
	}
	return read, nil
}

// gate compares the rows that were measured with their baselines. The error names each that is
// worse.
func (r report) gate(against baselines) error {
	var worse []error
	measured := make(map[string]bool)
	for _, row := range r.Rows {
		base, has := against.Rows[row.Name]
		if !has || row.Ratio == nil {
			continue
		}
		measured[row.Name] = true
		if !base.holds(*row.Ratio, row.Better) {
			worse = append(worse,
				fmt.Errorf("%s: ratio %s; its baseline is %s and fails beyond %s", row.Name,
					number(*row.Ratio), number(base.Ratio), number(base.Worst)))
		}
	}
	for name := range against.Rows {
		if !measured[name] {
			worse = append(worse, fmt.Errorf("%s: not measured", name))
		}
	}
	return errors.Join(worse...)
}

// writeBaselines measures the rows of the gate several times and writes what came out.
func writeBaselines(ctx context.Context, bin, path string, runs int) error {
	ratios := make(map[string][]float64)
	for i := range runs {
		fmt.Fprintf(os.Stderr, "bench: run %d of %d\n", i+1, runs)
		b, err := newBench(bin, scaleGate, gateRows())
		if err != nil {
			return err
		}
		failures := b.measure(ctx)
		for _, row := range b.report(0, load{}).Rows {
			if row.Ratio != nil && slices.Contains(gateRows(), row.Name) {
				ratios[row.Name] = append(ratios[row.Name], *row.Ratio)
			}
		}
		b.close()
		if len(failures) > 0 {
			return errors.Join(failures...)
		}
	}
	written := baselines{Runs: runs, Rows: make(map[string]baseline)}
	for _, row := range rows() {
		if of := ratios[row.name]; len(of) > 0 {
			written.Rows[row.name] = newBaseline(of, row.good)
		}
	}
	encoded, err := json.MarshalIndent(written, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(encoded, '\n'), 0o644)
}

// names are the rows of the baselines, sorted.
func (b baselines) names() []string {
	var names []string
	for name := range b.Rows {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
