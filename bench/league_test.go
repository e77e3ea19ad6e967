package main

import (
	"math"
	"slices"
	"testing"
)

// TestLeagueScore: the score is that of ComputeSDK's benchmark.
func TestLeagueScore(t *testing.T) {
	alike := slices.Repeat([]float64{200}, 100)
	for _, c := range []struct {
		name  string
		given sample
		want  float64
	}{
		{"all alike", sample{values: alike, attempts: 100}, 98},
		{"half of them failed", sample{values: alike[:50], attempts: 100}, 49},
		{"the worst and the best five are left out", sample{values: slices.Concat(alike[:90], slices.Repeat([]float64{0}, 5),
			slices.Repeat([]float64{9000}, 5)), attempts: 100}, 98},
		{"none is worth less than nothing", sample{values: slices.Repeat([]float64{30_000}, 100), attempts: 100}, 0},
		{"the tail counts", sample{values: slices.Concat(alike[:80], slices.Repeat([]float64{1200}, 20)), attempts: 100},
			0.60*98 + 0.40*88},
		{"all failed", sample{attempts: 100}, 0},
	} {
		if got := leagueScore(c.given); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v points, want %v", c.name, got, c.want)
		}
	}
}
