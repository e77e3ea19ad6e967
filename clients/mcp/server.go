package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

// instructions are for agents: what the descriptions of the tools do not say.
const instructions = `Sandboxes are isolated Linux containers that expire. Create one, keep its ` +
	`id, run commands and code in it, and delete it when done. Output that was cut says how to ` +
	`read the rest, and a command that still runs how to wait for it.`

// defaultPatience is how long a call waits before it answers with what there is: the official
// clients of the protocol give up after a minute.
const defaultPatience = 45 * time.Second

// What tools get and answer with.
type (
	call    = *mcp.CallToolRequest
	content = []mcp.Content
)

// tools are the calls of one server. client returns the client that acts for the caller of ctx.
type tools struct {
	client   func(ctx context.Context) (*sandbox.Client, error)
	patience time.Duration // of a create
}

// New returns a server with all tools. classes are the runtime classes that a sandbox may be
// created with. client returns the client that acts for the caller of a context, or the error that
// the agent gets.
func New(version string, classes []string,
	client func(context.Context) (*sandbox.Client, error)) *mcp.Server {
	return newServer(version, classes, &tools{client: client, patience: defaultPatience})
}

func newServer(version string, classes []string, t *tools) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "sandbox", Version: version},
		&mcp.ServerOptions{
			Instructions: instructions,
			Logger:       slog.New(slog.DiscardHandler),
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		})
	server.AddReceivingMiddleware(withoutNulls, t.withImages)
	t.client = named(t.client)
	t.addLife(server, classes)
	t.addCheckpoint(server)
	t.addWork(server)
	t.addFiles(server)
	return server
}

// ServeStdio serves one agent over a pair of streams, standard input and output, until in ends or
// ctx does. Every call acts as client. version is the program's. Before it returns, the commands of
// calls that had not ended are interrupted.
func ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser, client *sandbox.Client,
	version string) error {
	server := New(version, runtimeClasses(ctx, client),
		func(context.Context) (*sandbox.Client, error) { return client, nil })
	session, err := server.Connect(WithEnd(ctx),
		&mcp.IOTransport{Reader: in, Writer: out}, nil)
	if err != nil {
		return fmt.Errorf("mcp: %w", err)
	}
	// It waits for its calls, which end with ctx.
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer stop()
	err = session.Wait()
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// classesPatience is how long the service may take to report its runtime classes before tools are
// offered without them.
const classesPatience = 5 * time.Second

// runtimeClasses returns the runtime classes of the service; none when it does not answer, for its
// error is better shown to a call that needs it.
func runtimeClasses(ctx context.Context, client *sandbox.Client) []string {
	ctx, cancel := context.WithTimeout(ctx, classesPatience)
	defer cancel()
	version, err := client.Version(ctx)
	if err != nil {
		return nil
	}
	return version.RuntimeClasses
}

type endKey struct{}

// WithEnd returns a context whose calls end with ctx. The protocol's library keeps the values of
// the context that a session was opened with, but not its end.
func WithEnd(ctx context.Context) context.Context { return context.WithValue(ctx, endKey{}, ctx) }

// bind ends the context of a call as WithEnd says.
func bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	end, ok := ctx.Value(endKey{}).(context.Context)
	if !ok {
		return ctx, cancel
	}
	stop := context.AfterFunc(end, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// The annotations of tools. What a sandbox reaches is the world's.
func readOnly(title string) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, ReadOnlyHint: true, OpenWorldHint: new(bool)}
}

func changes(title string, destructive, idempotent, open bool) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, DestructiveHint: &destructive,
		IdempotentHint: idempotent, OpenWorldHint: &open}
}

// add adds a tool whose answers have content alone: those with images, which clients that show a
// structured answer leave out, and those that report nothing but success.
func add[In any](server *mcp.Server, tool *mcp.Tool,
	do func(context.Context, call, In) (content, error)) {
	addStructured(server, tool, func(ctx context.Context, request call, in In) (content, any, error) {
		shown, err := do(ctx, request, in)
		return shown, nil, err
	})
}

// addStructured adds a tool whose answers have the same in a structure, whose schema is that of
// Out. An error of do is shown to the agent, which can do better then.
func addStructured[In, Out any](server *mcp.Server, tool *mcp.Tool,
	do func(context.Context, call, In) (content, Out, error)) {
	if reflect.TypeFor[Out]() != reflect.TypeFor[any]() {
		tool.OutputSchema = outputSchema[Out]()
	}
	mcp.AddTool(server, tool, func(ctx context.Context, request call,
		in In) (*mcp.CallToolResult, Out, error) {
		ctx, cancel := bind(withAgent(ctx, request))
		defer cancel()
		shown, out, err := do(ctx, request, in)
		if err != nil {
			return nil, out, bounded(err)
		}
		return &mcp.CallToolResult{Content: shown}, out, nil
	})
}

// outputSchema is the schema of an answer, without what only those who write one need: every
// session of an agent pays for its text.
func outputSchema[Out any]() *jsonschema.Schema {
	schema, err := jsonschema.For[Out](nil)
	if err != nil {
		panic(err) // the type is fixed
	}
	slim(schema)
	return schema
}

func slim(schema *jsonschema.Schema) {
	schema.AdditionalProperties = nil
	if slices.Contains(schema.Types, "array") { // no list is null
		schema.Type, schema.Types = "array", nil
	}
	if schema.Items != nil {
		slim(schema.Items)
	}
	for _, field := range schema.Properties {
		slim(field)
	}
}

// text is an answer of text alone.
func text(format string, args ...any) content {
	return content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}
}

// box returns the sandbox that a call is about.
func (t *tools) box(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	client, err := t.client(ctx)
	if err != nil {
		return nil, err
	}
	return client.Connect(ctx, id)
}
