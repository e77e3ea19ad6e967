package main

import (
	"maps"
	"testing"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/report"
)

func TestBaseline(t *testing.T) {
	for name, tc := range map[string]struct {
		ratios []float64
		good   measure.Direction
		holds  float64
		fails  float64
	}{
		"steady times":  {[]float64{2, 2.02, 1.98}, measure.Lower, 2.49, 2.52},
		"noisy times":   {[]float64{2, 2.4, 1.6}, measure.Lower, 4.3, 4.5},
		"steady rates":  {[]float64{0.8, 0.8, 0.8}, measure.Higher, 0.65, 0.63},
		"better is not": {[]float64{2, 2, 2}, measure.Lower, 0.1, 3},
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

// TestWorse: a row that has become worse is found, and so is one that was not measured.
func TestWorse(t *testing.T) {
	against := baselines{Rows: map[string]baseline{"command": newBaseline([]float64{1.4, 1.4},
		measure.Lower), "cell": newBaseline([]float64{1.2, 1.2}, measure.Lower)}}
	run := func(command float64, rows ...string) map[string]error {
		var results []measure.Result
		for _, name := range rows {
			var measured measure.Pair
			measured.Ours.Add(command)
			measured.Floor.Add(1)
			results = append(results, measure.Result{Row: measure.Row{Name: name, Unit: measure.Milliseconds}, Pair: measured})
		}
		return worse(report.New(results, 0, report.Load{}), against, against.names())
	}
	for name, tc := range map[string]struct {
		found map[string]error
		want  map[string]string
	}{
		"as good as before": {run(1.3, "command", "cell"), map[string]string{}},
		"a worse cell": {run(1.6, "command", "cell"),
			map[string]string{"cell": "cell: ratio 1.6; its baseline is 1.2 and fails beyond 1.5"}},
		"no cell": {run(1.3, "command"), map[string]string{"cell": "cell: not measured"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(map[string]string)
			for row, err := range tc.found {
				got[row] = err.Error()
			}
			if !maps.Equal(got, tc.want) {
				t.Errorf("found %v; want %v", got, tc.want)
			}
		})
	}
}

// TestBaselines: the file that is committed can be read, and its rows exist.
func TestBaselines(t *testing.T) {
	read, err := readBaselines("baselines.json")
	if err != nil || len(read.Rows) == 0 {
		t.Errorf("%d rows: %v", len(read.Rows), err)
	}
}
