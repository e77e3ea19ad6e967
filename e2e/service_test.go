package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
)

const (
	keyHeader = "SERVICE-API-KEY"
	adminKey  = "the-key-of-the-administrator-of-these-tests"

	// patience bounds every wait for something that is expected to happen.
	patience = 60 * time.Second
	// cleanup is how long the engine may take to get rid of everything. It is shorter than the interval at which the service looks
	// for containers that it has lost, which would hide a leak.
	cleanup = 30 * time.Second
)

var (
	lifecycleContract = sync.OnceValues(openapi.LoadLifecycle)
	execdContract     = sync.OnceValues(openapi.LoadExecd)
)

// plan is how a service of a test differs from the usual one.
type plan struct {
	settings string            // more lines of the configuration file, sections first named here
	server   string            // more lines of its section [server]
	keys     []config.Key      // further API keys
	open     bool              // no key is configured
	program  bool              // run it as a process of its own, which can be killed
	env      map[string]string // environment variables
	folder   string            // data_dir; empty means a new one
	host     string            // server.host; empty means 127.0.0.1
}

// service is a lifecycle service under test.
type service struct {
	client   // as the administrator
	instance string
	folder   string // data_dir
	file     string // the configuration
	program  bool
	env      map[string]string
	log      *journal
	conform  *conform.Transport
	engine   *docker.Engine

	// While it runs:
	stop func() error // gracefully
	kill func()       // without a warning; a program only
	hup  func() error // sends SIGHUP; a program only
}

// start returns a running service. At the end of the test everything that it has made is deleted through it, and must be gone.
func start(t *testing.T, p plan) *service {
	t.Helper()
	// The go command repeats the result that it remembers until a file that a test looked at has changed; the image is made of this one.
	_, _ = os.Stat("../bin/execd")
	document, err := lifecycleContract()
	if err != nil {
		t.Fatal(err)
	}
	s := &service{
		instance: "e2e-" + uuid.NewString()[:8],
		folder:   filepath.Join(t.TempDir(), "data"),
		file:     filepath.Join(t.TempDir(), "sandbox.toml"),
		program:  p.program,
		env:      p.env,
		log:      &journal{},
	}
	if p.folder != "" {
		s.folder = p.folder
	}
	base := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(base.CloseIdleConnections)
	s.conform = conform.New(document, traced{base, t}, t)
	s.client = client{http: &http.Client{Transport: s.conform, Timeout: patience}, key: adminKey}
	if err := os.WriteFile(s.file, []byte(s.settings(p)), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.engine, err = docker.New(docker.Options{Host: s.variable("DOCKER_HOST"), Logger: zerolog.Nop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(t) })
	s.boot(t)
	return s
}

func (s *service) settings(p plan) string {
	var text strings.Builder
	fmt.Fprintf(&text, "[server]\nhost = %q\nport = 0\nlog_level = \"DEBUG\"\ndata_dir = %q\ninstance = %q\n", cmp.Or(p.host, "127.0.0.1"), s.folder, s.instance)
	if !p.open {
		fmt.Fprintf(&text, "api_key = %q\n", adminKey)
	}
	text.WriteString(p.server + "\n")
	for _, key := range p.keys {
		fmt.Fprintf(&text, "[[server.keys]]\nname = %q\nsha256 = %q\nrole = %q\n", key.Name, key.SHA256, key.Role)
		if limit := key.RateLimit; limit != nil {
			fmt.Fprintf(&text, "rate_limit = {requests_per_second = %d, burst = %d}\n", limit.RequestsPerSecond, limit.Burst)
		}
	}
	fmt.Fprintf(&text, "[runtime]\ntype = \"docker\"\nexecd_image = %q\n%s\n", execdImage, p.settings)
	return text.String()
}

// boot starts the service, for the first time or again on the same records.
func (s *service) boot(t *testing.T) {
	t.Helper()
	if s.program {
		s.bootProgram(t)
	} else {
		s.bootHere(t)
	}
	var err error
	s.api, err = lifecycle.NewClientWithResponses(s.url, lifecycle.WithHTTPClient(s.http), lifecycle.WithRequestEditorFn(s.authorise))
	if err != nil {
		t.Fatal(err)
	}
}

func (s *service) bootHere(t *testing.T) {
	t.Helper()
	cfg, err := config.Load(s.file, s.variable)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running, err := app.New(ctx, cfg, api.Version{Version: "e2e", Commit: "none"}, zerolog.New(s.log).With().Timestamp().Logger())
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- running.Run(ctx) }()
	s.url = "http://" + running.Addr()
	s.stop = func() error {
		cancel()
		return <-done
	}
}

