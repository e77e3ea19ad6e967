package rig

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

	"sandbox.internal/bench/measure"
)

const (
	keyHeader = "SERVICE-API-KEY"
	Key       = "a-key-of-the-bench-that-is-long-enough"
)

// Service is the lifecycle service, started by the bench with a configuration, records and a name
// of its own.
type Service struct {
	*Process
	Instance string
	DataDir  string
	Start    func(context.Context) (*Process, error) // once more, after it has ended
}

// StartService starts the service on Docker, with a piece of configuration behind that of every
// run.
func StartService(ctx context.Context, run *measure.Run, more string) (*Service, error) {
	return startPlanned(ctx, run, Plan{runtime: "docker", More: more})
}

// Plan is how a service of the bench is configured: its runtime, lines of [server], and sections
// behind those of every run.
type Plan struct{ runtime, Server, More string }

func startPlanned(ctx context.Context, run *measure.Run, p Plan) (*Service, error) {
	dir, err := run.Directory("service")
	if err != nil {
		return nil, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &Service{Instance: fmt.Sprintf("bench-%d", os.Getpid()),
		DataDir: filepath.Join(dir, "data")}
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
%s`, host, port, Key, s.DataDir, s.Instance, p.Server, p.runtime, p.More), 0o600)
	if err != nil {
		return nil, err
	}
	s.Start = func(ctx context.Context) (*Process, error) {
		return Start(ctx, dir, Joined(host, port), "/health",
			exec.Command(filepath.Join(run.Bin, "sandbox-server"), "--config", config))
	}
	if s.Process, err = s.Start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Call sends a request, expects the status, and decodes the answer into out unless that is nil.
func (s *Service) Call(ctx context.Context, method, path string, want int, in, out any) error {
	return s.CallWith(ctx, method, path, nil, want, in, out)
}

// CallWith is Call with more headers.
func (s *Service) CallWith(ctx context.Context, method, path string, header http.Header, want int, in, out any) error {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, s.URL+path, body)
	if err != nil {
		return err
	}
	maps.Copy(request.Header, header)
	request.Header.Set(keyHeader, Key)
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := Send(s.Client, request, want)
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
	SandboxMemory = "256"
	SandboxPIDs   = "512"
)

// Create asks for a sandbox and returns its id.
func (s *Service) Create(ctx context.Context) (string, error) {
	id, _, err := s.CreateFor(ctx, 10*time.Minute)
	return id, err
}

// CreateFor asks for a sandbox with a life of that length, and returns its id and when it expires.
func (s *Service) CreateFor(ctx context.Context, life time.Duration) (string, time.Time, error) {
	var created struct {
		ID        string
		ExpiresAt time.Time
	}
	err := s.Call(ctx, http.MethodPost, "/v1/sandboxes", http.StatusAccepted, map[string]any{
		"image":          map[string]string{"uri": BaseImage},
		"timeout":        life / time.Second,
		"resourceLimits": map[string]string{"memory": SandboxMemory + "Mi"},
		"entrypoint":     []string{"sleep", "600"},
		"metadata":       map[string]string{"made-by": "bench"},
	}, &created)
	return created.ID, created.ExpiresAt, err
}

// Act asks for an action, such as pause.
func (s *Service) Act(ctx context.Context, id, action string) error {
	return s.Call(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/"+action, http.StatusAccepted, nil,
		nil)
}

// Daemon returns the sandbox's daemon. The service answers as soon as the port is known, which may
// be a moment before the daemon listens.
func (s *Service) Daemon(ctx context.Context, id string) (Execd, error) {
	var endpoint struct {
		URL     string
		Headers map[string]string
	}
	if err := s.Call(ctx, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/44772", http.StatusOK,
		nil, &endpoint); err != nil {
		return Execd{}, err
	}
	headers := make(http.Header)
	for name, value := range endpoint.Headers {
		headers.Set(name, value)
	}
	return Execd{url: endpoint.URL, headers: headers, client: s.Client}, nil
}

// DaemonThroughService is the sandbox's daemon as the service passes requests to it.
func (s *Service) DaemonThroughService(ctx context.Context, id string) (Execd, error) {
	daemon, err := s.Daemon(ctx, id)
	if err != nil {
		return Execd{}, err
	}
	daemon.url = s.URL + "/" + id + "/44772"
	daemon.headers.Set(keyHeader, Key)
	return daemon, nil
}

const (
	UsableTimeout = 30 * time.Second
	RetryPause    = time.Millisecond
)

// Usable returns the id and the daemon of a new sandbox that has run a command.
func (s *Service) Usable(ctx context.Context) (string, Execd, error) {
	id, err := s.Create(ctx)
	if err != nil {
		return "", Execd{}, err
	}
	daemon, err := s.Daemon(ctx, id)
	if err == nil {
		err = daemon.FirstOutput(ctx)
	}
	return id, daemon, err
}

// Reader is a client that asks for a path of the service again and again.
func (s *Service) Reader(path string) Getter {
	return Getter{Client: s.Client, URL: s.URL + path, Header: http.Header{keyHeader: {Key}}}
}

// FirstOutput returns when a command in the sandbox has printed, asking again while there is no
// answer.
func (d Execd) FirstOutput(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, UsableTimeout)
	defer cancel()
	for {
		s, err := d.Run(ctx, "echo x")
		if err == nil {
			_, err = s.Until(EventStdout)
			return errors.Join(err, s.Finish())
		}
		select {
		case <-time.After(RetryPause):
		case <-ctx.Done():
			return err
		}
	}
}

// Delete deletes a sandbox and returns when nothing is left of it but its record.
func (s *Service) Delete(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, UsableTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, s.URL+"/v1/sandboxes/"+id,
		nil)
	if err != nil {
		return err
	}
	request.Header.Set(keyHeader, Key)
	request.Header.Set("Prefer", fmt.Sprintf("wait=%d", UsableTimeout/time.Second))
	response, err := Send(s.Client, request, http.StatusNoContent)
	if err != nil {
		return err
	}
	if err := Drain(response); err != nil {
		return err
	}
	var sandbox struct{ Status Status }
	if err := s.Call(ctx, http.MethodGet, "/v1/sandboxes/"+id, http.StatusOK, nil,
		&sandbox); err != nil {
		return err
	}
	if sandbox.Status.State != "Terminated" {
		return fmt.Errorf("sandbox %s is %s after its deletion", id, sandbox.Status.State)
	}
	return nil
}

// TimeToOutput makes a sandbox, has a command print in it, and deletes it. The time is from the
// request to the output, in milliseconds.
func (s *Service) TimeToOutput(ctx context.Context) (float64, error) {
	began := time.Now()
	id, _, err := s.Usable(ctx)
	took := measure.Elapsed(began)
	if id == "" {
		return 0, err
	}
	return took, errors.Join(err, s.Delete(ctx, id))
}
