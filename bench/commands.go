package main

import (
	"context"
	"time"
)

// commands has how fast a command begins and ends, of one client on one kept connection.
func commands() group {
	return sharing(withDaemon,
		one(row{name: "command", what: "command `true`: POST to its completion event",
			floor: "fork, exec and wait of `bash -c true`",
			unit:  milliseconds, target: ratio(1.5), gate: true},
			func(ctx context.Context, run *bench, with daemonAndWorker) (pair, error) {
				return run.inTurns(ctx, run.rounds(1000, 100), sides{ours: with.daemon.roundTrip, floor: with.floor.one("spawn")})
			}),
		one(row{name: "first-byte", what: "first byte of a command's output",
			floor: "the same process read through a pipe",
			unit:  milliseconds, target: difference(2), gate: true},
			func(ctx context.Context, run *bench, with daemonAndWorker) (pair, error) {
				return run.inTurns(ctx, run.rounds(500, 50), sides{ours: with.daemon.firstByte, floor: with.floor.one("first-byte")})
			}),
		one(row{name: "stop", what: "interrupt of a command until its stream has reported the end",
			floor: "SIGTERM and wait of the same process",
			unit:  milliseconds, target: difference(2), gate: true},
			func(ctx context.Context, run *bench, with daemonAndWorker) (pair, error) {
				return run.inTurns(ctx, run.rounds(500, 50), sides{ours: with.daemon.stopped, floor: with.floor.one("stop")})
			}))
}

// daemonAndWorker is a daemon that the bench started, and what does the floor's jobs.
type daemonAndWorker struct {
	daemon execd
	floor  worker
}

func withDaemon(ctx context.Context, run *bench, do func(daemonAndWorker) error) error {
	p, daemon, err := startExecd(ctx, run)
	if err != nil {
		return err
	}
	defer p.stop()
	floor, err := startWorker(ctx, run)
	if err != nil {
		return err
	}
	defer floor.Stop()
	return do(daemonAndWorker{daemon, floor})
}

// roundTrip is the time from the request to the completion event, in milliseconds.
func (d execd) roundTrip(ctx context.Context) (float64, error) {
	began := time.Now()
	s, err := d.run(ctx, "true")
	if err != nil {
		return 0, err
	}
	_, err = s.until(eventComplete)
	took := elapsed(began)
	if err != nil {
		s.abandon()
		return 0, err
	}
	return took, s.finish()
}

// printThenSleep prints at once and then goes on running, so that the end of the process cannot be
// what delivers the output.
const printThenSleep = "echo x; exec sleep 60"

func (d execd) firstByte(ctx context.Context) (float64, error) {
	began := time.Now()
	s, err := d.run(ctx, printThenSleep)
	if err != nil {
		return 0, err
	}
	defer s.abandon()
	_, err = s.until(eventStdout)
	took := elapsed(began)
	if err != nil {
		return 0, err
	}
	if err := d.interrupt(ctx, s.id); err != nil {
		return 0, err
	}
	return took, s.finish()
}

// stopped is the time from the request to interrupt a command until its stream has reported the
// end, in milliseconds.
func (d execd) stopped(ctx context.Context) (float64, error) {
	s, err := d.run(ctx, printThenSleep)
	if err != nil {
		return 0, err
	}
	defer s.abandon()
	if _, err := s.until(eventStdout); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := d.interrupt(ctx, s.id); err != nil {
		return 0, err
	}
	if _, err := s.until(eventError); err != nil {
		return 0, err
	}
	return elapsed(began), s.finish()
}
