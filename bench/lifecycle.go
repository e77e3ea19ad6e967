package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// lifecycle has sandboxes on a Docker Engine, one at a time.
func lifecycle() []group {
	return []group{
		sharing(onDocker(""),
			part[beside]{[]row{
				row{name: "create", what: "cold create: POST to the first output of a command",
					floor: "the engine's create and start, on its bridge",
					unit:  milliseconds, target: ratio(1.1), gate: true},
				row{name: "accept", what: "durable accept: POST to its 202",
					floor: "4 KiB appended and fdatasync, on the same disk",
					unit:  milliseconds, target: ratio(5)},
				row{name: "delete", what: "DELETE until nothing is left but the record",
					floor: "the engine's forced removal",
					unit:  milliseconds, target: ratio(1.2), gate: true},
			}, func(ctx context.Context, run *bench, with beside) ([]pair, error) {
				r, err := measureCreate(ctx, run, with, atOnce)
				return []pair{r.create, r.accept, r.remove}, err
			}},
			one(row{name: "pause", what: "pause, and resume to the next command's output",
				floor: "the engine's pause and unpause",
				unit:  milliseconds, target: ratio(1.2), gate: true},
				measurePause),
			one(row{name: "first-expiry", what: "how late a single sandbox is Terminated, its container gone",
				floor: "the engine's forced removal",
				unit:  milliseconds, target: difference(50)},
				measureFirstExpiry),
			one(row{name: "get-busy", what: "GET of a sandbox while 50 others are created",
				floor: "a handler that writes the same bytes while the engine makes 50 containers",
				unit:  milliseconds, target: tail(50)},
				measureBusyReads)),
		sharing(onDocker(withSidecar()),
			one(row{name: "create-egress", what: "cold create with an egress sidecar: POST to the first output of a command",
				floor: "the engine's create and start, on its bridge",
				unit:  milliseconds, target: ratio(2.2)},
				func(ctx context.Context, run *bench, with beside) (pair, error) {
					r, err := measureCreate(ctx, run, with, atOnce)
					return r.create, err
				})),
		sharing(onDocker(oneSpare),
			part[beside]{[]row{
				row{name: "create-spare", what: "cold create with a network made ahead: POST to the first output of a command",
					floor: "the engine's create and start, on its bridge",
					unit:  milliseconds, target: ratio(0.7)},
				row{name: "delete-spare", what: "DELETE of a sandbox whose network was made ahead until nothing is left but the record",
					floor: "the engine's forced removal",
					unit:  milliseconds, target: ratio(1.5)},
			}, func(ctx context.Context, run *bench, with beside) ([]pair, error) {
				r, err := measureCreate(ctx, run, with, with.spare)
				return []pair{r.create, r.remove}, err
			}}),
		sharing(onDocker(oneSpare+withSidecar()),
			one(row{name: "create-egress-spare", what: "cold create with an egress sidecar made ahead: POST to the first output of a command",
				floor: "the engine's create and start, on its bridge",
				unit:  milliseconds, target: ratio(0.8)},
				func(ctx context.Context, run *bench, with beside) (pair, error) {
					r, err := measureCreate(ctx, run, with, with.spare)
					return r.create, err
				})),
	}
}

// oneSpare makes the service keep one network ahead.
const oneSpare = "\n[docker]\nspare_networks = 1\n"

// withSidecar makes the service give sandboxes an egress sidecar.
func withSidecar() string { return fmt.Sprintf("\n[egress]\nimage = %q\n", egressImage) }

// spare returns when a network that was made ahead is free, and the next one is not being made.
func (with beside) spare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	metrics := with.reader("/metrics")
	for {
		text, err := metrics.get(ctx)
		if err != nil || bytes.Contains(text, []byte("\nsandbox_spare_networks 1\n")) {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("no network was made ahead: %w", err)
		}
	}
}

// atOnce waits for nothing.
func atOnce(context.Context) error { return nil }

// creation is what the life of one sandbox after the other shows.
type creation struct{ create, accept, remove pair }

// measureCreate measures sandboxes from nothing to the first output, how soon the service answers
// that it will make them, which it does when the record is safe, and how long it takes until
// nothing is left of them. Ready is called before each side's turn.
func measureCreate(ctx context.Context, run *bench, with beside, ready func(context.Context) error) (r creation, err error) {
	floor, err := startWorker(ctx, run)
	if err != nil {
		return r, err
	}
	defer floor.Stop()
	record := filepath.Join(with.dataDir, "floor")
	for i := range run.rounds(20, 3) + 1 {
		var round creation
		if err := ready(ctx); err != nil {
			return r, err
		}
		if err := round.live(ctx, with.service); err != nil {
			if errors.Is(err, errLost) || ctx.Err() != nil {
				return r, err
			}
			run.progress("round %d: %v", i, err)
			round.create.ours.fail()
			round.accept.ours.fail()
			round.remove.ours.fail()
		}
		if err := ready(ctx); err != nil {
			return r, err
		}
		if err := round.liveOnEngine(ctx, with.engine, floor.one("append", record)); err != nil {
			return r, fmt.Errorf("floor: %w", err)
		}
		if i == 0 { // warm on both sides
			continue
		}
		r.create.join(round.create)
		r.accept.join(round.accept)
		r.remove.join(round.remove)
	}
	return r, nil
}

// live adds the life of one sandbox.
func (round *creation) live(ctx context.Context, s *service) error {
	began := time.Now()
	id, err := s.create(ctx)
	if err != nil {
		return err
	}
	accepted := elapsed(began)
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	created := elapsed(began)
	began = time.Now()
	if err := errors.Join(err, s.delete(ctx, id)); err != nil {
		return err
	}
	round.accept.ours.add(accepted)
	round.create.ours.add(created)
	round.remove.ours.add(elapsed(began))
	return nil
}

// liveOnEngine adds that of a container, and of what the service writes first.
func (round *creation) liveOnEngine(ctx context.Context, e *engine, record figure) error {
	recorded, err := record(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	id, err := e.launch(ctx)
	if err != nil {
		return err
	}
	created := elapsed(began)
	began = time.Now()
	if err := e.remove(ctx, id); err != nil {
		return err
	}
	round.accept.floor.add(recorded)
	round.create.floor.add(created)
	round.remove.floor.add(elapsed(began))
	return nil
}

func measurePause(ctx context.Context, run *bench, with beside) (pair, error) {
	id, daemon, err := with.usable(ctx)
	if err != nil {
		return pair{}, err
	}
	container, err := with.engine.launch(ctx)
	if err != nil {
		return pair{}, err
	}
	return run.inTurns(ctx, run.rounds(30, 5), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			if err := with.act(ctx, id, "pause"); err != nil {
				return 0, err
			}
			if err := with.act(ctx, id, "resume"); err != nil {
				return 0, err
			}
			err := daemon.firstOutput(ctx)
			return elapsed(began), err
		},
		floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := with.engine.freeze(ctx, container)
			return elapsed(began), err
		},
	})
}
