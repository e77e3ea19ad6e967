package main

import (
	"context"
	"time"
)

// measureCommands measures how fast a command begins and ends, one client on one kept connection.
func (b *bench) measureCommands(ctx context.Context) error {
	p, daemon, err := b.startExecd(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	floor, err := b.startWorker(ctx)
	if err != nil {
		return err
	}
	defer floor.Stop()
	if b.selected(rowCommand) {
		err := b.inTurns(ctx, rowCommand, b.rounds(1000, 100), sides{
			ours:  daemon.roundTrip,
			floor: floor.one("spawn"),
		})
		if err != nil {
			return err
		}
	}
	for _, row := range []struct {
		name    string
		measure func(context.Context) (float64, error)
		floor   string
	}{{rowFirstByte, daemon.firstByte, "first-byte"}, {rowStop, daemon.stopped, "stop"}} {
		if !b.selected(row.name) {
			continue
		}
		if err := b.inTurns(ctx, row.name, b.rounds(500, 50),
			sides{ours: row.measure, floor: floor.one(row.floor)}); err != nil {
			return err
		}
	}
	return nil
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
