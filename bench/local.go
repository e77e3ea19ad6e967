package main

import (
	"context"
	"fmt"
	"slices"
)

// localCrowd is how many sandboxes are asked for at once.
const localCrowd = 100

// localCreates has sandboxes on the local engine beside Docker, in turns: the same sandboxes on
// another engine of the same service.
func localCreates() []group {
	return []group{
		sharing(onLocal("crun", plan{}),
			part[beside]{[]row{
				row{name: "local-create", what: "cold create on the local engine with crun: POST to the first output of a command",
					floor: "Docker's create and start, on its bridge",
					unit:  milliseconds, target: ours(30),
					peer: "Podman with crun, create and start of a container of the same image with the same limits of memory and processes and one port,"},
				row{name: "local-create-p99", what: "the slowest of these creates",
					floor: "Docker's create and start, on its bridge",
					unit:  milliseconds, target: tail(60)},
				row{name: "local-create-docker", what: "these creates as a part of Docker's",
					floor: "Docker's create and start, on its bridge",
					unit:  milliseconds, target: ratio(0.11)},
				row{name: "local-delete", what: "DELETE on the local engine until nothing is left but the record",
					floor: "Docker's forced removal",
					unit:  milliseconds, target: ours(15)},
			}, measureLocalCreate},
			one(row{name: "local-pause", what: "pause on the local engine, and resume to the next command's output",
				floor: "Docker's pause and unpause",
				unit:  milliseconds, target: ours(5)},
				measurePause)),
		sharing(onLocal("runc", plan{}),
			one(row{name: "local-create-runc", what: "cold create on the local engine with runc",
				floor: "Docker's create and start, on its bridge",
				unit:  milliseconds, target: ours(75)},
				createWith)),
		sharing(onLocal("runsc", plan{}),
			one(row{name: "local-create-runsc", what: "cold create on the local engine with runsc (gVisor)",
				floor: "Docker's create and start, on its bridge",
				unit:  milliseconds, target: ours(230)},
				createWith)),
		sharing(onLocal("crun", plan{}),
			one(row{name: "local-creates-100", what: "100 creates at once on the local engine: how many a second until all run",
				floor: "Docker's create and start of as many, 16 at once",
				unit:  perSecond, target: ours(30)},
				measureLocalCrowd)),
	}
}

func measureLocalCreate(ctx context.Context, run *bench, with beside) ([]pair, error) {
	r, err := measureCreate(ctx, run, with, atOnce)
	if err != nil {
		return nil, err
	}
	compared := r.create
	if run.scale != scaleGate {
		if compared.peer, err = measurePodman(ctx, run); err != nil {
			run.progress("no rival: %v", err)
		}
	}
	return []pair{compared, r.create, r.create, r.remove}, nil
}

func createWith(ctx context.Context, run *bench, with beside) (pair, error) {
	r, err := measureCreate(ctx, run, with, atOnce)
	return r.create, err
}

// measureLocalCrowd asks for many sandboxes at once: how many a second become usable, from the
// first request until the last one runs.
func measureLocalCrowd(ctx context.Context, run *bench, with beside) (pair, error) {
	count := run.rounds(localCrowd, 20)
	var rate pair
	for range run.rounds(3, 1) {
		took, err := with.engine.launchMany(ctx, count)
		if err != nil {
			return pair{}, fmt.Errorf("floor: %w", err)
		}
		rate.floor.add(float64(count) / slices.Max(took) * 1000)
		if err := with.engine.clean(ctx, label); err != nil {
			return pair{}, err
		}
		made, err := with.createMany(ctx, run, count)
		if err != nil {
			return pair{}, err
		}
		if len(made.running) < count {
			rate.ours.fail()
		} else {
			rate.ours.add(float64(count) / slices.Max(made.took.values) * 1000)
		}
		if err := with.endAll(ctx, made); err != nil {
			return pair{}, err
		}
	}
	return rate, nil
}
