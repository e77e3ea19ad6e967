package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// spareTime is how long execd gets, between two cells without a context, to start the next spare
// kernel. It does not count.
const spareTime = 3 * time.Second

// measureCells measures what execd adds to a kernel: HTTP, the queue, the log and the stream. The
// floor is a kernel of the same kind, spoken to with the same adapter by a process of its own.
func (b *bench) measureCells(ctx context.Context) error {
	p, daemon, err := b.startExecd(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	dir, err := b.directory("kernel")
	if err != nil {
		return err
	}
	floor, err := b.startKernel(dir)
	if err != nil {
		return err
	}
	defer floor.Stop()
	id, err := daemon.newContext(ctx)
	if err != nil {
		return err
	}
	if b.selected(rowCell) {
		cell := map[string]any{"code": "1+1", "context": map[string]string{"id": id}}
		if err := b.inTurns(ctx, rowCell, b.rounds(500, 50),
			sides{ours: daemon.cell(cell), floor: floor.one("cell")}); err != nil {
			return err
		}
	}
	if b.selected(rowInterrupt) {
		if err := b.inTurns(ctx, rowInterrupt, b.rounds(100, 20),
			sides{ours: daemon.interrupted(id), floor: floor.one("interrupt")}); err != nil {
			return err
		}
	}
	stateless := daemon.cell(map[string]any{"code": "1+1", "language": "python"})
	if b.selected(rowStateless) {
		err := b.inTurns(ctx, rowStateless, b.rounds(30, 5),
			sides{floor: floor.one("cell"), ours: func(ctx context.Context) (float64, error) {
				took, err := stateless(ctx)
				return took, errors.Join(err, pause(ctx, spareTime))
			}})
		if err != nil {
			return err
		}
	}
	if b.selected(rowStatelessMany) {
		return b.inTurns(ctx, rowStatelessMany, b.rounds(5, 1),
			oneAfterTheOther(10, stateless, floor.one("fresh")))
	}
	return nil
}

// oneAfterTheOther measures the mean of a number of requests in a row, on both sides.
func oneAfterTheOther(count int, ours, floor func(context.Context) (float64, error)) sides {
	var took, floorTook requests
	side := func(one func(context.Context) (float64, error), each *requests) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			sum := 0.0
			for range count {
				took, err := one(ctx)
				if err != nil {
					return 0, err
				}
				each.add(took)
				sum += took
			}
			return sum / float64(count), nil
		}
	}
	return sides{ours: side(ours, &took), floor: side(floor, &floorTook), oursRequests: &took,
		floorRequests: &floorTook}
}

// interrupted measures from the request to interrupt a cell that runs until the next cell of the
// context has ended, in milliseconds.
func (d execd) interrupted(id string) func(context.Context) (float64, error) {
	in := map[string]string{"id": id}
	next := d.cell(map[string]any{"code": "1+1", "context": in})
	return func(ctx context.Context) (float64, error) {
		s, err := d.post(ctx, "/code", map[string]any{"code": forever, "context": in})
		if err != nil {
			return 0, err
		}
		defer s.abandon()
		if _, err := s.until(eventStdout); err != nil {
			return 0, err
		}
		began := time.Now()
		response, err := d.call(ctx, http.MethodDelete, "/code?id="+url.QueryEscape(id), "", nil)
		if err != nil {
			return 0, err
		}
		if err := drain(response); err != nil {
			return 0, err
		}
		if _, err := s.until(eventError); err != nil {
			return 0, err
		}
		_, err = next(ctx)
		return elapsed(began), err
	}
}

// newContext creates a Python context and returns its id.
func (d execd) newContext(ctx context.Context) (string, error) {
	response, err := d.call(ctx, http.MethodPost, "/code/context", "application/json",
		bytes.NewReader([]byte(`{"language":"python"}`)))
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
