package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/bench/pattern"
)

// streams has how much output gets through. The client takes every event apart and compares every
// byte; it runs on the same cores as the server, so part of the figure is the client's.
func streams() group {
	return sharing(withDaemon,
		one(row{name: "lines", what: "lines of `seq`, one event each, compared byte by byte",
			floor: "`bufio.Scanner` on the pipe",
			unit:  perSecond, target: ours(1e6), gate: true},
			func(ctx context.Context, run *bench, with daemonAndWorker) (pair, error) {
				lines := int64(run.rounds(1_000_000, 125_000))
				var expected []byte
				for i := range lines {
					expected = append(strconv.AppendInt(expected, i+1, 10), '\n')
				}
				command := fmt.Sprintf("seq %d", lines)
				return run.inTurns(ctx, run.rounds(7, 2), sides{
					ours: func(ctx context.Context) (float64, error) {
						took, err := with.daemon.transfer(ctx, command, &pattern.Checker{Bytes: expected, Size: int64(len(expected))})
						return float64(lines) / took.Seconds(), err
					},
					floor: func(context.Context) (float64, error) {
						took, err := with.floor.Do("scan", command, strconv.FormatInt(lines, 10))
						if err != nil {
							return 0, err
						}
						return 1000 * float64(lines) / took[0], nil
					},
				})
			}),
		one(row{name: "stream", what: "lines of 1000 bytes streamed, compared byte by byte",
			floor: "reading the pipe, compared byte by byte",
			unit:  mebiPerSec, target: ours(200)},
			func(ctx context.Context, run *bench, with daemonAndWorker) (pair, error) {
				size := run.bytes(512<<20) / 1000 * 1000
				// what pattern.Lines expects
				command := fmt.Sprintf("yes %s | head -c %d", strings.Repeat("x", 999), size)
				return run.inTurns(ctx, run.rounds(3, 2), sides{
					ours: func(ctx context.Context) (float64, error) {
						took, err := with.daemon.transfer(ctx, command, pattern.Lines(size))
						return float64(size) / (1 << 20) / took.Seconds(), err
					},
					floor: func(context.Context) (float64, error) {
						took, err := with.floor.Do("pipe", command, strconv.FormatInt(size, 10))
						if err != nil {
							return 0, err
						}
						return 1000 * float64(size) / (1 << 20) / took[0], nil
					},
				})
			}))
}

// transfer runs a command and compares all of its output. The time is from the request to the
// completion event.
func (d execd) transfer(ctx context.Context, command string,
	expected *pattern.Checker) (time.Duration, error) {
	began := time.Now()
	s, err := d.run(ctx, command)
	if err != nil {
		return 0, err
	}
	defer s.abandon()
	for {
		e, err := s.next()
		if errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("%w: the stream ended without a terminal event", errLost)
		}
		if err != nil {
			return 0, err
		}
		switch e.kind {
		case eventStdout:
			if err := takeEvent(expected, e); err != nil {
				return 0, err
			}
		case eventError:
			return 0, errors.New("the command failed")
		case eventComplete:
			took := time.Since(began)
			if err := lost(expected.End()); err != nil {
				return 0, err
			}
			return took, s.finish()
		}
	}
}

var newline = []byte{'\n'}

// takeEvent compares the output that an event stands for.
func takeEvent(expected *pattern.Checker, e event) error {
	line, whole := e.output()
	err := expected.Take(line)
	if err == nil && whole {
		err = expected.Take(newline)
	}
	return lost(err)
}

// lost marks a difference between what was sent and what came.
func lost(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errLost, err)
}
