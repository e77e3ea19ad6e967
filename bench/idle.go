package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

// localIdle is how many sandboxes do nothing, beside one that runs commands.
const localIdle = 500

// idle has many sandboxes that do nothing: what of ours each costs outside of it, and what a command
// in a random one of them takes beside one that is alone. The floor is not in turns with it: what the
// others cost the kernel, a lone sandbox of another service would pay for as well. Then all of them
// fall asleep.
func idle() group {
	asleep := row{name: "local-sleep-500", what: "processor time of service and keeper while these 500 sleep, of one core",
		floor: "the same before they are created",
		unit:  percent, target: difference(0.1)}
	return sharing(onLocal("crun", plan{}), part[beside]{[]row{
		row{name: "local-idle-500", what: "resident memory of service and keeper for each of 500 idle sandboxes",
			floor: "a minimal net/http program, idle",
			unit:  mebibytes, target: ours(1)},
		row{name: "local-command-500", what: "a command in a random one of these 500",
			floor: "the same in a sandbox that is alone",
			unit:  milliseconds, target: ratio(2)},
		asleep,
	}, func(ctx context.Context, run *bench, with beside) ([]pair, error) {
		return measureLocalIdle(ctx, run, with.service, run.wants(asleep))
	}})
}

func measureLocalIdle(ctx context.Context, run *bench, s *service, asleep bool) ([]pair, error) {
	_, alone, err := s.usable(ctx)
	if err != nil {
		return nil, err
	}
	var command, memory pair
	each := run.rounds(200, 20)
	for range each {
		if err := command.floor.timed(func() error { return alone.firstOutput(ctx) }); err != nil {
			return nil, err
		}
	}
	var sleep pair
	if asleep {
		if err := countBusy(ctx, run, s, &sleep.floor); err != nil {
			return nil, err
		}
	}
	before, err := s.residentWithKeeper()
	if err != nil {
		return nil, err
	}
	count := run.rounds(localIdle, 20)
	ids, err := s.runMany(ctx, run, count)
	if err != nil {
		return nil, err
	}
	daemons := make([]execd, count)
	if err := concurrently(ctx, count, func(ctx context.Context, i int) (err error) {
		if daemons[i], err = s.daemon(ctx, ids[i]); err != nil {
			return err
		}
		return daemons[i].firstOutput(ctx) // each answers
	}); err != nil {
		return nil, err
	}
	after, err := s.residentWithKeeper()
	if err != nil {
		return nil, err
	}
	memory.ours.add((after - before) / float64(count))
	floor, err := startFloor(ctx, run)
	if err != nil {
		return nil, err
	}
	defer floor.stop()
	least, err := floor.atRest(ctx)
	if err != nil {
		return nil, err
	}
	memory.floor.add(least)
	for range each {
		daemon := daemons[rand.IntN(count)]
		if err := command.ours.timed(func() error { return daemon.firstOutput(ctx) }); err != nil {
			return nil, err
		}
	}
	if asleep {
		err := allAsleep(ctx, s, ids)
		if err == nil {
			err = countBusy(ctx, run, s, &sleep.ours)
		}
		if err != nil {
			return nil, err
		}
	}
	return []pair{memory, command, sleep}, concurrently(ctx, count, func(ctx context.Context, i int) error { return s.delete(ctx, ids[i]) })
}

// allAsleep has sandboxes fall asleep once they are idle, and waits until they do.
func allAsleep(ctx context.Context, s *service, ids []string) error {
	err := concurrently(ctx, len(ids), func(ctx context.Context, i int) error { return sleepWhenIdle(ctx, s, ids[i]) })
	for i := 0; i < len(ids) && err == nil; i++ {
		err = awaitAsleep(ctx, s, ids[i])
	}
	return err
}

// countBusy counts the processor time that service and keeper take, in percent of a core.
func countBusy(ctx context.Context, run *bench, s *service, result *sample) error {
	pids, err := s.keepers()
	if err != nil {
		return err
	}
	pids = append(pids, s.command.Process.Pid)
	for range run.rounds(3, 1) {
		share, err := processorShare(ctx, pids...)
		if err != nil {
			return err
		}
		result.add(share)
	}
	return nil
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
