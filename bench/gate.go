package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/report"
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

// A row may be worse than its baseline by an allowance, relative to the ratio.
const (
	// leastAllowance is that of a row however steady it is: another machine's ratios are a little
	// different.
	leastAllowance = 0.25
	// allowedDeviations is the allowance of a row in standard deviations of its ratio, where that
	// is more.
	allowedDeviations = 6
)

func newBaseline(ratios []float64, good measure.Direction) baseline {
	s := measure.Sample{Values: ratios}
	mean, variance := 0.0, 0.0
	for _, r := range ratios {
		mean += r / float64(len(ratios))
	}
	for _, r := range ratios {
		variance += (r - mean) * (r - mean) / float64(max(len(ratios)-1, 1))
	}
	b := baseline{Ratio: measure.Rounded(s.Median()), Noise: measure.Rounded(math.Sqrt(variance) / mean)}
	allowance := max(leastAllowance, allowedDeviations*b.Noise)
	if good == measure.Higher {
		b.Worst = measure.Rounded(b.Ratio / (1 + allowance))
	} else {
		b.Worst = measure.Rounded(b.Ratio * (1 + allowance))
	}
	return b
}

func (b baseline) holds(ratio float64, good measure.Direction) bool {
	if good == measure.Higher {
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
		if !slices.ContainsFunc(rows(), func(r measure.Row) bool { return r.Name == name }) {
			return read, fmt.Errorf("%s: no row is called %s", path, name)
		}
	}
	return read, nil
}

// worse returns why a row fails, for each row that is worse than its baseline, or was not measured
// although it is among the wanted.
func worse(r report.Report, against baselines, wanted []string) map[string]error {
	found := make(map[string]error)
	for _, name := range wanted {
		found[name] = fmt.Errorf("%s: not measured", name)
	}
	for _, row := range r.Rows {
		base, has := against.Rows[row.Name]
		if !has || row.Ratio == nil {
			continue
		}
		delete(found, row.Name)
		if !base.holds(*row.Ratio, row.Better) {
			found[row.Name] = fmt.Errorf("%s: ratio %s; its baseline is %s and fails beyond %s", row.Name,
				measure.Number(*row.Ratio), measure.Number(base.Ratio), measure.Number(base.Worst))
		}
	}
	return found
}

// gateMeasurements is how often a row is measured before it fails. The cause of a slower program is
// there every time; another program that takes the processor or the disk for some seconds is not.
const gateMeasurements = 3

// gate measures the rows of the baselines, and those that are worse again after the others. A row
// fails when it is worse in each of gateMeasurements measurements. The error names each that is.
func gate(ctx context.Context, bin string, against baselines) error {
	names := against.names()
	for i := range gateMeasurements {
		measured, failures := measureGate(ctx, bin, names)
		fmt.Print(measured.Table())
		if len(failures) > 0 {
			return errors.Join(failures...)
		}
		found := worse(measured, against, names)
		if len(found) == 0 {
			return nil
		}
		names = slices.Sorted(maps.Keys(found))
		for _, name := range names {
			fmt.Fprintf(os.Stderr, "bench: measurement %d of %d: %v\n", i+1, gateMeasurements, found[name])
		}
	}
	return fmt.Errorf("worse in each of %d measurements: %s", gateMeasurements,
		strings.Join(names, ", "))
}

// measureGate measures rows as the gate does, once.
func measureGate(ctx context.Context, bin string, names []string) (report.Report, []error) {
	b, err := measure.NewRun(bin, measure.ScaleGate, names)
	if err != nil {
		return report.Report{}, []error{err}
	}
	defer b.Close()
	results, failures := b.Measure(ctx, groups())
	return report.New(results, 0, report.Load{}), failures
}

// writeBaselines measures the rows of the gate several times and writes what came out.
func writeBaselines(ctx context.Context, bin, path string, runs int) error {
	ratios, gated := make(map[string][]float64), []string(nil)
	for _, r := range rows() {
		if r.Gate {
			gated = append(gated, r.Name)
		}
	}
	for i := range runs {
		fmt.Fprintf(os.Stderr, "bench: run %d of %d\n", i+1, runs)
		measured, failures := measureGate(ctx, bin, gated)
		for _, row := range measured.Rows {
			if row.Ratio != nil {
				ratios[row.Name] = append(ratios[row.Name], *row.Ratio)
			}
		}
		if len(failures) > 0 {
			return errors.Join(failures...)
		}
	}
	written := baselines{Runs: runs, Rows: make(map[string]baseline)}
	for _, row := range rows() {
		if of := ratios[row.Name]; len(of) > 0 {
			written.Rows[row.Name] = newBaseline(of, row.Unit.Better())
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
