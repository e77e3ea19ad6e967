package e2b

import (
	"math"
	"slices"
	"testing"

	"sandbox.internal/bench/measure"
)

// TestLeagueScore: the score is that of ComputeSDK's benchmark.
func TestLeagueScore(t *testing.T) {
	alike := slices.Repeat([]float64{200}, 100)
	for _, c := range []struct {
		name  string
		given measure.Sample
		want  float64
	}{
		{"all alike", measure.Sample{Values: alike, Attempts: 100}, 98},
		{"half of them failed", measure.Sample{Values: alike[:50], Attempts: 100}, 49},
		{"the worst and the best five are left out", measure.Sample{Values: slices.Concat(alike[:90], slices.Repeat([]float64{0}, 5),
			slices.Repeat([]float64{9000}, 5)), Attempts: 100}, 98},
		{"none is worth less than nothing", measure.Sample{Values: slices.Repeat([]float64{30_000}, 100), Attempts: 100}, 0},
		{"the tail counts", measure.Sample{Values: slices.Concat(alike[:80], slices.Repeat([]float64{1200}, 20)), Attempts: 100},
			0.60*98 + 0.40*88},
		{"all failed", measure.Sample{Attempts: 100}, 0},
	} {
		if got := leagueScore(c.given); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v points, want %v", c.name, got, c.want)
		}
	}
}
