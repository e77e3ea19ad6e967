package main

import (
	"context"
	"io"
	"os/exec"
	"time"
)

// measureCommands measures how fast a command begins and ends, one client on one kept connection.
func (b *bench) measureCommands(ctx context.Context) error {
	p, daemon, err := b.startExecd(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	bash, err := exec.LookPath("bash")
	if err != nil {
		return err
	}
	if b.wants(rowCommand) {
		err := b.inTurns(ctx, rowCommand, b.rounds(1000, 100), sides{
			ours: daemon.roundTrip,
			floor: func(context.Context) (float64, error) {
				began := time.Now()
				err := exec.Command(bash, "-c", "true").Run()
				return elapsed(began), err
			},
		})
		if err != nil {
			return err
		}
	}
	if b.wants(rowFirstByte) {
		return b.inTurns(ctx, rowFirstByte, b.rounds(500, 50), sides{
			ours:  daemon.firstByte,
			floor: func(ctx context.Context) (float64, error) { return firstByteOf(ctx, bash) },
		})
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

// sayAndStay prints at once and then goes on running, so that the end of the process cannot be what delivers the output.
const sayAndStay = "echo x; exec sleep 60"

func (d execd) firstByte(ctx context.Context) (float64, error) {
	began := time.Now()
	s, err := d.run(ctx, sayAndStay)
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

func firstByteOf(ctx context.Context, bash string) (float64, error) {
	began := time.Now()
	process := exec.CommandContext(ctx, bash, "-c", sayAndStay)
	pipe, err := process.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := process.Start(); err != nil {
		return 0, err
	}
	var first [1]byte
	_, err = io.ReadFull(pipe, first[:])
	took := elapsed(began)
	process.Process.Kill()
	process.Wait() // killed on purpose
	return took, err
}
