package mcp_test

import (
	"encoding/json"
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
	client, err := sandbox.New(sandbox.Options{URL: "http://127.0.0.1:1", Key: "none"})
	if err != nil {
		t.Fatal(err)
	}
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- server.ServeStdio(t.Context(), in, out, client, "test") }()
	agent := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := agent.Connect(t.Context(), &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil)
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
		t.Errorf("%d tools of %d tokens; at most %d, less than %d", len(list.Tools), len(text)/4, maxTools, maxTokens)
	}
	for _, tool := range list.Tools {
		hints := tool.Annotations
		if tool.Description == "" || hints == nil || hints.Title == "" || hints.OpenWorldHint == nil ||
			!hints.ReadOnlyHint && hints.DestructiveHint == nil {
			t.Errorf("%s: its description or annotations are incomplete", tool.Name)
		}
	}
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_sandboxes", Arguments: map[string]any{"stat": "Running"}})
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
