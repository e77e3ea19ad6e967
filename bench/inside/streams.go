package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/pattern"
	"sandbox.internal/bench/rig"
)

// Streams has how much output gets through. The client takes every event apart and compares every
// byte; it runs on the same cores as the server, so part of the figure is the client's.
func Streams() measure.Group {
	return measure.Sharing(withDaemon,
		measure.Single(measure.Row{Name: "lines", What: "lines of `seq`, one event each, compared byte by byte",
			Floor: "`bufio.Scanner` on the pipe",
			Unit:  measure.PerSecond, Target: measure.Ours(1e6), Gate: true},
			func(ctx context.Context, run *measure.Run, with daemonAndWorker) (measure.Pair, error) {
				lines := int64(run.Rounds(1_000_000, 125_000))
				var expected []byte
				for i := range lines {
					expected = append(strconv.AppendInt(expected, i+1, 10), '\n')
				}
				command := fmt.Sprintf("seq %d", lines)
				return run.InTurns(ctx, run.Rounds(7, 2), measure.Sides{
					Ours: func(ctx context.Context) (float64, error) {
						took, err := transfer(ctx, with.daemon, command, &pattern.Checker{Bytes: expected, Size: int64(len(expected))})
						return float64(lines) / took.Seconds(), err
					},
					Floor: func(context.Context) (float64, error) {
						took, err := with.floor.Do("scan", command, strconv.FormatInt(lines, 10))
						if err != nil {
							return 0, err
						}
						return 1000 * float64(lines) / took[0], nil
					},
				})
			}),
		measure.Single(measure.Row{Name: "stream", What: "lines of 1000 bytes streamed, compared byte by byte",
			Floor: "reading the pipe, compared byte by byte",
			Unit:  measure.MebiPerSec, Target: measure.Ours(200)},
			func(ctx context.Context, run *measure.Run, with daemonAndWorker) (measure.Pair, error) {
				size := run.Bytes(512<<20) / 1000 * 1000
				// what pattern.Lines expects
				command := fmt.Sprintf("yes %s | head -c %d", strings.Repeat("x", 999), size)
				return run.InTurns(ctx, run.Rounds(3, 2), measure.Sides{
					Ours: func(ctx context.Context) (float64, error) {
						took, err := transfer(ctx, with.daemon, command, pattern.Lines(size))
						return float64(size) / (1 << 20) / took.Seconds(), err
					},
					Floor: func(context.Context) (float64, error) {
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
func transfer(ctx context.Context, d rig.Execd, command string,
	expected *pattern.Checker) (time.Duration, error) {
	began := time.Now()
	s, err := d.Run(ctx, command)
	if err != nil {
		return 0, err
	}
	defer s.Abandon()
	for {
		e, err := s.Read()
		if errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("%w: the stream ended without a terminal event", measure.ErrLost)
		}
		if err != nil {
			return 0, err
		}
		switch e.Kind {
		case rig.EventStdout:
			if err := takeEvent(expected, e); err != nil {
				return 0, err
			}
		case rig.EventError:
			return 0, errors.New("the command failed")
		case rig.EventComplete:
			took := time.Since(began)
			if err := measure.Lost(expected.End()); err != nil {
				return 0, err
			}
			return took, s.Finish()
		}
	}
}

var newline = []byte{'\n'}

// takeEvent compares the output that an event stands for.
func takeEvent(expected *pattern.Checker, e rig.Event) error {
	line, whole := e.Output()
	err := expected.Take(line)
	if err == nil && whole {
		err = expected.Take(newline)
	}
	return measure.Lost(err)
}
