package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// What the row of many commands that are waited for at once does.
const (
	waitedCommands  = 1500
	waitedSandboxes = 50
	waitedPace      = time.Second / 50 // between two requests
	waitedEnds      = 20 * time.Second // within which the commands end, once all of them run
)

// Waits has many commands in sandboxes of one service, all at the same time, with a request for
// each and no other: how long after the end of each its client has the event that reports the end.
func Waits() measure.Group {
	return measure.Sharing(rig.OnLocal("crun", rig.Plan{}),
		measure.Single(measure.Row{Name: "waits-1500", What: "1500 commands that run at once in 50 sandboxes, through the service with 50 requests a second: the latest report of an end",
			Floor: "a process of the same command line, waited for directly",
			Unit:  measure.Milliseconds, Target: measure.Tail(250)}, // the worst of its few rounds
			measureWaits))
}

func measureWaits(ctx context.Context, run *measure.Run, with rig.Beside) (late measure.Pair, err error) {
	count := run.Rounds(waitedSandboxes, 5)
	ids, err := with.RunMany(ctx, run, count)
	if err != nil {
		return late, err
	}
	daemons := make([]rig.Execd, count)
	err = measure.Concurrently(ctx, count, func(ctx context.Context, i int) (err error) {
		daemons[i], err = with.DaemonThroughService(ctx, ids[i])
		return err
	})
	if err != nil {
		return late, err
	}
	for range run.Rounds(3, 1) {
		took, err := waitForAll(ctx, daemons, run.Rounds(waitedCommands, 100))
		if err != nil {
			return late, err
		}
		late.Ours.Add(slices.Max(took))
		late.Ours.Requests = append(late.Ours.Requests, took...)
		floor, err := lateLocally(ctx)
		if err != nil {
			return late, err
		}
		late.Floor.Add(floor)
	}
	return late, nil
}

// waitForAll runs the commands and returns how late the end of each was reported, in milliseconds.
func waitForAll(ctx context.Context, daemons []rig.Execd, count int) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	pace := time.NewTicker(waitedPace)
	defer pace.Stop()
	took, failures := make([]float64, count), make([]error, count)
	allRun := time.Now().Add(time.Duration(count) * waitedPace)
	var group sync.WaitGroup
	defer group.Wait() // also when ctx ends before all of them were started
	for i := range count {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		sleep := time.Until(allRun) + rand.N(waitedEnds)
		group.Go(func() { took[i], failures[i] = late(ctx, daemons[i%len(daemons)], sleep) })
	}
	group.Wait()
	return took, errors.Join(failures...)
}

// printsItsEnd is a command line whose last act is to print the time, in nanoseconds.
func printsItsEnd(sleep time.Duration) string {
	return fmt.Sprintf("sleep %.3f; date +%%s%%N", max(0, sleep.Seconds()))
}

// late runs a command and returns how long after its end that was reported, in milliseconds.
func late(ctx context.Context, d rig.Execd, sleep time.Duration) (float64, error) {
	s, err := d.Run(ctx, printsItsEnd(sleep))
	if err != nil {
		return 0, err
	}
	printed, err := s.Until(rig.EventStdout)
	if err != nil {
		s.Abandon()
		return 0, err
	}
	text := string(printed.Text)
	if _, err := s.Until(rig.EventComplete); err != nil {
		s.Abandon()
		return 0, err
	}
	now := time.Now()
	took, err := since(text, now)
	return took, errors.Join(err, s.Finish())
}

// lateLocally is late for a process that is waited for directly.
func lateLocally(ctx context.Context) (float64, error) {
	printed, err := exec.CommandContext(ctx, "bash", "-c", printsItsEnd(0)).Output()
	if err != nil {
		return 0, err
	}
	return since(strings.TrimSpace(string(printed)), time.Now())
}

// since returns the milliseconds from a time in nanoseconds until now.
func since(nanoseconds string, now time.Time) (float64, error) {
	ended, err := strconv.ParseInt(nanoseconds, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: the command printed %q", measure.ErrLost, nanoseconds)
	}
	return float64(now.UnixNano()-ended) / float64(time.Millisecond), nil
}
