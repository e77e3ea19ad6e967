package measure

import (
	"math"
	"slices"
	"testing"
)

func sampleOf(failed int, values ...float64) Sample {
	var s Sample
	for _, value := range values {
		s.Add(value)
	}
	for range failed {
		s.Fail()
	}
	return s
}

func TestMedian(t *testing.T) {
	for name, tc := range map[string]struct {
		values []float64
		want   float64
	}{
		"one":                   {[]float64{7}, 7},
		"odd and unsorted":      {[]float64{9, 1, 5}, 5},
		"even":                  {[]float64{4, 1, 3, 2}, 2.5},
		"an outlier is nothing": {[]float64{1, 2, 3, 4, 1e9}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sampleOf(0, tc.values...).Median(); got != tc.want {
				t.Fatalf("median %v, want %v", got, tc.want)
			}
		})
	}
	if got := (Sample{}).Median(); !math.IsNaN(got) {
		t.Fatalf("median of nothing is %v, want NaN", got)
	}
}

func TestP99(t *testing.T) {
	var hundred, thousand Sample
	for i := range 1000 {
		if i < 100 {
			hundred.Add(float64(100 - i)) // 100 down to 1
		}
		thousand.Add(float64(i + 1))
	}
	for name, tc := range map[string]struct {
		sample Sample
		good   Direction
		want   float64
	}{
		"times, the slow end":        {hundred, Lower, 99},
		"times, a thousand":          {thousand, Lower, 990},
		"rates, the low end":         {hundred, Higher, 2},
		"rates, a thousand":          {thousand, Higher, 11},
		"few times: the worst":       {sampleOf(0, 3, 1, 2), Lower, 3},
		"few rates: the worst":       {sampleOf(0, 3, 1, 2), Higher, 1},
		"failures have no value":     {sampleOf(5, 3, 1, 2), Lower, 3},
		"one value is all there is":  {sampleOf(0, 4), Lower, 4},
		"one value, and it's a rate": {sampleOf(0, 4), Higher, 4},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.sample.P99(tc.good); got != tc.want {
				t.Fatalf("p99 %v, want %v", got, tc.want)
			}
		})
	}
}

// TestRatio checks that failing does not pay: the success rate multiplies.
func TestRatio(t *testing.T) {
	for name, tc := range map[string]struct {
		pair              Pair
		good              Direction
		ratio, difference float64
	}{
		"times": {Pair{Ours: sampleOf(0, 3, 3, 3), Floor: sampleOf(0, 2, 2, 2)},
			Lower, 1.5, 1},
		"half of them failed": {Pair{Ours: sampleOf(3, 3, 3, 3), Floor: sampleOf(0, 2, 2, 2)},
			Lower, 3, 4},
		"rates": {Pair{Ours: sampleOf(0, 80), Floor: sampleOf(0, 100)}, Higher,
			0.8, -20},
		"a fifth of them failed": {Pair{Ours: sampleOf(1, 80, 80, 80, 80), Floor: sampleOf(0, 100)},
			Higher, 0.64, -36},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.pair.Ratio(tc.good); math.Abs(got-tc.ratio) > 1e-9 {
				t.Errorf("ratio %v, want %v", got, tc.ratio)
			}
			if got := tc.pair.Difference(tc.good); math.Abs(got-tc.difference) > 1e-9 {
				t.Errorf("difference %v, want %v", got, tc.difference)
			}
		})
	}
}

func TestTargetMet(t *testing.T) {
	times := Pair{Ours: sampleOf(0, 3), Floor: sampleOf(0, 2)}
	rates := Pair{Ours: sampleOf(0, 80), Floor: sampleOf(0, 100)}
	quick := slices.Repeat([]float64{1}, 50)
	for name, tc := range map[string]struct {
		pair   Pair
		good   Direction
		target target
		want   bool
	}{
		"ratio, met":           {times, Lower, Ratio(1.5), true},
		"ratio, missed":        {times, Lower, Ratio(1.4), false},
		"difference, met":      {times, Lower, Difference(1), true},
		"difference, missed":   {times, Lower, Difference(0.5), false},
		"ours, met":            {times, Lower, Ours(3), true},
		"ours, missed":         {times, Lower, Ours(2.9), false},
		"rate's ratio, met":    {rates, Higher, Ratio(0.8), true},
		"rate's ratio, missed": {rates, Higher, Ratio(0.9), false},
		"our rate, met":        {rates, Higher, Ours(80), true},
		"our rate, missed":     {rates, Higher, Ours(81), false},
		"p99, met":             {Pair{Ours: sampleOf(0, quick...)}, Lower, Tail(1), true},
		"p99, missed":          {Pair{Ours: sampleOf(0, append(quick, 3)...)}, Lower, Tail(2), false},
		"p99, one of 51 failed": {Pair{Ours: sampleOf(1, quick...)}, Lower, Tail(50),
			false},
		"p99, one of 151 failed": {Pair{Ours: sampleOf(1, slices.Repeat(quick, 3)...)}, Lower,
			Tail(50), true},
		"p99 of rates, one of 51 failed": {Pair{Ours: sampleOf(1, quick...)}, Higher,
			Tail(0.5), false},
		"p99, each failed": {Pair{Ours: sampleOf(3)}, Lower, Tail(50), false},
		"nothing measured": {Pair{Floor: rates.Floor}, Higher, Ratio(0.1), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.target.Met(tc.pair, tc.good); got != tc.want {
				t.Fatalf("met %v, want %v", got, tc.want)
			}
		})
	}
}
