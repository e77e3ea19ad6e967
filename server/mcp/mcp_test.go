package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	sandbox "sandbox.internal/sdk/go"
	server "sandbox.internal/server/mcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	maxTools  = 12
	maxTokens = 3000
)

// TestTools: what an agent pays for before its first call. A token is counted as four bytes of the
// JSON that tools/list answers, which is more than tokenizers make of it.
func TestTools(t *testing.T) {
	client, err := sandbox.New(&sandbox.Options{URL: "http://127.0.0.1:1", Key: "none"})
	if err != nil {
		t.Fatal(err)
	}
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- server.ServeStdio(t.Context(), in, out, client, "test") }()
	agent := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := agent.Connect(t.Context(),
		&mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list.Tools)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tools, %d tokens", len(list.Tools), len(text)/4)
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
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestRuntimeClasses: the tool that creates has the service's classes as its choices, and no field for
// them where there are none.
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
