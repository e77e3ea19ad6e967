package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	sandbox "sandbox.internal/clients/go"
	server "sandbox.internal/clients/mcp"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	maxTools  = 13
	maxTokens = 3000
)

// TestTools: what an agent pays for before its first call. A token is counted as four bytes of the
// JSON that tools/list answers, which is more than tokenizers make of it.
func TestTools(t *testing.T) {
	session := connect(t, "http://127.0.0.1:1")
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list.Tools)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tools, %d tokens", len(list.Tools), len(text)/4)
	for _, tool := range list.Tools {
		images := tool.Name == "run_code" || tool.Name == "read_file"
		silent := tool.Name == "write_file" || tool.Name == "delete_sandbox"
		if has := tool.OutputSchema != nil; has == (images || silent) {
			t.Errorf("%s has an output schema: %t", tool.Name, has)
		}
	}
	if len(list.Tools) > maxTools || len(text)/4 >= maxTokens {
		t.Errorf("%d tools of %d tokens; at most %d, less than %d", len(list.Tools), len(text)/4,
			maxTools, maxTokens)
	}
	for _, tool := range list.Tools {
		hints := tool.Annotations
		if tool.Description == "" || hints == nil || hints.Title == "" || hints.OpenWorldHint == nil ||
			!hints.ReadOnlyHint && hints.DestructiveHint == nil {
			t.Errorf("%s: its description or annotations are incomplete", tool.Name)
		}
	}
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_sandboxes",
		Arguments: map[string]any{"stat": "Running"}})
	if err == nil && !result.IsError {
		t.Error("an argument that does not exist is accepted")
	}
}

// connect returns an agent's session with the tools, for the service at the URL, until the test
// ends.
func connect(t *testing.T, url string) *mcp.ClientSession {
	t.Helper()
	client, err := sandbox.New(&sandbox.Options{URL: url, Key: "none", MaxAnswer: 8 << 20}) // as in the service
	if err != nil {
		t.Fatal(err)
	}
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- server.ServeStdio(context.WithoutCancel(t.Context()), in, out, client, "test") }()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(session.Close(), wait.For(t, "the end of the session", served)); err != nil {
			t.Error(err)
		}
	})
	return session
}

// TestRuntimeClasses: the tool that creates has the service's classes as its choices, and no field
// for them where there are none.
func TestRuntimeClasses(t *testing.T) {
	for _, classes := range [][]string{nil, {"gvisor", "kata"}} {
		service, agent := mcp.NewInMemoryTransports()
		tools := server.New("test", classes,
			func(context.Context) (*sandbox.Client, error) { return nil, errors.New("no service") })
		served, err := tools.Connect(t.Context(), service, nil)
		if err != nil {
			t.Fatal(err)
		}
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
			Connect(t.Context(), agent, nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := session.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var choices []any
		for _, tool := range list.Tools {
			if tool.Name != "create_sandbox" {
				continue
			}
			properties := tool.InputSchema.(map[string]any)["properties"].(map[string]any)
			if field, ok := properties["runtime_class"].(map[string]any); ok {
				choices = field["enum"].([]any)
			}
			if _, ok := properties["image"]; !ok {
				t.Errorf("the schema has lost its other fields: %v", properties)
			}
		}
		if fmt.Sprint(choices) != fmt.Sprint(classes) {
			t.Errorf("the choices are %v, want %v", choices, classes)
		}
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "create_sandbox",
			Arguments: map[string]any{"image": "x", "runtime_class": "other"}})
		if err == nil && !result.IsError {
			t.Error("a class that the service does not have is accepted")
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
		_ = served.Wait()
	}
}

// TestMissingOutput: what a command wrote beyond the limit of its log is not passed over in
// silence.
func TestMissingOutput(t *testing.T) {
	const inside = "/v1/sandboxes/box/proxy/44772/command"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"box","status":{"state":"Running"}}`)
	})
	mux.HandleFunc("GET "+inside+"/status/c", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"c","running":true}`)
	})
	mux.HandleFunc("GET "+inside+"/c/logs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("EXECD-COMMANDS-TAIL-CURSOR", "0")
		w.Header().Set("EXECD-COMMANDS-DROPPED-BYTES", "4096")
		_, _ = io.WriteString(w, "one\n")
	})
	service := httptest.NewServer(mux)
	t.Cleanup(service.Close)
	result, err := connect(t, service.URL).CallTool(t.Context(), &mcp.CallToolParams{Name: "read_logs",
		Arguments: map[string]any{"sandbox": "box", "command": "c"}})
	if err != nil {
		t.Fatal(err)
	}
	answer, ok := result.Content[0].(*mcp.TextContent)
	if !ok || !strings.Contains(answer.Text, "4096 bytes") || !strings.Contains(answer.Text, "one\n") {
		t.Errorf("the answer is %+v", result.Content[0])
	}
}

// TestNullIsLeftOut: models write null for what they leave out.
func TestNullIsLeftOut(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet { // it publishes no defaults
			http.NotFound(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"code": "SEEN", "message": string(body)})
	}))
	t.Cleanup(service.Close)
	session := connect(t, service.URL)
	call := func(arguments string) string {
		t.Helper()
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "create_sandbox",
			Arguments: json.RawMessage(arguments)})
		if err != nil {
			return err.Error()
		}
		text, err := json.Marshal(result.Content)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, arguments := range []string{
		`{"image":"a","life_seconds":null}`, `{"image":"a","name":null}`,
		`{"image":"a","env":null,"allow_hosts":null,"cpu":null,"memory":null}`,
		`{"image":"a","on_idle":null,"idle_seconds":null,"on_timeout":null,"auto_resume":null}`,
	} {
		if got, want := call(arguments), call(`{"image":"a"}`); got != want || !strings.Contains(got, "timeout") {
			t.Errorf("%s: the service got %s, want %s", arguments, got, want)
		}
	}
	if got := call(`{"image":"a","on_idle":"pause","auto_resume":false}`); !strings.Contains(got, `lifecycle`) ||
		!strings.Contains(got, `false`) || !strings.Contains(got, `pause`) {
		t.Errorf("the service got %s", got)
	}
	for arguments, want := range map[string]string{
		`{"image":null}`:                       "no image is given",
		`{"image":"a","env":{"A":null}}`:       "null",
		`{"image":"a","allow_hosts":[null]}`:   "null",
		`{"image":"a","nothing_of_this":null}`: "timeout",
	} {
		if got := call(arguments); !strings.Contains(got, want) || strings.Contains(got, "reflect") {
			t.Errorf("%s: %s, want %q", arguments, got, want)
		}
	}
}
