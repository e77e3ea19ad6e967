package main

import (
	"math"
	"slices"
	"testing"
)

func sampleOf(failed int, values ...float64) sample {
	var s sample
	for _, value := range values {
		s.add(value)
	}
	for range failed {
		s.fail()
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
			if got := sampleOf(0, tc.values...).median(); got != tc.want {
				t.Fatalf("median %v, want %v", got, tc.want)
			}
		})
	}
	if got := (sample{}).median(); !math.IsNaN(got) {
		t.Fatalf("median of nothing is %v, want NaN", got)
	}
}

func TestP99(t *testing.T) {
	var hundred, thousand sample
	for i := range 1000 {
		if i < 100 {
			hundred.add(float64(100 - i)) // 100 down to 1
		}
		thousand.add(float64(i + 1))
	}
	for name, tc := range map[string]struct {
		sample sample
		good   direction
		want   float64
	}{
		"times, the slow end":        {hundred, lower, 99},
		"times, a thousand":          {thousand, lower, 990},
		"rates, the low end":         {hundred, higher, 2},
		"rates, a thousand":          {thousand, higher, 11},
		"few times: the worst":       {sampleOf(0, 3, 1, 2), lower, 3},
		"few rates: the worst":       {sampleOf(0, 3, 1, 2), higher, 1},
		"failures have no value":     {sampleOf(5, 3, 1, 2), lower, 3},
		"one value is all there is":  {sampleOf(0, 4), lower, 4},
		"one value, and it's a rate": {sampleOf(0, 4), higher, 4},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.sample.p99(tc.good); got != tc.want {
				t.Fatalf("p99 %v, want %v", got, tc.want)
			}
		})
	}
}

// TestRatio checks that failing does not pay: the success rate multiplies.
func TestRatio(t *testing.T) {
	for name, tc := range map[string]struct {
		pair              pair
		good              direction
		ratio, difference float64
	}{
		"times": {pair{ours: sampleOf(0, 3, 3, 3), floor: sampleOf(0, 2, 2, 2)},
			lower, 1.5, 1},
		"half of them failed": {pair{ours: sampleOf(3, 3, 3, 3), floor: sampleOf(0, 2, 2, 2)},
			lower, 3, 4},
		"rates": {pair{ours: sampleOf(0, 80), floor: sampleOf(0, 100)}, higher,
			0.8, -20},
		"a fifth of them failed": {pair{ours: sampleOf(1, 80, 80, 80, 80), floor: sampleOf(0, 100)},
			higher, 0.64, -36},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.pair.ratio(tc.good); math.Abs(got-tc.ratio) > 1e-9 {
				t.Errorf("ratio %v, want %v", got, tc.ratio)
			}
			if got := tc.pair.difference(tc.good); math.Abs(got-tc.difference) > 1e-9 {
				t.Errorf("difference %v, want %v", got, tc.difference)
			}
		})
	}
}

func TestTargetMet(t *testing.T) {
	times := pair{ours: sampleOf(0, 3), floor: sampleOf(0, 2)}
	rates := pair{ours: sampleOf(0, 80), floor: sampleOf(0, 100)}
	quick := slices.Repeat([]float64{1}, 50)
	for name, tc := range map[string]struct {
		pair   pair
		good   direction
		target target
		want   bool
	}{
		"ratio, met":           {times, lower, ratio(1.5), true},
		"ratio, missed":        {times, lower, ratio(1.4), false},
		"difference, met":      {times, lower, difference(1), true},
		"difference, missed":   {times, lower, difference(0.5), false},
		"ours, met":            {times, lower, ours(3), true},
		"ours, missed":         {times, lower, ours(2.9), false},
		"rate's ratio, met":    {rates, higher, ratio(0.8), true},
		"rate's ratio, missed": {rates, higher, ratio(0.9), false},
		"our rate, met":        {rates, higher, ours(80), true},
		"our rate, missed":     {rates, higher, ours(81), false},
		"p99, met":             {pair{ours: sampleOf(0, quick...)}, lower, tail(1), true},
		"p99, missed":          {pair{ours: sampleOf(0, append(quick, 3)...)}, lower, tail(2), false},
		"p99, one of 51 failed": {pair{ours: sampleOf(1, quick...)}, lower, tail(50),
			false},
		"p99, one of 151 failed": {pair{ours: sampleOf(1, slices.Repeat(quick, 3)...)}, lower,
			tail(50), true},
		"p99 of rates, one of 51 failed": {pair{ours: sampleOf(1, quick...)}, higher,
			tail(0.5), false},
		"p99, each failed": {pair{ours: sampleOf(3)}, lower, tail(50), false},
		"nothing measured": {pair{floor: rates.floor}, higher, ratio(0.1), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.target.met(tc.pair, tc.good); got != tc.want {
				t.Fatalf("met %v, want %v", got, tc.want)
			}
		})
	}
}
