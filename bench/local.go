package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Counts of sandboxes on the local engine.
const (
	localCrowd = 100 // asked for at once
	localIdle  = 500 // that do nothing, beside one that runs commands
)

// localRuntimes are the OCI runtimes whose cold create is a row.
func localRuntimes() map[string][]string {
	return map[string][]string{
		"crun":  {rowCreateLocal, rowCreateLocalTail, rowCreateLocalRatio, rowDeleteLocal},
		"runc":  {rowCreateLocalRunc},
		"runsc": {rowCreateLocalRunsc},
	}
}

// measureLocal measures the local engine beside Docker, in turns: the same sandboxes on another
// engine of the same service.
func (b *bench) measureLocal(ctx context.Context) error {
	for runtime, names := range localRuntimes() {
		if !b.selectedAny(names...) && (runtime != "crun" || !b.selected(rowPauseLocal)) {
			continue
		}
		err := b.withLocal(ctx, runtime, func(s *service, engine *engine) error {
			if b.selectedAny(names...) {
				var r creation
				err := b.measureCreate(ctx, s, engine, atOnce, &r)
				if err != nil {
					return err
				}
				for _, name := range names {
					b.results[name] = r.create
				}
				if runtime == "crun" {
					b.results[rowDeleteLocal] = r.remove
				}
				if runtime == "crun" && b.scale != scaleGate {
					if r.create.peer, err = b.measurePodman(ctx); err != nil {
						b.progress("%s has no rival: %v", rowCreateLocal, err)
					}
					b.results[rowCreateLocal] = r.create
				}
			}
			if runtime != "crun" || !b.selected(rowPauseLocal) {
				return nil
			}
			before := b.results[rowPause]
			err := b.measurePause(ctx, s, engine)
			b.results[rowPauseLocal] = b.results[rowPause]
			b.results[rowPause] = before
			if before.ours.attempts == 0 {
				delete(b.results, rowPause)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", runtime, err)
		}
	}
	return nil
}

func (b *bench) selectedAny(names ...string) bool {
	for _, name := range names {
		if b.selected(name) {
			return true
		}
	}
	return false
}

// measureLocalCrowd asks for many sandboxes at once: how many a second become usable, from the
// first request until the last one runs.
func (b *bench) measureLocalCrowd(ctx context.Context) error {
	return b.withLocal(ctx, "crun", func(s *service, engine *engine) error { return b.crowdBoth(ctx, s, engine) })
}

func (b *bench) crowdBoth(ctx context.Context, s *service, engine *engine) error {
	count := b.rounds(localCrowd, 20)
	var rate pair
	for range b.rounds(3, 1) {
		took, err := engine.launchMany(ctx, count)
		if err != nil {
			return fmt.Errorf("floor of %s: %w", rowCrowdLocal, err)
		}
		rate.floor.add(float64(count) / highest(took) * 1000)
		if err := engine.clean(ctx, label); err != nil {
			return err
		}
		made, err := b.createMany(ctx, s, count)
		if err != nil {
			return err
		}
		if len(made.running) < count {
			rate.ours.fail()
		} else {
			rate.ours.add(float64(count) / highest(made.took.values) * 1000)
		}
		if err := concurrently(ctx, count, func(ctx context.Context, i int) error { return s.end(ctx, made.ids[i]) }); err != nil {
			return err
		}
	}
	b.results[rowCrowdLocal] = rate
	return nil
}

func highest(values []float64) float64 {
	highest := 0.0
	for _, value := range values {
		highest = max(highest, value)
	}
	return highest
}

// measureLocalIdle has many sandboxes that do nothing: what of ours each costs outside of it, and
// what a command in a random one of them takes beside one that is alone. The floor is not in turns
// with it: what the others cost the kernel, a lone sandbox of another service would pay for as
// well. Then all of them fall asleep.
func (b *bench) measureLocalIdle(ctx context.Context) error {
	return b.withLocal(ctx, "crun", func(s *service, _ *engine) error {
		alone, err := s.usable(ctx)
		if err != nil {
			return err
		}
		var command, memory pair
		each := b.rounds(200, 20)
		for range each {
			if err := command.floor.timed(func() error { return alone.firstOutput(ctx) }); err != nil {
				return err
			}
		}
		var asleep pair
		if b.selected(rowSleepLocal) {
			if err := b.countBusy(ctx, s, &asleep.floor); err != nil {
				return err
			}
		}
		before, err := s.residentWithKeeper()
		if err != nil {
			return err
		}
		count := b.rounds(localIdle, 20)
		ids, err := b.runMany(ctx, s, count)
		if err != nil {
			return err
		}
		daemons := make([]execd, count)
		if err := concurrently(ctx, count, func(ctx context.Context, i int) (err error) {
			if daemons[i], err = s.daemon(ctx, ids[i]); err != nil {
				return err
			}
			return daemons[i].firstOutput(ctx) // each answers
		}); err != nil {
			return err
		}
		after, err := s.residentWithKeeper()
		if err != nil {
			return err
		}
		memory.ours.add((after - before) / float64(count))
		floor, err := b.startFloor(ctx)
		if err != nil {
			return err
		}
		defer floor.stop()
		least, err := atRest(ctx, floor)
		if err != nil {
			return err
		}
		memory.floor.add(least)
		for range each {
			daemon := daemons[rand.IntN(count)]
			if err := command.ours.timed(func() error { return daemon.firstOutput(ctx) }); err != nil {
				return err
			}
		}
		b.results[rowIdleLocal], b.results[rowBusyLocal] = memory, command
		if b.selected(rowSleepLocal) {
			err := s.allAsleep(ctx, ids)
			if err == nil {
				err = b.countBusy(ctx, s, &asleep.ours)
			}
			if err != nil {
				return err
			}
			b.results[rowSleepLocal] = asleep
		}
		return concurrently(ctx, count, func(ctx context.Context, i int) error { return s.delete(ctx, ids[i]) })
	})
}

// allAsleep has sandboxes fall asleep once they are idle, and waits until they do.
func (s *service) allAsleep(ctx context.Context, ids []string) error {
	err := concurrently(ctx, len(ids), func(ctx context.Context, i int) error { return s.sleepWhenIdle(ctx, ids[i]) })
	for i := 0; i < len(ids) && err == nil; i++ {
		err = s.awaitAsleep(ctx, ids[i])
	}
	return err
}

// countBusy counts the processor time that service and keeper take, in percent of a core.
func (b *bench) countBusy(ctx context.Context, s *service, result *sample) error {
	pids, err := s.keepers()
	if err != nil {
		return err
	}
	pids = append(pids, s.command.Process.Pid)
	for range b.rounds(3, 1) {
		share, err := processorShare(ctx, pids...)
		if err != nil {
			return err
		}
		result.add(share)
	}
	return nil
}

// timed adds how long do takes.
func (s *sample) timed(do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	s.add(elapsed(began))
	return nil
}

// usable returns the daemon of a new sandbox that has run a command.
func (s *service) usable(ctx context.Context) (execd, error) {
	id, err := s.create(ctx)
	if err != nil {
		return execd{}, err
	}
	daemon, err := s.daemon(ctx, id)
	if err != nil {
		return execd{}, err
	}
	return daemon, daemon.firstOutput(ctx)
}

// residentWithKeeper returns the memory of the service and of the process that starts its
// sandboxes.
func (s *service) residentWithKeeper() (float64, error) {
	total, err := s.resident()
	if err != nil {
		return 0, err
	}
	pids, err := s.keepers()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		keeper, err := residentOf(pid)
		if err != nil {
			return 0, err
		}
		total += keeper
	}
	return total, nil
}

// keepers returns the processes that start the sandboxes of a service of this run.
func (s *service) keepers() (pids []int, err error) {
	program := append([]byte(filepath.Join(filepath.Dir(s.command.Path), "sandbox-keeper")), 0)
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(line, program) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// withLocal starts a service with the local engine, beside a client of Docker's, and removes what
// they leave.
func (b *bench) withLocal(ctx context.Context, runtime string, do func(*service, *engine) error) error {
	return b.withLocalPlan(ctx, runtime, plan{}, do)
}

func (b *bench) withLocalPlan(ctx context.Context, runtime string, p plan, do func(*service, *engine) error) (err error) {
	engine, err := openEngine(ctx)
	if err != nil {
		return err
	}
	archives, err := archiveDirectory()
	if err != nil {
		return err
	}
	p.runtime = "local"
	p.more += fmt.Sprintf("\n[local]\noci_runtime = %q\nbridge = \"sbench\"\narchives = [%q, %q]\n", runtime,
		filepath.Join(archives, "execd.tar"), filepath.Join(archives, "base.tar"))
	s, err := b.startPlanned(ctx, p)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.deleteAll(context.WithoutCancel(ctx)), engine.clean(context.WithoutCancel(ctx), label))
		s.stop()
	}()
	return do(s, engine)
}

// archiveDirectory is where scripts/images.sh --archives leaves its files.
func archiveDirectory() (string, error) {
	if cache := os.Getenv("SANDBOX_CACHE"); cache != "" {
		return filepath.Join(cache, "archives"), nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "sandbox", "archives"), err
}

// deleteAll deletes every sandbox.
func (s *service) deleteAll(ctx context.Context) error {
	var page struct {
		Items []struct {
			ID     string
			Status status
		}
	}
	if err := s.call(ctx, http.MethodGet, "/v1/sandboxes?pageSize=1000", http.StatusOK, nil, &page); err != nil {
		return err
	}
	return concurrently(ctx, len(page.Items), func(ctx context.Context, i int) error {
		if state := page.Items[i].Status.State; state == "Terminated" || state == "Failed" {
			return nil
		}
		return s.delete(ctx, page.Items[i].ID)
	})
}
