package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// measureStreams measures how much output gets through. The client takes every event apart and compares every byte; it
// runs on the same cores as the server, so part of the figure is the client's.
func (b *bench) measureStreams(ctx context.Context) error {
	p, daemon, err := b.startExecd(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	if b.wants(rowLines) {
		lines := int64(b.rounds(1_000_000, 125_000))
		var expected []byte
		for i := range lines {
			expected = append(strconv.AppendInt(expected, i+1, 10), '\n')
		}
		command := fmt.Sprintf("seq %d", lines)
		err := b.inTurns(ctx, rowLines, b.rounds(7, 2), sides{
			ours: func(ctx context.Context) (float64, error) {
				took, err := daemon.transfer(ctx, command, &checker{pattern: expected, size: int64(len(expected))})
				return float64(lines) / took.Seconds(), err
			},
			floor: func(ctx context.Context) (float64, error) {
				took, err := scan(ctx, command, lines)
				return float64(lines) / took.Seconds(), err
			},
		})
		if err != nil {
			return err
		}
	}
	if b.wants(rowStream) {
		line := strings.Repeat("x", 999)
		size := b.bytes(512<<20) / 1000 * 1000
		command := fmt.Sprintf("yes %s | head -c %d", line, size)
		expected := func() *checker { return &checker{pattern: []byte(strings.Repeat(line+"\n", 64)), size: size} }
		return b.inTurns(ctx, rowStream, b.rounds(3, 2), sides{
			ours: func(ctx context.Context) (float64, error) {
				took, err := daemon.transfer(ctx, command, expected())
				return float64(size) / (1 << 20) / took.Seconds(), err
			},
			floor: func(ctx context.Context) (float64, error) {
				took, err := pipe(ctx, command, expected())
				return float64(size) / (1 << 20) / took.Seconds(), err
			},
		})
	}
	return nil
}

// transfer runs a command and compares all of its output. The time is from the request to the completion event.
func (d execd) transfer(ctx context.Context, command string, expected *checker) (time.Duration, error) {
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
			if err := expected.takeEvent(e); err != nil {
				return 0, err
			}
		case eventError:
			return 0, errors.New("the command failed")
		case eventComplete:
			took := time.Since(began)
			if err := expected.end(); err != nil {
				return 0, err
			}
			return took, s.finish()
		}
	}
}

// piped runs a command and lets read have its output. The time is from the start to the end of the process.
func piped(ctx context.Context, command string, read func(io.Reader) error) (time.Duration, error) {
	began := time.Now()
	process := exec.CommandContext(ctx, "bash", "-c", command)
	out, err := process.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := process.Start(); err != nil {
		return 0, err
	}
	readErr := read(out)
	err = process.Wait()
	return time.Since(began), errors.Join(readErr, err)
}

func scan(ctx context.Context, command string, lines int64) (time.Duration, error) {
	return piped(ctx, command, func(out io.Reader) error {
		scanner := bufio.NewScanner(out)
		var seen int64
		for scanner.Scan() {
			seen++
		}
		if seen != lines {
			return fmt.Errorf("%d lines of %d", seen, lines)
		}
		return scanner.Err()
	})
}

func pipe(ctx context.Context, command string, expected *checker) (time.Duration, error) {
	return piped(ctx, command, func(out io.Reader) error {
		buffer := make([]byte, 64<<10)
		for {
			n, err := out.Read(buffer)
			if err := expected.take(buffer[:n]); err != nil {
				return err
			}
			if errors.Is(err, io.EOF) {
				return expected.end()
			}
			if err != nil {
				return err
			}
		}
	})
}
