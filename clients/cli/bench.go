package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// The ways to start sandboxes.
const (
	modeSequential = "sequential"
	modeStaggered  = "staggered"
	modeBurst      = "burst"
)

var benchModes = []string{modeSequential, modeStaggered, modeBurst}

// ceiling is the time that scores nothing, in milliseconds.
const ceiling = 10_000

// benchFlags are what bench measures.
type benchFlags struct {
	modes    []string
	count    int
	interval time.Duration
	limit    time.Duration
	command  []string
}

// benchResult is what one mode has measured; times are milliseconds.
type benchResult struct {
	Mode        string    `json:"mode"`
	Count       int       `json:"count"`
	SuccessRate float64   `json:"success_rate"` // 0 to 1
	P50         float64   `json:"p50_ms"`
	P95         float64   `json:"p95_ms"`
	P99         float64   `json:"p99_ms"`
	Score       float64   `json:"score"`      // 0 to 100
	Samples     []float64 `json:"samples_ms"` // of the successes, in the order of their starts
	Errors      []string  `json:"errors,omitempty"`
}

func benchCommand(t *tool) *cobra.Command {
	f := &benchFlags{}
	spec := &specFlags{}
	command := &cobra.Command{
		Use:   "bench [flags] IMAGE [-- PROGRAM...]",
		Short: "Measure the time from a create to the first output",
		Long: "Measure the time from a create to the first output of a program in the new\n" +
			"sandbox: one after another (sequential), one every 200 ms (staggered), and all\n" +
			"at once (burst). A time scores 100 at 0 and 0 at 10 s; the score is 60% of that\n" +
			"of the median, 25% of p95 and 15% of p99, times the success rate. It works with\n" +
			"any server of this API.",
		Example: "  sandbox bench sandbox/base:dev --mode burst --count 2",
		Args:    arguments(1, -1, "an IMAGE"),
		RunE: func(c *cobra.Command, args []string) error {
			if f.count < 1 {
				return usageErrorf("count: must be at least 1")
			}
			for _, mode := range f.modes {
				if !slices.Contains(benchModes, mode) {
					return usageErrorf("mode: must be one of %s, not %q", strings.Join(benchModes, ", "),
						mode)
				}
			}
			options, err := spec.options(t, args[0])
			if err != nil {
				return err
			}
			if f.command = args[1:]; len(f.command) == 0 {
				f.command = []string{"echo", "hello"}
			}
			return t.bench(c.Context(), options, f)
		},
	}
	flags := command.Flags()
	flags.StringSliceVar(&f.modes, "mode", benchModes, "`MODES` to measure")
	flags.IntVar(&f.count, "count", 20, "how many sandboxes each mode starts")
	flags.DurationVar(&f.interval, "interval", 200*time.Millisecond, "between two starts when staggered")
	flags.DurationVar(&f.limit, "limit", time.Minute, "after which time a sandbox has failed")
	spec.register(command, 10*time.Minute)
	t.registerOutput(command, "modes")
	return command
}

var benchView = show.View[benchResult]{
	ID: func(r benchResult) string { return r.Mode },
	Columns: []show.Column[benchResult]{
		{Title: "MODE", Value: func(r benchResult) string { return r.Mode }},
		{Title: "COUNT", Value: func(r benchResult) string { return fmt.Sprint(r.Count) }},
		{Title: "SUCCESS", Value: func(r benchResult) string {
			return fmt.Sprintf("%.0f%%", 100*r.SuccessRate)
		}},
		{Title: "P50", Value: func(r benchResult) string { return milliseconds(r.P50) }},
		{Title: "P95", Value: func(r benchResult) string { return milliseconds(r.P95) }},
		{Title: "P99", Value: func(r benchResult) string { return milliseconds(r.P99) }},
		{Title: "SCORE", Value: func(r benchResult) string { return fmt.Sprintf("%.1f", r.Score) }},
	},
}

func milliseconds(ms float64) string {
	return duration(time.Duration(ms * float64(time.Millisecond)))
}

