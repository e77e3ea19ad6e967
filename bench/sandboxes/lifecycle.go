// Package sandboxes has the rows of the service on one machine, with both engines.
package sandboxes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// Lifecycle has sandboxes on a Docker Engine, one at a time.
func Lifecycle() []measure.Group {
	return []measure.Group{
		measure.Sharing(rig.OnDocker(""),
			measure.Several([]measure.Row{
				measure.Row{Name: "create", What: "cold create: POST to the first output of a command",
					Floor: "the engine's create and start, on its bridge",
					Unit:  measure.Milliseconds, Target: measure.Ratio(1.1), Gate: true},
				measure.Row{Name: "accept", What: "durable accept: POST to its 202",
					Floor: "4 KiB appended and fdatasync, on the same disk",
					Unit:  measure.Milliseconds, Target: measure.Ratio(5)},
				measure.Row{Name: "delete", What: "DELETE until nothing is left but the record",
					Floor: "the engine's forced removal",
					Unit:  measure.Milliseconds, Target: measure.Ratio(1.2), Gate: true},
			}, func(ctx context.Context, run *measure.Run, with rig.Beside) ([]measure.Pair, error) {
				r, err := measureCreate(ctx, run, with, atOnce)
				return []measure.Pair{r.create, r.accept, r.remove}, err
			}),
			measure.Single(measure.Row{Name: "pause", What: "pause, and resume to the next command's output",
				Floor: "the engine's pause and unpause",
				Unit:  measure.Milliseconds, Target: measure.Ratio(1.2), Gate: true},
				measurePause),
			measure.Single(measure.Row{Name: "first-expiry", What: "how late a single sandbox is Terminated, its container gone",
				Floor: "the engine's forced removal",
				Unit:  measure.Milliseconds, Target: measure.Difference(50)},
				measureFirstExpiry),
			measure.Single(measure.Row{Name: "get-busy", What: "GET of a sandbox while 50 others are created",
				Floor: "a handler that writes the same bytes while the engine makes 50 containers",
				Unit:  measure.Milliseconds, Target: measure.Tail(50)},
				measureBusyReads)),
		measure.Sharing(rig.OnDocker(withSidecar()),
			measure.Single(measure.Row{Name: "create-egress", What: "cold create with an egress sidecar: POST to the first output of a command",
				Floor: "the engine's create and start, on its bridge",
				Unit:  measure.Milliseconds, Target: measure.Ratio(2.2)},
				func(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
					r, err := measureCreate(ctx, run, with, atOnce)
					return r.create, err
				})),
		measure.Sharing(rig.OnDocker(oneSpare),
			measure.Several([]measure.Row{
				measure.Row{Name: "create-spare", What: "cold create with a network made ahead: POST to the first output of a command",
					Floor: "the engine's create and start, on its bridge",
					Unit:  measure.Milliseconds, Target: measure.Ratio(0.7)},
				measure.Row{Name: "delete-spare", What: "DELETE of a sandbox whose network was made ahead until nothing is left but the record",
					Floor: "the engine's forced removal",
					Unit:  measure.Milliseconds, Target: measure.Ratio(1.5)},
			}, func(ctx context.Context, run *measure.Run, with rig.Beside) ([]measure.Pair, error) {
				r, err := measureCreate(ctx, run, with, spare)
				return []measure.Pair{r.create, r.remove}, err
			})),
		measure.Sharing(rig.OnDocker(oneSpare+withSidecar()),
			measure.Single(measure.Row{Name: "create-egress-spare", What: "cold create with an egress sidecar made ahead: POST to the first output of a command",
				Floor: "the engine's create and start, on its bridge",
				Unit:  measure.Milliseconds, Target: measure.Ratio(0.8)},
				func(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
					r, err := measureCreate(ctx, run, with, spare)
					return r.create, err
				})),
	}
}

// oneSpare makes the service keep one network ahead.
const oneSpare = "\n[docker]\nspare_networks = 1\n"

// withSidecar makes the service give sandboxes an egress sidecar.
func withSidecar() string { return fmt.Sprintf("\n[egress]\nimage = %q\n", rig.EgressImage) }

