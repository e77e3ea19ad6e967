package clients_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/server/mcphttp"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// agent is the official client of the protocol, with one key.
type agent struct {
	*mcp.ClientSession
	t *testing.T

	mu       sync.Mutex
	progress []string
	notified chan struct{} // of progress

	cut context.CancelFunc // loses its connections; over HTTP only
}

// ping sends a message as any program could.
func ping(t *testing.T, url, key string, headers ...string) conformance.Answer {
	t.Helper()
	return post(t, url, key, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, headers...)
}

// post sends a message. Headers are pairs of name and value.
func post(t *testing.T, url, key, message string, headers ...string) conformance.Answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+mcphttp.Path,
		strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	headers = append(headers, conformance.KeyHeader, key, "Content-Type", "application/json",
		"Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := wait.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return conformance.Answer{Status: response.StatusCode, Header: response.Header, Body: string(body)}
}

// awaitProcess waits until a process with that command line runs in a sandbox, or does not.
func awaitProcess(t *testing.T, s *service, id, line string, want bool) {
	t.Helper()
	client, err := sandbox.New(&sandbox.Options{URL: s.URL, Key: conformance.AdminKey})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	box, err := client.Connect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, fmt.Sprintf("that %q runs in the sandbox is %v", line, want), func() bool {
		result, err := box.Commands.Run(t.Context(),
			"for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done", nil)
		return err == nil && strings.Contains(result.Stdout, "\n"+line) == want
	})
}

// keyed adds a key to requests, and can lose the connections.
type keyed struct {
	key  string
	base *http.Transport
	ctx  context.Context
}

func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	context.AfterFunc(k.ctx, cancel)
	r = r.Clone(ctx)
	r.Header.Set(conformance.KeyHeader, k.key)
	return k.base.RoundTrip(r)
}

func overHTTP(t *testing.T, url, key string) *agent {
	t.Helper()
	ctx, lose := context.WithCancel(context.Background())
	base := &http.Transport{}
	a := connect(t, &mcp.StreamableClientTransport{Endpoint: url + mcphttp.Path, MaxRetries: -1,
		DisableStandaloneSSE: true,
		HTTPClient:           &http.Client{Transport: &keyed{key, base, ctx}, Timeout: wait.Patience()}})
	a.cut = lose
	t.Cleanup(func() {
		lose()
		base.CloseIdleConnections()
	})
	return a
}

func connect(t *testing.T, transport mcp.Transport) *agent {
	t.Helper()
	a := &agent{t: t, notified: make(chan struct{}, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.progress = append(a.progress, r.Params.Message)
			select {
			case a.notified <- struct{}{}:
			default:
			}
		},
	})
	session, err := client.Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.ClientSession = session
	t.Cleanup(func() { _ = session.Close() }) // some tests lose it before
	return a
}

// ask calls a tool and returns the text of its answer.
func (a *agent) ask(tool string, arguments map[string]any) (string, bool) {
	a.t.Helper()
	if arguments == nil {
		arguments = map[string]any{}
	}
	params := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	params.SetProgressToken(tool)
	result, err := a.CallTool(a.t.Context(), params)
	if err != nil {
		a.t.Errorf("%s: %v", tool, err)
		return "", true
	}
	var text strings.Builder
	for _, content := range result.Content {
		switch c := content.(type) {
		case *mcp.TextContent:
			text.WriteString(c.Text)
		case *mcp.ImageContent:
			fmt.Fprintf(&text, "<%s of %d bytes>", c.MIMEType, len(c.Data))
		}
	}
	return text.String(), result.IsError
}

func (a *agent) call(tool string, arguments map[string]any) string {
	a.t.Helper()
	text, failed := a.ask(tool, arguments)
	if failed {
		a.t.Errorf("%s %v: %s", tool, arguments, text)
	}
	return text
}

func (a *agent) refused(want, tool string, arguments map[string]any) {
	a.t.Helper()
	if text, failed := a.ask(tool, arguments); !failed || !strings.Contains(text, want) {
		a.t.Errorf("%s %v: %q, want an error with %q", tool, arguments, text, want)
	}
}

// create returns the id of a new sandbox, which expires.
func (a *agent) create(image string) string {
	a.t.Helper()
	text := a.call("create_sandbox",
		map[string]any{"image": image, "memory": "512Mi", "life_seconds": 600})
	match := regexp.MustCompile(`(?s)^id: (\S+)\nstate: Running\nexpires: (\S+)`).
		FindStringSubmatch(text)
	if match == nil {
		a.t.Fatalf("created: %q", text)
	}
	until, err := time.Parse(time.RFC3339, match[2])
	if err != nil || time.Until(until) > 11*time.Minute {
		a.t.Errorf("the sandbox expires %s", match[2])
	}
	return match[1]
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// readsOn is how cut output says what reads the rest.
var readsOn = regexp.MustCompile(`cursor (\d+) reads on`)
