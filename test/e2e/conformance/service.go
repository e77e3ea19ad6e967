package conformance

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/openapi/document"
	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

const (
	// KeyHeader carries the key of a request, and AdminKey is the one that every service accepts
	// unless its plan says that it is open.
	KeyHeader = "SERVICE-API-KEY"
	AdminKey  = "the-key-of-the-administrator-of-these-tests"

	// noRoom is how long a sandbox waits for room that there will not be.
	noRoom = 30 * time.Second
	// cleanup is how long the backend may take to get rid of everything. It is shorter than the
	// minute after which services look for what they have lost, which would hide a leak.
	cleanup = 50 * time.Second
)

var (
	// LifecycleContract and ExecdContract load the contracts that answers are held to, once.
	LifecycleContract = sync.OnceValues(document.LoadLifecycle)
	ExecdContract     = sync.OnceValues(document.LoadExecd)
)

// Plan is how a service of a test differs from the usual one.
type Plan struct {
	Settings  string            // more lines of the configuration file, sections first named here
	Server    string            // more lines of its section [server]
	Keys      []config.Key      // further API keys
	Open      bool              // no key is configured
	Program   bool              // run it as a process of its own, which can be killed
	Wrapper   []string          // the words of a command that becomes the program; a program only
	Env       map[string]string // environment variables
	Directory string            // data_dir; empty means a new one
	Host      string            // server.host; empty means 127.0.0.1
	// Provision is how long a sandbox may be Pending on Kubernetes, where one that no node has room
	// for waits for room until then; 0 is longer than any test waits for a sandbox.
	Provision time.Duration
}

// Service is a lifecycle service under test.
type Service struct {
	Client    // as the administrator
	Instance  string
	Directory string // data_dir
	File      string // the configuration
	Log       *Journal
	Conform   *conform.Transport
	backend   Backend
	program   bool
	wrapper   []string
	env       map[string]string

	// While it runs:
	Stop func() error // gracefully
	Kill func()       // without a warning; a program only
	HUP  func() error // sends SIGHUP; a program only
	PID  int          // a program only
}

// Start returns a running service. At the end of the test everything that it has made is deleted
// through it, and must be gone.
func Start(t *testing.T, b Backend, p Plan) *Service {
	t.Helper()
	document, err := LifecycleContract()
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{
		Instance:  "e2e-" + uuid.NewString()[:8],
		Directory: filepath.Join(t.TempDir(), "data"),
		File:      filepath.Join(t.TempDir(), "sandbox.toml"),
		Log:       &Journal{},
		backend:   b,
		program:   p.Program,
		wrapper:   p.Wrapper,
		env:       p.Env,
	}
	if p.Directory != "" {
		s.Directory = p.Directory
	}
	base := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(base.CloseIdleConnections)
	s.Conform = conform.New(document, traced{base, t}, t)
	s.Client = Client{Images: b.Images, HTTP: &http.Client{Transport: s.Conform, Timeout: wait.Patience()},
		Key: AdminKey}
	text := Configuration(s.Instance, s.Directory, b.Settings(t, s.Instance, p), p)
	if err := errors.Join(program.UseImages(text), os.WriteFile(s.File, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(t) })
	s.Boot(t)
	return s
}

// Configuration is the text of a configuration file. The runtime is what [Backend].Settings
// returns.
func Configuration(instance, directory, runtime string, p Plan) string {
	var text strings.Builder
	fmt.Fprintf(&text,
		"[server]\nhost = %q\nport = 0\nlog_level = \"DEBUG\"\ndata_dir = %q\ninstance = %q\n",
		cmp.Or(p.Host, "127.0.0.1"), directory, instance)
	if !p.Open {
		fmt.Fprintf(&text, "api_key = %q\n", AdminKey)
	}
	text.WriteString(p.Server + "\n")
	for _, key := range p.Keys {
		fmt.Fprintf(&text, "[[server.keys]]\nname = %q\nsha256 = %q\nrole = %q\nmax_sandboxes = %d\n",
			key.Name, key.SHA256, key.Role, key.MaxSandboxes)
		if limit := key.RateLimit; limit != nil {
			fmt.Fprintf(&text, "rate_limit = {requests_per_second = %d, burst = %d}\n",
				limit.RequestsPerSecond, limit.Burst)
		}
	}
	text.WriteString(runtime + "\n" + p.Settings + "\n")
	return text.String()
}

// Boot starts the service, for the first time or again on the same records.
func (s *Service) Boot(t *testing.T) {
	t.Helper()
	if s.program {
		s.bootProgram(t)
	} else {
		s.bootHere(t)
	}
	var err error
	s.API, err = lifecycle.NewClientWithResponses(s.URL, lifecycle.WithHTTPClient(s.HTTP),
		lifecycle.WithRequestEditorFn(s.authorise))
	if err != nil {
		t.Fatal(err)
	}
}

