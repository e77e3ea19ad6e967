package main

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"time"
)

// rest is how long a server is left alone before its memory is read.
const rest = 300 * time.Millisecond

// openStreams is how many streams the row with open streams has.
const openStreams = 1000

// serverLoad is what a fresh server is put under before its memory is read. What it returns undoes
// it.
type serverLoad struct {
	ours  func(context.Context, execd) (undo func(), err error)
	floor func(context.Context, *process) (undo func(), err error)
}

// measureMemory reads the resident memory of fresh servers, each in a process of its own.
func (b *bench) measureMemory(ctx context.Context, name string, rounds int, l serverLoad) error {
	return b.inTurns(ctx, name, rounds, sides{
		ours: func(ctx context.Context) (float64, error) {
			p, daemon, err := b.startExecd(ctx)
			if err != nil {
				return 0, err
			}
			defer p.stop()
			undo, err := l.ours(ctx, daemon)
			defer undo()
			if err != nil {
				return 0, err
			}
			return atRest(ctx, p)
		},
		floor: func(ctx context.Context) (float64, error) {
			p, err := b.startFloor(ctx)
			if err != nil {
				return 0, err
			}
			defer p.stop()
			undo, err := l.floor(ctx, p)
			defer undo()
			if err != nil {
				return 0, err
			}
			return atRest(ctx, p)
		},
	})
}

// settled is how long after a burst the memory of execd is to be small again.
const settled = 10 * time.Second

// measureAfterBurst opens a thousand streams, ends them and uploads a file, and reads the memory
// some time later.
func (b *bench) measureAfterBurst(ctx context.Context) error {
	dir, err := b.directory("burst")
	if err != nil {
		return err
	}
	c := newContent(b.bytes(transferSize))
	after := func(ctx context.Context, err error) (func(), error) {
		if err != nil {
			return nothing, err
		}
		return nothing, pause(ctx, settled)
	}
	return b.measureMemory(ctx, rowAfterBurst, b.rounds(2, 1), serverLoad{
		ours: func(ctx context.Context, daemon execd) (func(), error) {
			var ids []string
			closeAll, err := openAll(ctx, func(ctx context.Context) (*http.Response, error) {
				s, err := daemon.run(ctx, "exec sleep 600")
				if err != nil {
					return nil, err
				}
				ids = append(ids, s.id)
				_, err = s.until(eventInit)
				return s.response, err
			})
			for _, id := range ids {
				err = errors.Join(err, daemon.interrupt(ctx, id))
			}
			closeAll()
			if err == nil {
				err = c.uploadTo(ctx, daemon, filepath.Join(dir, "uploaded"))
			}
			return after(ctx, err)
		},
		floor: func(ctx context.Context, floor *process) (func(), error) {
			closeAll, err := openAll(ctx, floor.stream)
			closeAll()
			if err == nil {
				err = c.uploadToFloor(ctx, floor)
			}
			return after(ctx, err)
		},
	})
}

// measureStart starts servers.
func (b *bench) measureStart(ctx context.Context) error {
	took := func(p *process, err error) (float64, error) {
		if err != nil {
			return 0, err
		}
		defer p.stop()
		return float64(p.took) / float64(time.Millisecond), nil
	}
	return b.inTurns(ctx, rowStart, b.rounds(50, 10), sides{
		ours: func(ctx context.Context) (float64, error) {
			p, _, err := b.startExecd(ctx)
			return took(p, err)
		},
		floor: func(ctx context.Context) (float64, error) { return took(b.startFloor(ctx)) },
	})
}

func atRest(ctx context.Context, p *process) (float64, error) {
	if err := pause(ctx, rest); err != nil {
		return 0, err
	}
	return p.resident()
}

// pause waits for as long as that, or returns why the run has ended.
func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func nothing() {}

func (b *bench) measureIdle(ctx context.Context) error {
	return b.measureMemory(ctx, rowIdle, b.rounds(5, 2), serverLoad{
		ours:  func(context.Context, execd) (func(), error) { return nothing, nil },
		floor: func(context.Context, *process) (func(), error) { return nothing, nil },
	})
}

func (b *bench) measureAfterUpload(ctx context.Context) error {
	dir, err := b.directory("upload")
	if err != nil {
		return err
	}
	c := newContent(b.bytes(transferSize))
	return b.measureMemory(ctx, rowAfterUpload, b.rounds(3, 1), serverLoad{
		ours: func(ctx context.Context, daemon execd) (func(), error) {
			return nothing, c.uploadTo(ctx, daemon, filepath.Join(dir, "uploaded"))
		},
		floor: func(ctx context.Context, floor *process) (func(), error) {
			return nothing, c.uploadToFloor(ctx, floor)
		},
	})
}

// measureOpenStreams opens a thousand streams. On our side each belongs to a command of its own
// that is running, which costs the daemon a process to watch, two pipes and a log beside the
// connection.
func (b *bench) measureOpenStreams(ctx context.Context) error {
	return b.measureMemory(ctx, rowStreams, b.rounds(2, 1), serverLoad{
		ours: func(ctx context.Context, daemon execd) (func(), error) {
			return openAll(ctx, func(ctx context.Context) (*http.Response, error) {
				s, err := daemon.run(ctx, "exec sleep 600")
				if err != nil {
					return nil, err
				}
				_, err = s.until(eventInit)
				return s.response, err
			})
		},
		floor: func(ctx context.Context, floor *process) (func(),
			error) {
			return openAll(ctx, floor.stream)
		},
	})
}

// stream opens a response of the floor that goes on.
func (p *process) stream(ctx context.Context) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/stream", nil)
	if err != nil {
		return nil, err
	}
	return send(p.client, request, http.StatusOK)
}

func openAll(ctx context.Context,
	open func(context.Context) (*http.Response, error)) (closeAll func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	for range openStreams {
		if _, err := open(ctx); err != nil {
			return cancel, err
		}
	}
	return cancel, nil
}
