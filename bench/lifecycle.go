package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// measureLifecycle measures sandboxes on a real engine, one at a time.
func (b *bench) measureLifecycle(ctx context.Context) (err error) {
	engine, err := openEngine(ctx)
	if err != nil {
		return err
	}
	s, err := b.startService(ctx)
	if err != nil {
		return err
	}
	defer func() {
		s.stop()
		err = errors.Join(err, engine.clean(ctx, label, "sandbox.internal/instance="+s.instance))
	}()
	if b.wants(rowCreate) || b.wants(rowAccept) {
		if err := b.measureCreate(ctx, s, engine); err != nil {
			return err
		}
	}
	if !b.wants(rowPause) {
		return nil
	}
	id, err := s.create(ctx)
	if err != nil {
		return err
	}
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	if err != nil {
		return err
	}
	return b.measurePause(ctx, s, daemon, engine, id)
}

// measureCreate measures sandboxes from nothing to the first output, and how soon the service says that it will make
// them: it says so when the record is safe.
func (b *bench) measureCreate(ctx context.Context, s *service, engine *engine) error {
	record, err := os.OpenFile(filepath.Join(s.dataDir, "floor"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer record.Close() // synced as it is written
	var accept pair
	err = b.inTurns(ctx, rowCreate, b.rounds(20, 3), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			id, err := s.create(ctx)
			if err != nil {
				accept.ours.fail()
				return 0, err
			}
			accept.ours.add(elapsed(began))
			daemon, err := s.daemon(ctx, id)
			if err == nil {
				err = daemon.firstOutput(ctx)
			}
			took := elapsed(began)
			return took, errors.Join(err, s.gone(ctx, id))
		},
		floor: func(ctx context.Context) (float64, error) {
			took, err := appendDurably(record)
			if err != nil {
				return 0, err
			}
			accept.floor.add(took)
			began := time.Now()
			id, err := engine.launch(ctx)
			took = elapsed(began)
			if err != nil {
				return 0, err
			}
			return took, engine.remove(ctx, id)
		},
	})
	b.results[rowAccept] = accept
	return err
}

// appendDurably is the floor of a durable record: 4 KiB appended, and on the disk when it returns. In milliseconds.
func appendDurably(file *os.File) (float64, error) {
	var block [4 << 10]byte
	began := time.Now()
	if _, err := file.Write(block[:]); err != nil {
		return 0, err
	}
	err := syscall.Fdatasync(int(file.Fd()))
	return elapsed(began), err
}

func (b *bench) measurePause(ctx context.Context, s *service, daemon execd, engine *engine, id string) error {
	container, err := engine.launch(ctx)
	if err != nil {
		return err
	}
	return b.inTurns(ctx, rowPause, b.rounds(30, 5), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			if err := s.act(ctx, id, "pause"); err != nil {
				return 0, err
			}
			if err := s.act(ctx, id, "resume"); err != nil {
				return 0, err
			}
			err := daemon.firstOutput(ctx)
			return elapsed(began), err
		},
		floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := engine.freeze(ctx, container)
			return elapsed(began), err
		},
	})
}

// measureReads measures answers from records. The floor sends the very bytes that the service sent.
func (b *bench) measureReads(ctx context.Context, s *service, id string) error {
	floor, err := b.startFloor(ctx)
	if err != nil {
		return err
	}
	defer floor.stop()
	paths := map[string]string{
		rowGet:  "/v1/sandboxes/" + id,
		rowList: "/v1/sandboxes?state=Pending&pageSize=20&metadata=" + url.QueryEscape("made-by=bench"),
	}
	for _, name := range []string{rowGet, rowList} {
		if !b.wants(name) {
			continue
		}
		ours := getter{client: s.client, url: s.url + paths[name], header: http.Header{keyHeader: {key}}}
		answer, err := ours.get(ctx)
		if err != nil {
			return err
		}
		if err := floor.prebuild(ctx, answer); err != nil {
			return err
		}
		theirs := getter{client: floor.client, url: floor.url + "/prebuilt"}
		err = b.inTurns(ctx, name, b.rounds(15, 3), sides{
			ours:  func(ctx context.Context) (float64, error) { return ours.rate(ctx, len(answer)) },
			floor: func(ctx context.Context) (float64, error) { return theirs.rate(ctx, len(answer)) },
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// getter is one client that asks for the same thing again and again.
type getter struct {
	client *http.Client
	url    string
	header http.Header
}

func (g getter) get(ctx context.Context) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header = g.header.Clone()
	response, err := send(g.client, request, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// requests is how many requests make one value of a rate.
const requests = 500

// rate is the number of answers a second of one client, each of the given size.
func (g getter) rate(ctx context.Context, size int) (float64, error) {
	began := time.Now()
	for range requests {
		answer, err := g.get(ctx)
		if err != nil {
			return 0, err
		}
		if len(answer) != size {
			return 0, fmt.Errorf("%w: an answer of %d bytes instead of %d", errLost, len(answer), size)
		}
	}
	return requests / time.Since(began).Seconds(), nil
}
