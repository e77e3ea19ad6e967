package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"pgregory.net/rapid"

	"sandbox.internal/clients/go/execd"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sse"
)

const (
	// hang is when a request counts as one that is never answered. The longest that the contracts
	// allow is a minute.
	hang = 3 * time.Minute
	// glimpse is how long a stream is looked at. Nothing is expected within it.
	glimpse = 30 * time.Millisecond
	// fuzzed is how many sandboxes the fuzzer may have made of an image that is here.
	fuzzed = 12
)

// steady makes the cases the same in every run, unless the command line asks for others:
// -rapid.seed, -rapid.checks.
func steady() error {
	chosen := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { chosen[f.Name] = true })
	for name, value := range map[string]string{
		"rapid.seed": "1", "rapid.checks": "100", "rapid.shrinktime": "20s",
		"rapid.nofailfile": "true", // what a service answers depends on more than the request
	} {
		if !chosen[name] {
			if err := flag.Set(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// fuzzer sends drawn requests to a service and holds the answers to its contract.
type fuzzer struct {
	base     string // what comes before the contract's paths
	document *openapi3.T
	client   *http.Client
	key      http.Header
	world    *world
	health   string // a path that answers 200 as long as the service runs

	// expected are answers of 5xx that are right, by operation and status, with the reason.
	expected map[string]string

	mu   sync.Mutex
	seen map[string]int // by operation and status
}

// TestFuzzLifecycle sends requests that are derived from the contract to the lifecycle service on a
// real engine: none is answered with a status or a body that the contract does not have, or with an
// internal error, or never.
func TestFuzzLifecycle(t *testing.T) {
	t.Parallel()
	document, err := conformance.LifecycleContract()
	if err != nil {
		t.Fatal(err)
	}
	directory, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, conformance.Plan{Settings: fmt.Sprintf("[storage]\nallowed_host_paths = [%q]", directory)})
	running, paused := s.Running(t, idle()), s.Running(t, idle())
	s.Pause(t, paused)
	ended := s.Running(t, idle())
	s.Delete(t, ended)
	claim := s.Instance + "-fuzz"
	t.Cleanup(func() {
		s.DeleteAll(t) // a volume in use cannot be removed
		dockerCLI(t, "volume", "create", claim)
		dockerCLI(t, "volume", "rm", claim)
	})
	f := newFuzzer(t, s.URL, document, http.Header{conformance.KeyHeader: {conformance.AdminKey}})
	f.health = "/health"
	f.expected["pruneImages 501"] = "a Docker Engine has images of others"
	f.expected["updateLifecycle 501"] = "a Docker Engine keeps no sandbox on the disk"
	f.expected["createSandbox 501"] = f.expected["updateLifecycle 501"]
	f.expected["pauseSandbox 501"] = "a Docker Engine does not pause with files alone"
	f.expected["takeSnapshot 501"] = "a Docker Engine keeps no memory"
	f.expected["forkSandbox 501"] = f.expected["takeSnapshot 501"]
	f.expected["getSnapshotDiff 501"] = "a Docker Engine does not compare snapshots"
	// Nothing listens on that port: pulls fail at once, and reach no registry.
	nowhere := []string{"127.0.0.1:1/none:a", "127.0.0.1:1/none@sha256:" + strings.Repeat("0", 64),
		"127.0.0.1:1/none", "UPPER", "a b", ":", "a:b:c", "@"}
	f.world = &world{texts: map[string][]string{
		"sandboxId":  {running, running, paused, ended, "00000000-0000-4000-8000-000000000000"},
		"uri":        nowhere,
		"imageName":  nowhere,
		"keyName":    {"ci", "server.api_key", "a%2Fb", "none"},
		"entrypoint": {"sleep", "1000", "true", "/no/such/file", "sh"},
		"host":       {directory},
		"path":       {directory, "/etc", directory + "/..", "relative", directory + "/none"},
		"claimName":  {claim, "../x", "a/b"},
		"subPath":    {"a", "..", "/a", "a/../b", "."},
		"mountPath":  {"/data", "/data/a", "/", "/proc", "/opt/sandbox", "data", "/data/../etc"},
		"metadata":   {"name=a", "a=b&c=d", "=", "a", "a=%3D&b=%26", "%zz=1"},
		"state":      {"Running", "running", "PAUSED", "Terminated", "nothing"},
		"username":   {"u"}, "password": {"p"},
		"metadata key": {"name", "team", "sandbox.internal/x", strings.Repeat("k", 257)},
		"env key":      {"PATH", "A=B", "", "EXECD_TOKEN", "LANG"},
	}}
	made, sandboxes := 0, f.world.texts["sandboxId"]
	f.run(t, func(operation string) {
		f.world.texts["uri"], f.world.texts["sandboxId"] = nowhere, sandboxes
		if operation == "forkSandbox" { // each request could make a hundred
			f.world.texts["sandboxId"] = []string{ended, "00000000-0000-4000-8000-000000000000"}
		}
		if operation == "createSandbox" && made < fuzzed {
			made++
			f.world.texts["uri"] = []string{busyboxImage}
		}
	})
}

// TestFuzzExecd does the same to the daemon of a real sandbox, which may do to itself what it
// likes.
func TestFuzzExecd(t *testing.T) {
	t.Parallel()
	document, err := conformance.ExecdContract()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(baseImage, "sleep", "100000"))
	inside := s.Enter(t, id)
	inside.Want(t,
		"mkdir -p /tmp/fuzz/d/e && cd /tmp/fuzz && echo one > a && echo two > 'b c' && ln -s a link && ln -s loop loop && mkfifo fifo", "")
	endpoint := s.Endpoint(t, id, conformance.DaemonPort)
	key := http.Header{}
	for name, value := range endpoint.Headers {
		key.Set(name, value)
	}
	f := newFuzzer(t, endpoint.URL, document, key)
	f.health = "/ping"
	for _, operation := range []string{"createContext", "runCode"} {
		f.expected[operation+
			" 503"] = "the image has no kernel, and a service that has none cannot run code"
	}
	f.expected["keepAwake 503"] = "so many programs may ask for that"
	commands := []string{background(t, inside, "sleep 100000"),
		background(t, inside, "echo done; exit 3")}
	paths := []string{
		"/tmp/fuzz/a", "/tmp/fuzz/b c", "/tmp/fuzz/link", "/tmp/fuzz/loop", "/tmp/fuzz/fifo",
		"/tmp/fuzz", "/tmp/fuzz/d", "/tmp/fuzz/d/e", "/tmp/fuzz/new",
		"/tmp/fuzz/new/deeper/file", "/tmp/fuzz/a/below", "tmp/fuzz/../fuzz/a", "/dev/zero",
		"/proc/self/mem", "/proc/1/root", "/sys/kernel",
		"/opt/sandbox/execd", "~/x", "/tmp/fuzz/\xff",
	}
	f.world = &world{texts: map[string][]string{
		"id": slices.Concat(commands, []string{"no-such-id"}), "context_id": {"no-such-id"},
		"path": paths, "src": paths, "dest": paths, "body": paths, "body key": paths,
		"cwd": {"/tmp", "/tmp/fuzz", "/none", "/etc/passwd", ""},
		"command": {"true", "echo hello", "exit 3", "sleep 0.01", "printf '\\377'", "cat",
			"kill $$", "bash"},
		"code": {"1+1"}, "language": {"python", "bash", "klingon"},
		"pattern": {"*", "**", "**/*", "[", "{a,b}", "a?c", "../*"},
		"Range": {"bytes=0-1", "bytes=1-", "bytes=-1", "bytes=5-1", "bytes=0-1,2-3",
			"lines=1-2"},
		"Last-Event-ID": {"0", "1", "99999"},
		"owner":         {"root", "nobody", "0", "65534", "nobody-of-that-name", "-1"},
		"group":         {"root", "0", "nogroup", "none-of-that-name"},
		"old":           {"one", "two", "o"}, "new": {"", "three"},
		"envs key": {"A", "A=B", "", "EXECD_X", "PATH"},
	}}
	f.run(t, func(string) {})
	inside.Want(t, "echo still here", "still here\n")
}

// background starts a command and returns its id.
func background(t *testing.T, b *conformance.Box, command string) string {
	t.Helper()
	yes := true
	response, err := b.Client.RunCommandWithResponse(t.Context(), nil,
		execd.CommandRequest{Command: command, Background: &yes})
	if err != nil || response.JSON200 == nil {
		t.Fatalf("%q in the background: %v, %s", command, err, response.Body)
	}
	return response.JSON200.ID
}

func newFuzzer(t *testing.T, base string, document *openapi3.T, key http.Header) *fuzzer {
	transport := &http.Transport{MaxIdleConnsPerHost: 4}
	t.Cleanup(transport.CloseIdleConnections)
	return &fuzzer{
		base: base, document: document, key: key, expected: map[string]string{},
		seen: map[string]int{},
		client: &http.Client{Transport: transport, Timeout: wait.Patience(),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

// run draws requests to each operation, one operation after the other.
func (f *fuzzer) run(t *testing.T, before func(operation string)) {
	for _, d := range inOrder(f.document) {
		t.Run(d.operation.OperationID, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				before(d.operation.OperationID)
				f.try(r, d, f.world.draw(r, d, f.key))
			})
			response, err := f.client.Get(f.base + f.health)
			if err != nil {
				t.Fatalf("the service is gone: %v", err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", f.health, response.Status)
			}
		})
	}
	if testing.Verbose() { // they would hide the messages of what has failed
		for _, pair := range slices.Sorted(maps.Keys(f.seen)) {
			t.Logf("%5d %s", f.seen[pair], pair)
		}
	}
}

// try sends a request and judges the answer.
func (f *fuzzer) try(t *rapid.T, d documented, r drawn) {
	ctx, stop := context.WithTimeout(context.Background(), hang)
	defer stop()
	request, err := r.request(f.base)
	if err != nil {
		t.Fatalf("%v\n%s", err, r)
	}
	response, err := f.client.Do(request.WithContext(ctx))
	if err != nil {
		t.Fatalf("no answer: %v\n%s", err, r)
	}
	defer response.Body.Close()
	pair := fmt.Sprintf("%s %d", d.operation.OperationID, response.StatusCode)
	f.mu.Lock()
	f.seen[pair]++
	f.mu.Unlock()
	mismatch, err := conform.Check(d.operation, response)
	if err != nil {
		t.Fatalf("%s: the answer broke off: %v\n%s", pair, err, r)
	}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") &&
		mismatch == nil {
		mismatch = f.look(d, response)
	}
	if mismatch != nil {
		t.Fatalf("%s: %v\n%s", pair, mismatch, r)
	}
	if _, right := f.expected[pair]; response.StatusCode >= http.StatusInternalServerError &&
		!right {
		// JSON, which was read completely before
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		t.Fatalf("%s: %s\n%s", pair, body, r)
	}
	// What is no JSON may have no end: a log that is followed, say.
}

// look reads a stream for a moment and checks the events that come.
func (f *fuzzer) look(d documented, response *http.Response) error {
	schema, _ := d.operation.Responses.Status(
		response.StatusCode).Value.Content["text/event-stream"].Extensions["x-event-schema"].(string)
	enough := time.AfterFunc(glimpse, func() { response.Body.Close() })
	defer enough.Stop()
	checker := conform.New(f.document, nil, discard{})
	for events := sse.NewReader(response.Body, 1<<20); ; {
		data, err := events.Next()
		if err != nil {
			return nil // the end of the moment, which may come in the middle of a line
		}
		if err := checker.CheckEvent(schema, data); err != nil {
			return err
		}
	}
}

// discard is for a transport that reports nothing, because nothing is sent over it.
type discard struct{}

func (discard) Helper()               {}
func (discard) Errorf(string, ...any) {}
func (discard) Fatalf(string, ...any) {}
