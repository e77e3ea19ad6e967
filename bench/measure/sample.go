package measure

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Direction says which values of a row are good.
type Direction string

const (
	Lower  Direction = "lower"  // times and sizes
	Higher Direction = "higher" // rates
)

// Sample is what one side of a row measured. An attempt that failed has no value but counts.
type Sample struct {
	Values   []float64
	Attempts int
	// requests are the single requests, in milliseconds, of a row whose values are the rates of
	// rounds of many; else it is empty.
	Requests []float64
	// bursts are the rounds of a row whose rounds each make many values at once, in their order;
	// else it is empty, and each value is a round.
	bursts []Burst
}

// Burst is a round of many values, which are not independent of one another.
type Burst struct {
	Values   []float64
	Attempts int
}

// Add adds the value of an attempt.
func (s *Sample) Add(value float64) {
	s.Attempts++
	s.Values = append(s.Values, value)
}

// Timed adds how long do takes, in milliseconds.
func (s *Sample) Timed(do func() error) error {
	took, err := Timed(do)
	if err == nil {
		s.Add(took)
	}
	return err
}

// Fail adds an attempt without a value.
func (s *Sample) Fail() { s.Attempts++ }

// AddBurst adds the values of one round, which is drawn as a whole.
func (s *Sample) AddBurst(b Burst) {
	s.Values = append(s.Values, b.Values...)
	s.Attempts += b.Attempts
	s.bursts = append(s.bursts, b)
}

// Burst is all of the sample as one round.
func (s Sample) Burst() Burst { return Burst{s.Values, s.Attempts} }

// InOne returns the sample as one that was measured in one round.
func (s Sample) InOne() Sample {
	s.bursts = []Burst{s.Burst()}
	return s
}

// rounds is how many independent figures the sample has.
func (s Sample) rounds() int {
	if len(s.bursts) > 0 {
		return len(s.bursts)
	}
	return len(s.Values)
}

// Success is the share of attempts that succeeded, 0 to 1.
func (s Sample) Success() float64 {
	if s.Attempts == 0 {
		return 0
	}
	return float64(len(s.Values)) / float64(s.Attempts)
}

// Median is the middle value, or the mean of the two in the middle; NaN without values.
func (s Sample) Median() float64 {
	n := len(s.Values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s.Values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// P99 is the value that 99% of the single requests are at least as good as, in milliseconds, or, of
// a row whose values are single requests themselves, of the values.
func (s Sample) P99(good Direction) float64 {
	if len(s.Requests) > 0 {
		return Quantile(s.Requests, 0.99, Lower)
	}
	return Quantile(s.Values, 0.99, good)
}

// tail is the p99 of all attempts, in the unit of the values: one that failed has never ended. It
// is what a target of the p99 compares. NaN without attempts.
func (s Sample) tail(good Direction) float64 {
	never := math.Inf(1)
	if good == Higher {
		never = 0
	}
	failed := slices.Repeat([]float64{never}, max(0, s.Attempts-len(s.Values)))
	return Quantile(slices.Concat(s.Values, failed), 0.99, good)
}

// Quantile is the measured value that a share of the values is at least as good as (nearest rank):
// the slow end of times, and the low end of rates. The 0.99 quantile of fewer than 100 values is
// the worst. NaN without values.
func Quantile(values []float64, share float64, good Direction) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := max(1, int(math.Ceil(share*float64(n))))
	if good == Higher {
		return sorted[n-rank]
	}
	return sorted[rank-1]
}

// effective is the median with the success rate as a multiplier: a service that answers every
// second request counts as twice as slow. Never better than the median; NaN without values.
func (s Sample) effective(good Direction) float64 {
	if good == Higher {
		return s.Median() * s.Success()
	}
	return s.Median() / s.Success()
}

// Pair is one row's result: our side, the floor's, and that of a peer where there is one: another
// program that does the same for its users, and not the least that could do it.
type Pair struct{ Ours, Floor, Peer Sample }

// Join adds the figures of another pair.
func (p *Pair) Join(other Pair) {
	for _, side := range []struct{ to, from *Sample }{{&p.Ours, &other.Ours},
		{&p.Floor, &other.Floor}} {
		side.to.Values = append(side.to.Values, side.from.Values...)
		side.to.Attempts += side.from.Attempts
	}
}

// Ratio is our effective median over the floor's median.
func (p Pair) Ratio(good Direction) float64 { return p.Ours.effective(good) / p.Floor.Median() }

// Difference is our effective median less the floor's median, in the row's unit.
func (p Pair) Difference(good Direction) float64 {
	return p.Ours.effective(good) - p.Floor.Median()
}

// resamples is how often a run is drawn again from itself to see what its figures are worth.
const resamples = 200

// leastRounds is how many rounds can show how far they differ by chance.
const leastRounds = 3

// Interval returns what 95% of the resampled runs (bootstrap) give for the value that a target
// compares: the noise of this run; NaN where a side has fewer than leastRounds rounds. Rounds of
// both sides are drawn together where there are as many of both, because they were measured in
// turns.
func (p Pair) Interval(t target, good Direction) (low, high float64) {
	if min(p.Ours.rounds(), p.Floor.rounds()) < leastRounds {
		return math.NaN(), math.NaN()
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same picture of the same figures every time
	values := make([]float64, resamples)
	for i := range values {
		values[i] = t.value(p.drawn(random), good)
	}
	return Quantile(values, 0.025, Lower), Quantile(values, 0.975, Lower)
}

func (p Pair) drawn(random *rand.Rand) Pair {
	at := draw(p.Ours.rounds(), random)
	drawn := Pair{Ours: p.Ours.Of(at)}
	if p.Floor.rounds() != len(at) {
		at = draw(p.Floor.rounds(), random)
	}
	drawn.Floor = p.Floor.Of(at)
	return drawn
}

// draw returns as many of the numbers 0 to count-1, any of them more than once.
func draw(count int, random *rand.Rand) []int {
	drawn := make([]int, count)
	for i := range drawn {
		drawn[i] = random.IntN(count)
	}
	return drawn
}

// Of returns the sample of these rounds. Attempts that failed outside of bursts remain.
func (s Sample) Of(rounds []int) Sample {
	if len(s.bursts) == 0 {
		drawn := Sample{Attempts: s.Attempts, Values: make([]float64, len(rounds))}
		for i, at := range rounds {
			drawn.Values[i] = s.Values[at]
		}
		return drawn
	}
	var drawn Sample
	for _, at := range rounds {
		drawn.AddBurst(s.bursts[at])
	}
	return drawn
}

// Thinned returns what a file keeps of many figures: all of them in their order up to most, else as
// many of the sorted ones, at equal distances.
func Thinned(values []float64, most int) []float64 {
	if len(values) <= most {
		return values
	}
	sorted := slices.Sorted(slices.Values(values))
	kept := make([]float64, most)
	for i := range kept {
		kept[i] = sorted[i*(len(sorted)-1)/(most-1)]
	}
	return kept
}
