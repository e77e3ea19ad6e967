package main

import (
	"strings"
	"testing"
)

func TestBaseline(t *testing.T) {
	for name, tc := range map[string]struct {
		ratios []float64
		good   direction
		holds  float64
		fails  float64
	}{
		"steady times":  {[]float64{2, 2.02, 1.98}, lower, 2.49, 2.52},
		"noisy times":   {[]float64{2, 2.4, 1.6}, lower, 4.3, 4.5},
		"steady rates":  {[]float64{0.8, 0.8, 0.8}, higher, 0.65, 0.63},
		"better is not": {[]float64{2, 2, 2}, lower, 0.1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBaseline(tc.ratios, tc.good)
			if !b.holds(tc.holds, tc.good) {
				t.Errorf("%v fails against %+v", tc.holds, b)
			}
			if b.holds(tc.fails, tc.good) {
				t.Errorf("%v holds against %+v", tc.fails, b)
			}
		})
	}
}

// TestGate: a row that has become worse fails it, and so does one that was not measured.
func TestGate(t *testing.T) {
	against := baselines{Rows: map[string]baseline{rowCommand: newBaseline([]float64{1.4, 1.4},
		lower), rowCell: newBaseline([]float64{1.2, 1.2}, lower)}}
	run := func(command float64, rows ...string) error {
		b := &bench{results: map[string]pair{}}
		for _, name := range rows {
			b.results[name] = pair{ours: sampleOf(0, command), floor: sampleOf(0, 1)}
		}
		return b.report(0, load{}).gate(against)
	}
	if err := run(1.3, rowCommand, rowCell); err != nil {
		t.Errorf("as good as before: %v", err)
	}
	if err := run(1.6, rowCommand, rowCell); err == nil ||
		!strings.Contains(err.Error(),
			"cell: ratio 1.6; its baseline is 1.2 and fails beyond 1.5") ||
		strings.Contains(err.Error(), "command") {
		t.Errorf("a worse cell: %v", err)
	}
	if err := run(1.3, rowCommand); err == nil ||
		!strings.Contains(err.Error(), "cell: not measured") {
		t.Errorf("no cell: %v", err)
	}
}

// TestBaselines: the file that is committed can be read, and its rows exist.
func TestBaselines(t *testing.T) {
	read, err := readBaselines("baselines.json")
	if err != nil || len(read.Rows) == 0 {
		t.Errorf("%d rows: %v", len(read.Rows), err)
	}
}
