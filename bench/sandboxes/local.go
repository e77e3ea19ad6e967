package sandboxes

import (
	"context"
	"fmt"
	"slices"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// localCrowd is how many sandboxes are asked for at once.
const localCrowd = 100

// LocalCreates has sandboxes on the local engine beside Docker, in turns: the same sandboxes on
// another engine of the same service.
func LocalCreates() []measure.Group {
	return []measure.Group{
		measure.Sharing(rig.OnLocal("crun", rig.Plan{}),
			measure.Several([]measure.Row{
				measure.Row{Name: "local-create", What: "cold create on the local engine with crun: POST to the first output of a command",
					Floor: "Docker's create and start, on its bridge",
					Unit:  measure.Milliseconds, Target: measure.Ours(30),
					Peer: "Podman with crun, create and start of a container of the same image with the same limits of memory and processes and one port,"},
				measure.Row{Name: "local-create-p99", What: "the slowest of these creates",
					Floor: "Docker's create and start, on its bridge",
					Unit:  measure.Milliseconds, Target: measure.Tail(60)},
				measure.Row{Name: "local-create-docker", What: "these creates as a part of Docker's",
					Floor: "Docker's create and start, on its bridge",
					Unit:  measure.Milliseconds, Target: measure.Ratio(0.11)},
				measure.Row{Name: "local-delete", What: "DELETE on the local engine until nothing is left but the record",
					Floor: "Docker's forced removal",
					Unit:  measure.Milliseconds, Target: measure.Ours(15)},
			}, measureLocalCreate),
			measure.Single(measure.Row{Name: "local-pause", What: "pause on the local engine, and resume to the next command's output",
				Floor: "Docker's pause and unpause",
				Unit:  measure.Milliseconds, Target: measure.Ours(5)},
				measurePause)),
		measure.Sharing(rig.OnLocal("runc", rig.Plan{}),
			measure.Single(measure.Row{Name: "local-create-runc", What: "cold create on the local engine with runc",
				Floor: "Docker's create and start, on its bridge",
				Unit:  measure.Milliseconds, Target: measure.Ours(75)},
				createWith)),
		measure.Sharing(rig.OnLocal("runsc", rig.Plan{}),
			measure.Single(measure.Row{Name: "local-create-runsc", What: "cold create on the local engine with runsc (gVisor)",
				Floor: "Docker's create and start, on its bridge",
				Unit:  measure.Milliseconds, Target: measure.Ours(230)},
				createWith)),
		measure.Sharing(rig.OnLocal("crun", rig.Plan{}),
			measure.Single(measure.Row{Name: "local-creates-100", What: "100 creates at once on the local engine: how many a second until all run",
				Floor: "Docker's create and start of as many, 16 at once",
				Unit:  measure.PerSecond, Target: measure.Ours(30)},
				measureLocalCrowd)),
	}
}

func measureLocalCreate(ctx context.Context, run *measure.Run, with rig.Beside) ([]measure.Pair, error) {
	r, err := measureCreate(ctx, run, with, atOnce)
	if err != nil {
		return nil, err
	}
	compared := r.create
	if run.Scale != measure.ScaleGate {
		if compared.Peer, err = measurePodman(ctx, run); err != nil {
			run.Progress("no rival: %v", err)
		}
	}
	return []measure.Pair{compared, r.create, r.create, r.remove}, nil
}

func createWith(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	r, err := measureCreate(ctx, run, with, atOnce)
	return r.create, err
}

// measureLocalCrowd asks for many sandboxes at once: how many a second become usable, from the
// first request until the last one runs.
func measureLocalCrowd(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	count := run.Rounds(localCrowd, 20)
	var rate measure.Pair
	for range run.Rounds(3, 1) {
		took, err := with.Engine.LaunchMany(ctx, count)
		if err != nil {
			return measure.Pair{}, fmt.Errorf("floor: %w", err)
		}
		rate.Floor.Add(float64(count) / slices.Max(took) * 1000)
		if err := with.Engine.Clean(ctx, rig.Label); err != nil {
			return measure.Pair{}, err
		}
		made, err := with.CreateMany(ctx, run, count)
		if err != nil {
			return measure.Pair{}, err
		}
		if len(made.Running) < count {
			rate.Ours.Fail()
		} else {
			rate.Ours.Add(float64(count) / slices.Max(made.Took.Values) * 1000)
		}
		if err := with.EndAll(ctx, made); err != nil {
			return measure.Pair{}, err
		}
	}
	return rate, nil
}
