package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
)

// spareTime is how long execd gets, between two cells without a context, to start the next spare kernel. It does not count.
const spareTime = 3 * time.Second

// measureCells measures what execd adds to a kernel: HTTP, the queue, the log and the stream. The floor is a kernel of the same kind that
// the bench starts itself and speaks to with the same adapter.
func (b *bench) measureCells(ctx context.Context) error {
	p, daemon, err := b.startExecd(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	dir, err := b.folder("kernel")
	if err != nil {
		return err
	}
	host := jupyter.NewDirect(jupyter.DirectOptions{Env: os.Environ(), TempDir: dir, Logger: zerolog.Nop()})
	defer host.Close()
	bare, err := host.Start(ctx, "python3", kernel.StartOptions{Dir: dir})
	if err != nil {
		return fmt.Errorf("a Python kernel (scripts/kernels.sh installs it): %w", err)
	}
	floor := func(ctx context.Context) (float64, error) {
		began := time.Now()
		_, err := bare.Execute(ctx, "1+1", func(kernel.Output) {})
		return elapsed(began), err
	}
	if b.wants(rowCell) {
		id, err := daemon.newContext(ctx)
		if err != nil {
			return err
		}
		cell := map[string]any{"code": "1+1", "context": map[string]string{"id": id}}
		if err := b.inTurns(ctx, rowCell, b.rounds(500, 50), sides{ours: daemon.cell(cell), floor: floor}); err != nil {
			return err
		}
	}
	if b.wants(rowStateless) {
		stateless := daemon.cell(map[string]any{"code": "1+1", "language": "python"})
		return b.inTurns(ctx, rowStateless, b.rounds(30, 5), sides{floor: floor, ours: func(ctx context.Context) (float64, error) {
			took, err := stateless(ctx)
			select {
			case <-time.After(spareTime):
			case <-ctx.Done():
			}
			return took, err
		}})
	}
	return nil
}

// newContext creates a Python context and returns its id.
func (d execd) newContext(ctx context.Context) (string, error) {
	response, err := d.call(ctx, http.MethodPost, "/code/context", "application/json", bytes.NewReader([]byte(`{"language":"python"}`)))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var created struct{ ID string }
	if err := json.NewDecoder(response.Body).Decode(&created); err != nil {
		return "", err
	}
	return created.ID, nil
}

// cell returns what measures a cell, from the request to the completion event, in milliseconds.
func (d execd) cell(request any) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		began := time.Now()
		s, err := d.post(ctx, "/code", request)
		if err != nil {
			return 0, err
		}
		_, err = s.until(eventComplete)
		took := elapsed(began)
		if err != nil {
			s.abandon()
			return 0, errors.Join(errors.New("the cell failed"), err)
		}
		return took, s.finish()
	}
}
