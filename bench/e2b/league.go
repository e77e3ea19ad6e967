package e2b

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/bench/job"
	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// What ComputeSDK's benchmark of sandbox providers does (METHODOLOGY.md of
// github.com/computesdk/benchmarks).
const (
	leagueRounds = 100 // of the sequential mode, and sandboxes of the others
	leagueApart  = 200 * time.Millisecond
	leagueKey    = "e2b_0123456789abcdef0123456789abcdef" // its client of E2B accepts keys of this form alone
)

// leagueWorker is the program that does the same with the client that the benchmark uses.
//
//go:embed league.mjs
var leagueWorker []byte

// leagueMode is one way in which the benchmark makes sandboxes: so many, begun so far apart.
type leagueMode struct {
	rounds, count int
	apart         time.Duration
}

// League has how long sandboxes take to be usable, by the public method of ComputeSDK's benchmark,
// with the npm package that it uses for E2B. The floor does the same through the service's own API,
// without a client library.
func League() measure.Group {
	return measure.Sharing(withLeague,
		measure.Single(measure.Row{Name: "league-sequential", What: "a sandbox of the npm package @computesdk/e2b, from `create` until its first `runCommand` has ended, one after another, " +
			"as METHODOLOGY.md of computesdk/benchmarks has it (time to interactive, sequential), with `echo` in place of `node -v`",
			Floor: "the same through the service's own API, without a client library",
			Unit:  measure.Milliseconds, Target: measure.Ours(100)},
			func(ctx context.Context, run *measure.Run, with contestants) (measure.Pair, error) {
				return with.measure(ctx, run, leagueMode{run.Rounds(leagueRounds, 10), 1, 0})
			}),
		measure.Single(measure.Row{Name: "league-staggered", What: "the same of each of 100 that are begun 200 ms apart (staggered)",
			Floor: "the same through the service's own API, without a client library",
			Unit:  measure.Milliseconds, Target: measure.Ours(150)},
			func(ctx context.Context, run *measure.Run, with contestants) (measure.Pair, error) {
				return with.measure(ctx, run, leagueMode{1, run.Rounds(leagueRounds, 10), leagueApart})
			}),
		measure.Single(measure.Row{Name: "league-burst", What: "the same of each of 100 that are begun at once (burst)",
			Floor: "the same through the service's own API, without a client library",
			Unit:  measure.Milliseconds, Target: measure.Ours(4000)},
			func(ctx context.Context, run *measure.Run, with contestants) (measure.Pair, error) {
				return with.measure(ctx, run, leagueMode{run.Rounds(3, 1), run.Rounds(leagueRounds, 10), 0})
			}))
}

// contestants are a service and the program that uses the benchmark's client.
type contestants struct {
	*rig.Service
	worker *job.Worker
}

func withLeague(ctx context.Context, run *measure.Run, do func(contestants) error) error {
	key := fmt.Sprintf("\n[[server.keys]]\nname = \"league\"\nsha256 = \"%x\"\nrole = \"user\"\n", sha256.Sum256([]byte(leagueKey)))
	return onE2B(key)(ctx, run, func(s e2bService) error {
		worker, err := startLeague(ctx, run, s.URL)
		if err != nil {
			return err
		}
		defer worker.Stop()
		if _, err := worker.Do("usable", "1", "0"); err != nil { // warm, as the floor is by its first round
			return err
		}
		return do(contestants{s.Service, worker})
	})
}

func (with contestants) measure(ctx context.Context, run *measure.Run, mode leagueMode) (measure.Pair, error) {
	var result measure.Pair
	if _, err := with.TimeToOutput(ctx); err != nil {
		return result, err
	}
	for range mode.rounds {
		took, err := with.worker.Do("usable", strconv.Itoa(mode.count), strconv.FormatInt(mode.apart.Milliseconds(), 10))
		if err != nil {
			return result, err
		}
		floor, err := timesToOutput(ctx, with.Service, mode.count, mode.apart)
		if err != nil {
			return result, fmt.Errorf("floor: %w", err)
		}
		mode.add(&result, took, floor)
	}
	run.Progress("%.1f points of 100 by the benchmark's own rule", leagueScore(result.Ours))
	return result, nil
}

// add adds a round. Its values are one figure when there are several of them.
func (mode leagueMode) add(p *measure.Pair, ours, floor []float64) {
	if mode.count > 1 {
		p.Ours.AddBurst(measure.Burst{Values: ours, Attempts: mode.count})
		p.Floor.AddBurst(measure.Burst{Values: floor, Attempts: mode.count})
		return
	}
	p.Ours.Add(ours[0])
	p.Floor.Add(floor[0])
}

// leagueScore is the composite score of the benchmark: the median, p95 and p99 without the 5 % at
// either end, weighted, each as a part of 10 s, times the rate of success.
func leagueScore(s measure.Sample) float64 {
	sorted := slices.Sorted(slices.Values(s.Values))
	cut := len(sorted) / 20
	kept := measure.Sample{Values: sorted[cut : len(sorted)-cut]}
	if len(kept.Values) == 0 {
		return 0
	}
	points := func(took float64) float64 { return max(0, 100*(1-took/10_000)) }
	times := 0.60*points(kept.Median()) + 0.25*points(measure.Quantile(kept.Values, 0.95, measure.Lower)) + 0.15*points(measure.Quantile(kept.Values, 0.99, measure.Lower))
	return times * s.Success()
}

// timesToOutput makes sandboxes through the service's own API, begun so far apart, and returns how
// long each took until a command in it had printed.
func timesToOutput(ctx context.Context, s *rig.Service, count int, apart time.Duration) ([]float64, error) {
	began, took := time.Now(), make([]float64, count)
	err := measure.AtOnce(ctx, count, count, func(ctx context.Context, i int) (err error) {
		select {
		case <-time.After(time.Until(began.Add(time.Duration(i) * apart))):
		case <-ctx.Done():
			return ctx.Err()
		}
		took[i], err = s.TimeToOutput(ctx)
		return err
	})
	return took, err
}

// startLeague starts the worker beside the packages that it uses.
func startLeague(ctx context.Context, run *measure.Run, url string) (*job.Worker, error) {
	printed, err := exec.CommandContext(ctx, "scripts/node.sh", "test/e2e/clients/e2b").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot install the packages of E2B's clients: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(printed)), "\n")
	directory, err := run.Directory("league")
	if err != nil {
		return nil, err
	}
	program := filepath.Join(directory, "league.mjs")
	if err := errors.Join(os.WriteFile(program, leagueWorker, 0o600),
		os.Symlink(filepath.Join(lines[len(lines)-1], "node_modules"), filepath.Join(directory, "node_modules"))); err != nil {
		return nil, err
	}
	command := exec.Command("node", program)
	command.Env = append(os.Environ(), "E2B_API_KEY="+leagueKey, "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url)
	return job.Start(command)
}
