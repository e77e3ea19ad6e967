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
func buildFloor(ctx context.Context, run *bench) (string, error) {
	program := filepath.Join(run.dir, "floor")
	if _, err := os.Stat(program); err == nil {
		return program, nil // from the last time
	}
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-gcflags=all=-dwarf=false", "-tags", "nethttpomithttp2", "-ldflags", "-s -w", "-o",
		program, "sandbox.internal/bench/floor")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build bench/floor: %w: %s", err, bytes.TrimSpace(out))
	}
	return program, nil
}

// startFloor starts the floor server: a minimal net/http program.
func startFloor(ctx context.Context, run *bench) (*process, error) {
	dir, err := run.directory("floor")
	if err != nil {
		return nil, err
	}
	return startFloorAs(ctx, run, "serve", dir)
}

// startForward starts a bare reverse proxy in front of a server.
func startForward(ctx context.Context, run *bench, to string) (*process, error) {
	return startFloorAs(ctx, run, "forward", to)
}

func startFloorAs(ctx context.Context, run *bench, what, argument string) (*process, error) {
	program, err := buildFloor(ctx, run)
	if err != nil {
		return nil, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, err
	}
	address := joined(host, port)
	return start(ctx, run.dir, address, "/ping", exec.Command(program, what, address, argument))
}

// prebuild gives the floor server the bytes that it is to answer with.
func (p *process) prebuild(ctx context.Context, answer []byte) error {
	return p.put(ctx, "/prebuilt", bytes.NewReader(answer), int64(len(answer)))
}

// get returns an answer of the server.
func (p *process) get(ctx context.Context, path string) (*http.Response, error) {
	return getter{client: p.client, url: p.url + path}.open(ctx)
}

// put sends a body to the server.
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

func startWorker(ctx context.Context, run *bench) (worker, error) {
	program, err := buildFloor(ctx, run)
	if err != nil {
		return worker{}, err
	}
	started, err := job.Start(exec.Command(program, "work"))
	return worker{started}, err
}

// one returns the measurement of a job with one figure, for one side of a row.
func (w worker) one(words ...string) figure {
	return func(context.Context) (float64, error) {
		took, err := w.Do(words...)
		if err != nil {
			return 0, err
		}
		return took[0], nil
	}
}
