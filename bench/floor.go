package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"sandbox.internal/bench/job"
)

// buildFloor compiles the program of the floors as the Makefile compiles execd, whose start and
// memory it is the floor of, and returns its path.
func (b *bench) buildFloor(ctx context.Context) (string, error) {
	if b.floorProgram != "" {
		return b.floorProgram, nil
	}
	program := filepath.Join(b.dir, "floor")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-gcflags=all=-dwarf=false", "-tags", "nethttpomithttp2", "-ldflags", "-s -w", "-o",
		program, "sandbox.internal/bench/floor")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build bench/floor: %w: %s", err, bytes.TrimSpace(out))
	}
	b.floorProgram = program
	return program, nil
}

// startFloor starts the floor server: a minimal net/http program.
func (b *bench) startFloor(ctx context.Context) (*process, error) {
	dir, err := b.directory("floor")
	if err != nil {
		return nil, err
	}
	return b.startFloorAs(ctx, "serve", dir)
}

// startForward starts a bare reverse proxy in front of a server.
func (b *bench) startForward(ctx context.Context, to string) (*process, error) {
	return b.startFloorAs(ctx, "forward", to)
}

func (b *bench) startFloorAs(ctx context.Context, what, argument string) (*process, error) {
	program, err := b.buildFloor(ctx)
	if err != nil {
		return nil, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, err
	}
	address := joined(host, port)
	return start(ctx, b.dir, address, "/ping", exec.Command(program, what, address, argument))
}

// prebuild gives the floor server the bytes that it is to answer with.
func (p *process) prebuild(ctx context.Context, answer []byte) error {
	return p.put(ctx, "/prebuilt", bytes.NewReader(answer), int64(len(answer)))
}

func (p *process) put(ctx context.Context, path string, body io.Reader, size int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, p.url+path, body)
	if err != nil {
		return err
	}
	request.ContentLength = size
	response, err := send(p.client, request, http.StatusOK)
	if err != nil {
		return err
	}
	return drain(response)
}

// worker does jobs that are the floor of rows (see bench/floor/work.go and kernel.go).
type worker struct{ *job.Worker }

func (b *bench) startWorker(ctx context.Context) (worker, error) {
	program, err := b.buildFloor(ctx)
	if err != nil {
		return worker{}, err
	}
	started, err := job.Start(exec.Command(program, "work"))
	return worker{started}, err
}

// one returns the measurement of a job with one figure, for one side of a row.
func (w worker) one(words ...string) func(context.Context) (float64, error) {
	return func(context.Context) (float64, error) {
		took, err := w.Do(words...)
		if err != nil {
			return 0, err
		}
		return took[0], nil
	}
}
