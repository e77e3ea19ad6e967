package rig

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
	"sandbox.internal/bench/measure"
)

// buildFloor compiles the program of the floors as the Makefile compiles execd, whose start and
// memory it is the floor of, and returns its path.
func buildFloor(ctx context.Context, run *measure.Run) (string, error) {
	program := filepath.Join(run.Dir, "floor")
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

// StartFloor starts the floor server: a minimal net/http program.
func StartFloor(ctx context.Context, run *measure.Run) (*Process, error) {
	dir, err := run.Directory("floor")
	if err != nil {
		return nil, err
	}
	return startFloorAs(ctx, run, "serve", dir)
}

// StartForward starts a bare reverse proxy in front of a server.
func StartForward(ctx context.Context, run *measure.Run, to string) (*Process, error) {
	return startFloorAs(ctx, run, "forward", to)
}

func startFloorAs(ctx context.Context, run *measure.Run, what, argument string) (*Process, error) {
	program, err := buildFloor(ctx, run)
	if err != nil {
		return nil, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, err
	}
	address := Joined(host, port)
	return Start(ctx, run.Dir, address, "/ping", exec.Command(program, what, address, argument))
}

// Prebuild gives the floor server the bytes that it is to answer with.
func (p *Process) Prebuild(ctx context.Context, answer []byte) error {
	return p.put(ctx, "/prebuilt", bytes.NewReader(answer), int64(len(answer)))
}

// Get returns an answer of the server.
func (p *Process) Get(ctx context.Context, path string) (*http.Response, error) {
	return Getter{Client: p.Client, URL: p.URL + path}.Open(ctx)
}

// put sends a body to the server.
func (p *Process) put(ctx context.Context, path string, body io.Reader, size int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, p.URL+path, body)
	if err != nil {
		return err
	}
	request.ContentLength = size
	response, err := Send(p.Client, request, http.StatusOK)
	if err != nil {
		return err
	}
	return Drain(response)
}

// Worker does jobs that are the floor of rows (see bench/floor/work.go and kernel.go).
type Worker struct{ *job.Worker }

// StartWorker starts it.
func StartWorker(ctx context.Context, run *measure.Run) (Worker, error) {
	program, err := buildFloor(ctx, run)
	if err != nil {
		return Worker{}, err
	}
	started, err := job.Start(exec.Command(program, "work"))
	return Worker{started}, err
}

// Job returns the measurement of a job with one figure, for one side of a row.
func (w Worker) Job(words ...string) measure.Figure {
	return func(context.Context) (float64, error) {
		took, err := w.Do(words...)
		if err != nil {
			return 0, err
		}
		return took[0], nil
	}
}