// variable returns an environment variable of the service: the test's own unless the plan has it.
func (s *service) variable(name string) string {
	if value, ok := s.env[name]; ok {
		return value
	}
	return os.Getenv(name)
}

// halt stops the service gracefully.
func (s *service) halt(t *testing.T) {
	t.Helper()
	stop := s.stop
	s.stop = nil
	if err := stop(); err != nil {
		t.Errorf("the service did not stop cleanly: %v", err)
	}
}

// end deletes every sandbox and stops the service. What is left at the engine then is a leak.
func (s *service) end(t *testing.T) {
	defer s.engine.Close()
	if s.stop != nil {
		s.deleteAll(t)
	}
	left, err := s.engine.List(context.Background(), s.label())
	if err != nil {
		t.Error(err)
	}
	for _, container := range left {
		t.Errorf("container %s (%s) of instance %s is left", container.Name, container.Status, s.instance)
		if err := s.engine.Remove(context.Background(), container.ID); err != nil {
			t.Error(err)
		}
	}
	if s.stop != nil {
		s.halt(t)
	}
	if t.Failed() {
		t.Logf("the service's log:\n%s", s.log.tail(200))
	}
}

func (s *service) label() map[string]string {
	return map[string]string{"sandbox.internal/instance": s.instance}
}

// containers are those of this service, in any status.
func (s *service) containers(t *testing.T) []engine.Container {
	t.Helper()
	list, err := s.engine.List(context.Background(), s.label())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// deleteAll ends every sandbox and waits, for a while, until the engine has nothing left.
func (s *service) deleteAll(t *testing.T) {
	t.Helper()
	var alive []string
	for _, sandbox := range s.everything(t) {
		if !final(sandbox.Status.State) {
			alive = append(alive, sandbox.ID)
		}
	}
	concurrently(alive, func(id string) {
		// 409 is a sandbox that ended by itself meanwhile.
		if got := s.send(t, http.MethodDelete, "/v1/sandboxes/"+id, ""); got.status != http.StatusNoContent && got.status != http.StatusConflict {
			t.Errorf("DELETE %s: %s", id, got)
		}
	})
	// A container may still be in the making while none is there.
	over := func() bool {
		return len(s.containers(t)) == 0 && !slices.ContainsFunc(s.everything(t), func(b lifecycle.Sandbox) bool { return !final(b.Status.State) })
	}
	for deadline := time.Now().Add(cleanup); !over() && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond) // between two looks
	}
}

// concurrently calls do for every item at the same time.
func concurrently[T any](items []T, do func(T)) {
	var all sync.WaitGroup
	for _, item := range items {
		all.Go(func() { do(item) })
	}
	all.Wait()
}

// journal keeps what a service logs.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

func (j *journal) lines() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Split(j.text.String(), "\n")
}

func (j *journal) tail(count int) string {
	lines := j.lines()
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// with returns the lines that hold all of the words.
func (j *journal) with(words ...string) []string {
	return slices.DeleteFunc(j.lines(), func(line string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

// traced checks what holds for every answer of the service: it has an X-Request-ID, the client's own if there was one.
type traced struct {
	base http.RoundTripper
	t    *testing.T
}

func (r traced) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.base.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	got, sent := response.Header.Get("X-Request-ID"), request.Header.Get("X-Request-ID")
	if got == "" || sent != "" && got != sent {
		r.t.Errorf("%s %s: X-Request-ID is %q, the request's was %q", request.Method, request.URL.Path, got, sent)
	}
	return response, nil
}
