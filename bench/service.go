package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	keyHeader = "SERVICE-API-KEY"
	key       = "a-key-of-the-bench-that-is-long-enough"
)

// service is the lifecycle service, started by the bench with a configuration, records and a name
// of its own.
type service struct {
	*process
	instance string
	dataDir  string
	start    func(context.Context) (*process, error) // once more, after it has ended
}

// startService starts the service on Docker, with a piece of configuration behind that of every
// run.
func startService(ctx context.Context, run *bench, more string) (*service, error) {
	return startPlanned(ctx, run, plan{runtime: "docker", more: more})
}

// plan is how a service of the bench is configured: its runtime, lines of [server], and sections
// behind those of every run.
type plan struct{ runtime, server, more string }

func startPlanned(ctx context.Context, run *bench, p plan) (*service, error) {
	dir, err := run.directory("service")
	if err != nil {
		return nil, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &service{instance: fmt.Sprintf("bench-%d", os.Getpid()),
		dataDir: filepath.Join(dir, "data")}
	config := filepath.Join(dir, "config.toml")
	err = os.WriteFile(config, fmt.Appendf(nil, `[server]
host = %q
port = %d
api_key = %q
data_dir = %q
instance = %q
%s

[runtime]
type = %q
execd_image = "sandbox/execd:dev"
%s`, host, port, key, s.dataDir, s.instance, p.server, p.runtime, p.more), 0o600)
	if err != nil {
		return nil, err
	}
	s.start = func(ctx context.Context) (*process, error) {
		return start(ctx, dir, joined(host, port), "/health",
			exec.Command(filepath.Join(run.bin, "sandbox-server"), "--config", config))
	}
	if s.process, err = s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// call sends a request, expects the status, and decodes the answer into out unless that is nil.
func (s *service) call(ctx context.Context, method, path string, want int, in, out any) error {
	return s.callWith(ctx, method, path, nil, want, in, out)
}

// callWith is call with more headers.
func (s *service) callWith(ctx context.Context, method, path string, header http.Header, want int, in, out any) error {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		return err
	}
	maps.Copy(request.Header, header)
	request.Header.Set(keyHeader, key)
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := send(s.client, request, want)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

// The limits of a sandbox of the bench: of its memory, which is asked for, in MiB, and of its
// processes, which is the service's default. The processor has none.
const (
	sandboxMemory = "256"
	sandboxPIDs   = "512"
)

// create asks for a sandbox and returns its id.
func (s *service) create(ctx context.Context) (string, error) {
	id, _, err := s.createFor(ctx, 10*time.Minute)
	return id, err
}

// createFor asks for a sandbox with a life of that length, and returns its id and when it expires.
func (s *service) createFor(ctx context.Context, life time.Duration) (string, time.Time, error) {
	var created struct {
		ID        string
		ExpiresAt time.Time
	}
	err := s.call(ctx, http.MethodPost, "/v1/sandboxes", http.StatusAccepted, map[string]any{
		"image":          map[string]string{"uri": baseImage},
		"timeout":        life / time.Second,
		"resourceLimits": map[string]string{"memory": sandboxMemory + "Mi"},
		"entrypoint":     []string{"sleep", "600"},
		"metadata":       map[string]string{"made-by": "bench"},
	}, &created)
	return created.ID, created.ExpiresAt, err
}

func (s *service) act(ctx context.Context, id, action string) error {
	return s.call(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/"+action, http.StatusAccepted, nil,
		nil)
}

// daemon returns the sandbox's daemon. The service answers as soon as the port is known, which may
// be a moment before the daemon listens.
func (s *service) daemon(ctx context.Context, id string) (execd, error) {
	var endpoint struct {
		URL     string
		Headers map[string]string
	}
	if err := s.call(ctx, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/44772", http.StatusOK,
		nil, &endpoint); err != nil {
		return execd{}, err
	}
	headers := make(http.Header)
	for name, value := range endpoint.Headers {
		headers.Set(name, value)
	}
	return execd{url: endpoint.URL, headers: headers, client: s.client}, nil
}

// daemonThroughService is the sandbox's daemon as the service passes requests to it.
func (s *service) daemonThroughService(ctx context.Context, id string) (execd, error) {
	daemon, err := s.daemon(ctx, id)
	if err != nil {
		return execd{}, err
	}
	daemon.url = s.url + "/" + id + "/44772"
	daemon.headers.Set(keyHeader, key)
	return daemon, nil
}

const (
	usableTimeout = 30 * time.Second
	retryPause    = time.Millisecond
)

// usable returns the id and the daemon of a new sandbox that has run a command.
func (s *service) usable(ctx context.Context) (string, execd, error) {
	id, err := s.create(ctx)
	if err != nil {
		return "", execd{}, err
	}
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	return id, daemon, err
}

// reader is a client that asks for a path of the service again and again.
func (s *service) reader(path string) getter {
	return getter{client: s.client, url: s.url + path, header: http.Header{keyHeader: {key}}}
}

// firstOutput returns when a command in the sandbox has printed, asking again while there is no
// answer.
func (d execd) firstOutput(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	for {
		s, err := d.run(ctx, "echo x")
		if err == nil {
			_, err = s.until(eventStdout)
			return errors.Join(err, s.finish())
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return err
		}
	}
}

// delete deletes a sandbox and returns when nothing is left of it but its record.
func (s *service) delete(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, s.url+"/v1/sandboxes/"+id,
		nil)
	if err != nil {
		return err
	}
	request.Header.Set(keyHeader, key)
	request.Header.Set("Prefer", fmt.Sprintf("wait=%d", usableTimeout/time.Second))
	response, err := send(s.client, request, http.StatusNoContent)
	if err != nil {
		return err
	}
	if err := drain(response); err != nil {
		return err
	}
	var sandbox struct{ Status status }
	if err := s.call(ctx, http.MethodGet, "/v1/sandboxes/"+id, http.StatusOK, nil,
		&sandbox); err != nil {
		return err
	}
	if sandbox.Status.State != "Terminated" {
		return fmt.Errorf("sandbox %s is %s after its deletion", id, sandbox.Status.State)
	}
	return nil
}

// timeToOutput makes a sandbox, has a command print in it, and deletes it. The time is from the request
// to the output, in milliseconds.
func (s *service) timeToOutput(ctx context.Context) (float64, error) {
	began := time.Now()
	id, _, err := s.usable(ctx)
	took := elapsed(began)
	if id == "" {
		return 0, err
	}
	return took, errors.Join(err, s.delete(ctx, id))
}