func (t *tool) bench(ctx context.Context, options sandbox.CreateOptions, f *benchFlags) error {
	var results []benchResult
	for _, mode := range f.modes {
		line := t.newProgress()
		if line != nil {
			line.show("measuring " + mode)
		}
		result, err := t.measure(ctx, mode, options, f)
		if line != nil {
			line.clear()
		}
		if err != nil {
			return err
		}
		results = append(results, result)
	}
	if err := show.All(t.Printer, benchView, results); err != nil {
		return err
	}
	for _, result := range results {
		for _, failure := range result.Errors {
			t.warn("%s: %s", result.Mode, failure)
		}
		if result.SuccessRate == 0 {
			return fmt.Errorf("%s: no sandbox succeeded", result.Mode)
		}
	}
	return nil
}

// measure starts sandboxes in one mode.
func (t *tool) measure(ctx context.Context, mode string, options sandbox.CreateOptions,
	f *benchFlags) (benchResult, error) {
	c, err := t.connect()
	if err != nil {
		return benchResult{}, err
	}
	took := make([]time.Duration, f.count)
	failures := make([]error, f.count)
	one := func(i int) {
		took[i], failures[i] = t.firstOutput(ctx, c.client, options, f)
	}
	var running sync.WaitGroup
	for i := range f.count {
		if mode == modeSequential {
			one(i)
		} else {
			running.Go(func() { one(i) })
		}
		if mode == modeStaggered && i < f.count-1 {
			select {
			case <-time.After(f.interval):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	running.Wait()
	if ctx.Err() != nil {
		return benchResult{}, context.Cause(ctx)
	}
	return summarize(mode, took, failures), nil
}

// firstOutput is the time from the request for a sandbox to the first byte that a program in it
// writes, or to its end when it writes none. Deleting the sandbox does not count.
func (t *tool) firstOutput(ctx context.Context, client *sandbox.Client,
	options sandbox.CreateOptions, f *benchFlags) (time.Duration, error) {
	limited, cancel := context.WithTimeoutCause(ctx, f.limit, fmt.Errorf("no output after %s", f.limit))
	defer cancel()
	options.Wait = f.limit
	start := time.Now()
	box, err := client.Create(limited, &options)
	if box != nil {
		defer t.discard(ctx, box)
	}
	if err == nil {
		var first time.Duration
		seen := func([]byte) {
			if first == 0 {
				first = time.Since(start)
			}
		}
		var result sandbox.Result
		result, err = box.Commands.Run(limited, quote(f.command),
			&sandbox.RunOptions{OnStdout: seen, OnStderr: seen})
		if err = errors.Join(err, result.Err()); err == nil {
			seen(nil)
			return first, nil
		}
	}
	if limited.Err() != nil {
		err = context.Cause(limited)
	}
	return 0, err
}

// summarize computes percentiles and score.
func summarize(mode string, took []time.Duration, failures []error) benchResult {
	result := benchResult{Mode: mode, Count: len(took), Samples: []float64{}}
	for i, failure := range failures {
		if failure != nil {
			result.Errors = append(result.Errors, failure.Error())
			continue
		}
		result.Samples = append(result.Samples, float64(took[i])/float64(time.Millisecond))
	}
	if len(result.Samples) == 0 {
		return result
	}
	sorted := slices.Sorted(slices.Values(result.Samples))
	result.SuccessRate = float64(len(sorted)) / float64(len(took))
	result.P50, result.P95, result.P99 = percentile(sorted, 50), percentile(sorted, 95),
		percentile(sorted, 99)
	result.Score = result.SuccessRate *
		(0.6*points(result.P50) + 0.25*points(result.P95) + 0.15*points(result.P99))
	return result
}

// percentile is the smallest sample that so many percent of all do not exceed.
func percentile(sorted []float64, percent int) float64 {
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}

// points is what a time scores, from 0 to 100.
func points(ms float64) float64 { return max(0, 100*(1-ms/ceiling)) }
