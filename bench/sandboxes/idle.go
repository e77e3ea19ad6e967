package sandboxes

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// localIdle is how many sandboxes do nothing, beside one that runs commands.
const localIdle = 500

// Idle has many sandboxes that do nothing: what of ours each costs outside of it, and what a
// command in a random one of them takes beside one that is alone. The floor is not in turns with
// it: what the others cost the kernel, a lone sandbox of another service would pay for as well.
// Then all of them fall asleep.
func Idle() measure.Group {
	asleep := measure.Row{Name: "local-sleep-500", What: "processor time of service and keeper while these 500 sleep, of one core",
		Floor: "the same before they are created",
		Unit:  measure.Percent, Target: measure.Difference(0.1)}
	return measure.Sharing(rig.OnLocal("crun", rig.Plan{}), measure.Several([]measure.Row{
		measure.Row{Name: "local-idle-500", What: "resident memory of service and keeper for each of 500 idle sandboxes",
			Floor: "a minimal net/http program, idle",
			Unit:  measure.Mebibytes, Target: measure.Ours(1)},
		measure.Row{Name: "local-command-500", What: "a command in a random one of these 500",
			Floor: "the same in a sandbox that is alone",
			Unit:  measure.Milliseconds, Target: measure.Ratio(2)},
		asleep,
	}, func(ctx context.Context, run *measure.Run, with rig.Beside) ([]measure.Pair, error) {
		return measureLocalIdle(ctx, run, with.Service, run.Wants(asleep))
	}))
}

func measureLocalIdle(ctx context.Context, run *measure.Run, s *rig.Service, asleep bool) ([]measure.Pair, error) {
	_, alone, err := s.Usable(ctx)
	if err != nil {
		return nil, err
	}
	var command, memory measure.Pair
	each := run.Rounds(200, 20)
	for range each {
		if err := command.Floor.Timed(func() error { return alone.FirstOutput(ctx) }); err != nil {
			return nil, err
		}
	}
	var sleep measure.Pair
	if asleep {
		if err := countBusy(ctx, run, s, &sleep.Floor); err != nil {
			return nil, err
		}
	}
	before, err := residentWithKeeper(s)
	if err != nil {
		return nil, err
	}
	count := run.Rounds(localIdle, 20)
	ids, err := s.RunMany(ctx, run, count)
	if err != nil {
		return nil, err
	}
	daemons := make([]rig.Execd, count)
	if err := measure.Concurrently(ctx, count, func(ctx context.Context, i int) (err error) {
		if daemons[i], err = s.Daemon(ctx, ids[i]); err != nil {
			return err
		}
		return daemons[i].FirstOutput(ctx) // each answers
	}); err != nil {
		return nil, err
	}
	after, err := residentWithKeeper(s)
	if err != nil {
		return nil, err
	}
	memory.Ours.Add((after - before) / float64(count))
	floor, err := rig.StartFloor(ctx, run)
	if err != nil {
		return nil, err
	}
	defer floor.Stop()
	least, err := floor.AtRest(ctx)
	if err != nil {
		return nil, err
	}
	memory.Floor.Add(least)
	for range each {
		daemon := daemons[rand.IntN(count)]
		if err := command.Ours.Timed(func() error { return daemon.FirstOutput(ctx) }); err != nil {
			return nil, err
		}
	}
	if asleep {
		err := allAsleep(ctx, s, ids)
		if err == nil {
			err = countBusy(ctx, run, s, &sleep.Ours)
		}
		if err != nil {
			return nil, err
		}
	}
	return []measure.Pair{memory, command, sleep}, measure.Concurrently(ctx, count, func(ctx context.Context, i int) error { return s.Delete(ctx, ids[i]) })
}

// allAsleep has sandboxes fall asleep once they are idle, and waits until they do.
func allAsleep(ctx context.Context, s *rig.Service, ids []string) error {
	err := measure.Concurrently(ctx, len(ids), func(ctx context.Context, i int) error { return sleepWhenIdle(ctx, s, ids[i]) })
	for i := 0; i < len(ids) && err == nil; i++ {
		err = awaitAsleep(ctx, s, ids[i])
	}
	return err
}

// countBusy counts the processor time that service and keeper take, in percent of a core.
func countBusy(ctx context.Context, run *measure.Run, s *rig.Service, result *measure.Sample) error {
	pids, err := keepers(s)
	if err != nil {
		return err
	}
	pids = append(pids, s.Command.Process.Pid)
	for range run.Rounds(3, 1) {
		share, err := rig.ProcessorShare(ctx, pids...)
		if err != nil {
			return err
		}
		result.Add(share)
	}
	return nil
}

// residentWithKeeper returns the memory of the service and of the process that starts its
// sandboxes.
func residentWithKeeper(s *rig.Service) (float64, error) {
	total, err := s.Resident()
	if err != nil {
		return 0, err
	}
	pids, err := keepers(s)
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		keeper, err := rig.ResidentOf(pid)
		if err != nil {
			return 0, err
		}
		total += keeper
	}
	return total, nil
}

// keepers returns the processes that start the sandboxes of a service of this run.
func keepers(s *rig.Service) (pids []int, err error) {
	program := append([]byte(filepath.Join(filepath.Dir(s.Command.Path), "sandbox-keeper")), 0)
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
