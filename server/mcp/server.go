package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/sdk/go"
)

// instructions tell an agent what the descriptions of the tools do not.
const instructions = `Sandboxes are isolated Linux containers that expire. Create one, keep its id, ` +
	`run commands and code in it, and delete it when done. Output that was cut says how to read the rest.`

// tools are the calls of one server. client returns the client that acts for the caller of ctx.
type tools struct {
	client func(ctx context.Context) (*sandbox.Client, error)
}

// newServer returns a server with all tools.
func newServer(version string, client func(context.Context) (*sandbox.Client, error)) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "sandbox", Version: version},
		&mcp.ServerOptions{
			Instructions: instructions,
			Logger:       slog.New(slog.DiscardHandler),
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		})
	t := &tools{client: client}
	t.addLife(server)
	t.addWork(server)
	t.addFiles(server)
	return server
}

// ServeStdio serves one agent over a pair of streams, standard input and output, until in ends or
// ctx does. Every call acts as client. version is the program's. Before it returns, the commands of
// calls that had not ended are interrupted.
func ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser, client *sandbox.Client,
	version string) error {
	server := newServer(version, func(context.Context) (*sandbox.Client, error) { return client, nil })
	session, err := server.Connect(context.WithValue(ctx, callerKey{}, caller{ctx: ctx}),
		&mcp.IOTransport{Reader: in, Writer: out}, nil)
	if err != nil {
		return fmt.Errorf("mcp: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = session.Close() }) // waits for its calls, which end with ctx
	defer stop()
	err = session.Wait()
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// The annotations of tools. What a sandbox reaches is the world's.
func readOnly(title string) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, ReadOnlyHint: true, OpenWorldHint: new(bool)}
}

func changes(title string, destructive, idempotent, open bool) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, DestructiveHint: &destructive,
		IdempotentHint: idempotent, OpenWorldHint: &open}
}

// add adds a tool. An error of call is shown to the agent, which can do better then.
func add[In any](server *mcp.Server, tool *mcp.Tool,
	call func(context.Context, *mcp.CallToolRequest, In) ([]mcp.Content, error)) {
	mcp.AddTool(server, tool, func(ctx context.Context, request *mcp.CallToolRequest,
		in In) (*mcp.CallToolResult, any, error) {
		ctx, cancel := bind(ctx)
		defer cancel()
		content, err := call(ctx, request, in)
		if err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: content}, nil, nil
	})
}

// text is an answer of text alone.
func text(format string, args ...any) []mcp.Content {
	return []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}
}

// box returns the sandbox that a call is about.
func (t *tools) box(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	client, err := t.client(ctx)
	if err != nil {
		return nil, err
	}
	return client.Connect(ctx, id)
}
