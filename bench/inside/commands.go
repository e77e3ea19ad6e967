// Package inside has the rows of execd, which does the work inside of a sandbox.
package inside

import (
	"context"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// Commands has how fast a command begins and ends, of one client on one kept connection.
func Commands() measure.Group {
	return measure.Sharing(withDaemon,
		measure.Single(measure.Row{Name: "command", What: "command `true`: POST to its completion event",
			Floor: "fork, exec and wait of `bash -c true`",
			Unit:  measure.Milliseconds, Target: measure.Ratio(1.5), Gate: true},
			func(ctx context.Context, run *measure.Run, with daemonAndWorker) (measure.Pair, error) {
				return run.InTurns(ctx, run.Rounds(1000, 100), measure.Sides{Ours: with.roundTrip, Floor: with.floor.Job("spawn")})
			}),
		measure.Single(measure.Row{Name: "first-byte", What: "first byte of a command's output",
			Floor: "the same process read through a pipe",
			Unit:  measure.Milliseconds, Target: measure.Difference(2), Gate: true},
			func(ctx context.Context, run *measure.Run, with daemonAndWorker) (measure.Pair, error) {
				return run.InTurns(ctx, run.Rounds(500, 50), measure.Sides{Ours: with.firstByte, Floor: with.floor.Job("first-byte")})
			}),
		measure.Single(measure.Row{Name: "stop", What: "interrupt of a command until its stream has reported the end",
			Floor: "SIGTERM and wait of the same process",
			Unit:  measure.Milliseconds, Target: measure.Difference(2), Gate: true},
			func(ctx context.Context, run *measure.Run, with daemonAndWorker) (measure.Pair, error) {
				return run.InTurns(ctx, run.Rounds(500, 50), measure.Sides{Ours: with.stopped, Floor: with.floor.Job("stop")})
			}))
}

// daemonAndWorker is a daemon that the bench started, and what does the floor's jobs.
type daemonAndWorker struct {
	daemon rig.Execd
	floor  rig.Worker
}

func withDaemon(ctx context.Context, run *measure.Run, do func(daemonAndWorker) error) error {
	p, daemon, err := rig.StartExecd(ctx, run)
	if err != nil {
		return err
	}
	defer p.Stop()
	floor, err := rig.StartWorker(ctx, run)
	if err != nil {
		return err
	}
	defer floor.Stop()
	return do(daemonAndWorker{daemon, floor})
}

// roundTrip is the time from the request to the completion event, in milliseconds.
func (with daemonAndWorker) roundTrip(ctx context.Context) (float64, error) {
	began := time.Now()
	s, err := with.daemon.Run(ctx, "true")
	if err != nil {
		return 0, err
	}
	_, err = s.Until(rig.EventComplete)
	took := measure.Elapsed(began)
	if err != nil {
		s.Abandon()
		return 0, err
	}
	return took, s.Finish()
}

// printThenSleep prints at once and then goes on running, so that the end of the process cannot be
// what delivers the output.
const printThenSleep = "echo x; exec sleep 60"

// firstByte is the time from the request to the first output, in milliseconds.
func (with daemonAndWorker) firstByte(ctx context.Context) (float64, error) {
	began := time.Now()
	s, err := with.daemon.Run(ctx, printThenSleep)
	if err != nil {
		return 0, err
	}
	defer s.Abandon()
	_, err = s.Until(rig.EventStdout)
	took := measure.Elapsed(began)
	if err != nil {
		return 0, err
	}
	if err := with.daemon.Interrupt(ctx, s.ID); err != nil {
		return 0, err
	}
	return took, s.Finish()
}

// stopped is the time from the request to interrupt a command until its stream has reported the
// end, in milliseconds.
func (with daemonAndWorker) stopped(ctx context.Context) (float64, error) {
	s, err := with.daemon.Run(ctx, printThenSleep)
	if err != nil {
		return 0, err
	}
	defer s.Abandon()
	if _, err := s.Until(rig.EventStdout); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := with.daemon.Interrupt(ctx, s.ID); err != nil {
		return 0, err
	}
	if _, err := s.Until(rig.EventError); err != nil {
		return 0, err
	}
	return measure.Elapsed(began), s.Finish()
}