func (s *Service) bootHere(t *testing.T) {
	t.Helper()
	cfg, err := config.Load(s.File, s.variable)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running, err := app.New(ctx, cfg, api.Version{Version: "e2e", Commit: "none"},
		zerolog.New(s.Log).With().Timestamp().Logger())
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- running.Run(ctx) }()
	s.URL = "http://" + running.Addr()
	s.Stop = func() error {
		cancel()
		return <-done
	}
}

// variable returns an environment variable of the service: the test's own unless the plan has it.
func (s *Service) variable(name string) string {
	if value, ok := s.env[name]; ok {
		return value
	}
	return os.Getenv(name)
}

// Variables are environment variables with the service's address and a key of it, for a client.
func (s *Service) Variables() []string {
	return []string{"SANDBOX_URL=" + s.URL, "SERVICE_API_KEY=" + AdminKey}
}

// Halt stops the service gracefully.
func (s *Service) Halt(t *testing.T) {
	t.Helper()
	stop := s.Stop
	s.Stop = nil
	if err := stop(); err != nil {
		t.Errorf("the service did not stop cleanly: %v", err)
	}
}

// end deletes every sandbox and stops the service. What is left at the backend then is a leak.
func (s *Service) end(t *testing.T) {
	if s.Stop != nil {
		if t.Failed() {
			s.evidence(t)
		}
		s.DeleteAll(t)
	}
	left := s.backend.Leftovers(t, s.Instance, "")
	if len(left) > 0 && s.backend.Leaks != nil {
		if left = s.backend.Leaks(t, s.Instance); len(left) == 0 {
			wait.Until(t, "the backend has removed what it is removing",
				func() bool { return len(s.backend.Leftovers(t, s.Instance, "")) == 0 },
				func() any { return s.backend.Leftovers(t, s.Instance, "") })
		}
	}
	if len(left) > 0 {
		t.Errorf("of instance %s is left: %s", s.Instance, strings.Join(left, ", "))
		s.backend.Clear(t, s.Instance)
	}
	if s.Stop != nil {
		s.Halt(t)
	}
	if s.backend.RemoveSnapshots != nil {
		s.backend.RemoveSnapshots(t, s.Instance)
	}
	if t.Failed() {
		t.Logf("the end of the service's log, without what tests polled:\n%s", s.Log.end(100))
		if s.backend.Log != nil {
			t.Logf("the log of the backend:\n%s", s.backend.Log(s.Instance))
		}
	}
}

// DeleteAll ends every sandbox and waits, for a while, until the backend has nothing left.
func (s *Service) DeleteAll(t *testing.T) {
	t.Helper()
	var running []string
	for _, sandbox := range s.Everything(t) {
		if !Final(sandbox.Status.State) {
			running = append(running, sandbox.ID)
		}
	}
	Concurrently(running, func(id string) {
		// 409 is a sandbox that ended by itself meanwhile, 404 one whose resource a test has
		// removed.
		got := s.Send(t, http.MethodDelete, "/v1/sandboxes/"+id, "")
		if !slices.Contains([]int{http.StatusNoContent, http.StatusConflict, http.StatusNotFound}, got.Status) {
			t.Errorf("DELETE %s: %s", id, got)
		}
	})
	// Something may still be in the making while nothing is there.
	over := func() bool {
		return len(s.backend.Leftovers(t, s.Instance, "")) == 0 &&
			!slices.ContainsFunc(s.Everything(t),
				func(b lifecycle.Sandbox) bool { return !Final(b.Status.State) })
	}
	wait.Within(cleanup, over) // what is left then is what the caller finds
}

// Gone waits until the backend holds nothing for the sandbox.
func (s *Service) Gone(t *testing.T, id string) {
	t.Helper()
	wait.Until(t, "nothing is left of "+id,
		func() bool { return len(s.backend.Leftovers(t, s.Instance, id)) == 0 })
}

// Concurrently calls do for every item at the same time.
func Concurrently[T any](items []T, do func(T)) {
	var all sync.WaitGroup
	for _, item := range items {
		all.Go(func() { do(item) })
	}
	all.Wait()
}

// Journal keeps what a service logs.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write keeps a line.
func (j *Journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

// Lines returns what was logged so far.
func (j *Journal) Lines() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Split(j.text.String(), "\n")
}

// Tail returns the last lines.
func (j *Journal) Tail(count int) string {
	lines := j.Lines()
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// end returns the last lines that are not about a successful GET.
func (j *Journal) end(count int) string {
	lines := slices.DeleteFunc(j.Lines(), func(line string) bool {
		return strings.Contains(line, `"method":"GET"`) && strings.Contains(line, `"status":200`)
	})
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// With returns the lines that hold all of the words.
func (j *Journal) With(words ...string) []string {
	return slices.DeleteFunc(j.Lines(), func(line string) bool {
		return slices.ContainsFunc(words,
			func(word string) bool { return !strings.Contains(line, word) })
	})
}

// traced checks what holds for every answer of the service: it has an X-Request-ID, the client's
// own if there was one.
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
		r.t.Errorf("%s %s: X-Request-ID is %q, the request's was %q", request.Method,
			request.URL.Path, got, sent)
	}
	return response, nil
}