// spare returns when a network that was made ahead is free, and the next one is not being made.
func spare(ctx context.Context, with rig.Beside) error {
	ctx, cancel := context.WithTimeout(ctx, rig.UsableTimeout)
	defer cancel()
	metrics := with.Reader("/metrics")
	for {
		text, err := metrics.Get(ctx)
		if err != nil || bytes.Contains(text, []byte("\nsandbox_spare_networks 1\n")) {
			return err
		}
		if err := measure.Pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("no network was made ahead: %w", err)
		}
	}
}

// atOnce waits for nothing.
func atOnce(context.Context, rig.Beside) error { return nil }

// creation is what the life of one sandbox after the other shows.
type creation struct{ create, accept, remove measure.Pair }

// measureCreate measures sandboxes from nothing to the first output, how soon the service answers
// that it will make them, which it does when the record is safe, and how long it takes until
// nothing is left of them. Ready is called before each side's turn.
func measureCreate(ctx context.Context, run *measure.Run, with rig.Beside, ready func(context.Context, rig.Beside) error) (r creation, err error) {
	floor, err := rig.StartWorker(ctx, run)
	if err != nil {
		return r, err
	}
	defer floor.Stop()
	record := filepath.Join(with.DataDir, "floor")
	for i := range run.Rounds(20, 3) + 1 {
		var round creation
		if err := ready(ctx, with); err != nil {
			return r, err
		}
		if err := round.live(ctx, with.Service); err != nil {
			if errors.Is(err, measure.ErrLost) || ctx.Err() != nil {
				return r, err
			}
			run.Progress("round %d: %v", i, err)
			round.create.Ours.Fail()
			round.accept.Ours.Fail()
			round.remove.Ours.Fail()
		}
		if err := ready(ctx, with); err != nil {
			return r, err
		}
		if err := round.liveOnEngine(ctx, with.Engine, floor.Job("append", record)); err != nil {
			return r, fmt.Errorf("floor: %w", err)
		}
		if i == 0 { // warm on both sides
			continue
		}
		r.create.Join(round.create)
		r.accept.Join(round.accept)
		r.remove.Join(round.remove)
	}
	return r, nil
}

// live adds the life of one sandbox.
func (round *creation) live(ctx context.Context, s *rig.Service) error {
	began := time.Now()
	id, err := s.Create(ctx)
	if err != nil {
		return err
	}
	accepted := measure.Elapsed(began)
	daemon, err := s.Daemon(ctx, id)
	if err == nil {
		err = daemon.FirstOutput(ctx)
	}
	created := measure.Elapsed(began)
	began = time.Now()
	if err := errors.Join(err, s.Delete(ctx, id)); err != nil {
		return err
	}
	round.accept.Ours.Add(accepted)
	round.create.Ours.Add(created)
	round.remove.Ours.Add(measure.Elapsed(began))
	return nil
}

// liveOnEngine adds that of a container, and of what the service writes first.
func (round *creation) liveOnEngine(ctx context.Context, e *rig.Engine, record measure.Figure) error {
	recorded, err := record(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	id, err := e.Launch(ctx)
	if err != nil {
		return err
	}
	created := measure.Elapsed(began)
	began = time.Now()
	if err := e.Remove(ctx, id); err != nil {
		return err
	}
	round.accept.Floor.Add(recorded)
	round.create.Floor.Add(created)
	round.remove.Floor.Add(measure.Elapsed(began))
	return nil
}

func measurePause(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	id, daemon, err := with.Usable(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	container, err := with.Engine.Launch(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	return run.InTurns(ctx, run.Rounds(30, 5), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			if err := with.Act(ctx, id, "pause"); err != nil {
				return 0, err
			}
			if err := with.Act(ctx, id, "resume"); err != nil {
				return 0, err
			}
			err := daemon.FirstOutput(ctx)
			return measure.Elapsed(began), err
		},
		Floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := with.Engine.Freeze(ctx, container)
			return measure.Elapsed(began), err
		},
	})
}
