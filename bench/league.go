package main

import (
	"context"
	"crypto/sha256"
	_ "embed" // the worker
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
	row           string
	rounds, count int
	apart         time.Duration
}

func (b *bench) leagueModes() []leagueMode {
	return []leagueMode{
		{rowLeague, b.rounds(leagueRounds, 10), 1, 0},
		{rowLeagueStaggered, 1, b.rounds(leagueRounds, 10), leagueApart},
		{rowLeagueBurst, b.rounds(3, 1), b.rounds(leagueRounds, 10), 0},
	}
}

// measureLeague measures how long sandboxes take to be usable, by the public method of ComputeSDK's
// benchmark, with the npm package that it uses for E2B. The floor does the same through the
// service's own API, without a client library.
func (b *bench) measureLeague(ctx context.Context) error {
	key := fmt.Sprintf("\n[[server.keys]]\nname = \"league\"\nsha256 = \"%x\"\nrole = \"user\"\n", sha256.Sum256([]byte(leagueKey)))
	return b.withE2B(ctx, key, func(s e2bService) error {
		worker, err := b.startLeague(ctx, s.url)
		if err != nil {
			return err
		}
		defer worker.Stop()
		if _, err := worker.Do("usable", "1", "0"); err != nil { // warm, as the floor is by its first round
			return err
		}
		for _, mode := range b.leagueModes() {
			if !b.selected(mode.row) {
				continue
			}
			if err := b.measureLeagueMode(ctx, s.service, worker, mode); err != nil {
				return fmt.Errorf("%s: %w", mode.row, err)
			}
		}
		return nil
	})
}

func (b *bench) measureLeagueMode(ctx context.Context, s *service, worker *job.Worker, mode leagueMode) error {
	if _, err := s.timeToOutput(ctx); err != nil {
		return err
	}
	var result pair
	for range mode.rounds {
		took, err := worker.Do("usable", strconv.Itoa(mode.count), strconv.FormatInt(mode.apart.Milliseconds(), 10))
		if err != nil {
			return err
		}
		floor, err := s.timesToOutput(ctx, mode.count, mode.apart)
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		result.add(mode, took, floor)
	}
	b.results[mode.row] = result
	b.progress("%s: %.1f points of 100 by the benchmark's own rule", mode.row, leagueScore(result.ours))
	return nil
}

// add adds a round. Its values are one figure when there are several of them.
func (p *pair) add(mode leagueMode, ours, floor []float64) {
	if mode.count > 1 {
		p.ours.addBurst(burst{ours, mode.count})
		p.floor.addBurst(burst{floor, mode.count})
		return
	}
	p.ours.add(ours[0])
	p.floor.add(floor[0])
}

// leagueScore is the composite score of the benchmark: the median, p95 and p99 without the 5 % at
// either end, weighted, each as a part of 10 s, times the rate of success.
func leagueScore(s sample) float64 {
	sorted := slices.Sorted(slices.Values(s.values))
	cut := len(sorted) / 20
	kept := sample{values: sorted[cut : len(sorted)-cut]}
	if len(kept.values) == 0 {
		return 0
	}
	points := func(took float64) float64 { return max(0, 100*(1-took/10_000)) }
	times := 0.60*points(kept.median()) + 0.25*points(quantile(kept.values, 0.95, lower)) + 0.15*points(quantile(kept.values, 0.99, lower))
	return times * s.success()
}

// timesToOutput makes sandboxes through the service's own API, begun so far apart, and returns how
// long each took until a command in it had printed.
func (s *service) timesToOutput(ctx context.Context, count int, apart time.Duration) ([]float64, error) {
	began, took := time.Now(), make([]float64, count)
	err := all(ctx, count, count, func(ctx context.Context, i int) (err error) {
		select {
		case <-time.After(time.Until(began.Add(time.Duration(i) * apart))):
		case <-ctx.Done():
			return ctx.Err()
		}
		took[i], err = s.timeToOutput(ctx)
		return err
	})
	return took, err
}

// timeToOutput makes a sandbox, has a command print in it, and deletes it. The delete is not timed.
func (s *service) timeToOutput(ctx context.Context) (float64, error) {
	began := time.Now()
	id, err := s.create(ctx)
	if err != nil {
		return 0, err
	}
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	took := elapsed(began)
	return took, errors.Join(err, s.delete(ctx, id))
}

// startLeague starts the worker beside the packages that it uses.
func (b *bench) startLeague(ctx context.Context, url string) (*job.Worker, error) {
	printed, err := exec.CommandContext(ctx, "scripts/node.sh", "test/e2e/clients/e2b").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot install the packages of E2B's clients: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(printed)), "\n")
	directory, err := b.directory("league")
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
