// Package e2b lets the clients of E2B use execd: it answers what they send to envd, the daemon of
// E2B's sandboxes, and to the code interpreter beside it, on the engines of execd. docs/e2b.md has
// what differs.
//
// No client sends these requests to execd itself. The lifecycle service (package server/e2b) takes
// them, finds the sandbox, lets them in, and forwards them to the same path below [Prefix] with the
// sandbox's token.
package e2b

import (
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/code"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/terminal"
	"sandbox.internal/openapi/serve"
)

// Prefix begins the paths of all operations.
const Prefix = "/e2b"

// The headers that the service adds to every request, and takes away from what clients send: the
// default user and working directory of the sandbox's template, and the ids of the sandbox and of
// the template, escaped as parts of a path. Empty means execd's own user, the home of the user, and
// processes without a variable for the id.
const (
	DefaultUserHeader      = "X-E2b-Default-User"
	DefaultDirectoryHeader = "X-E2b-Default-Directory"
	SandboxHeader          = "X-E2b-Own-Sandbox"
	TemplateHeader         = "X-E2b-Own-Template"
)

// Options are the engines of execd.
type Options struct {
	Activity  *activity.Log
	Code      *code.Manager
	Commands  *command.Manager
	Files     *files.Files
	Freezer   *freeze.Freezer
	Terminals *terminal.Manager
	// Env is the environment of the sandbox, NAME=value each, which processes start with.
	Env []string
	// Stopping reports whether execd stops, and ends what runs with the sandbox. It does so before
	// the first process is ended for that.
	Stopping func() bool
	Logger   zerolog.Logger
}

// handler answers the clients of E2B.
type handler struct {
	Options
	processes *processes
}

// Register adds the operations to the server.
func Register(server *serve.Server, options Options) {
	h := &handler{Options: options}
	add := func(method, path string, handle echo.HandlerFunc) {
		server.Echo().Add(method, Prefix+path, handle, server.Named("e2b", false), server.Authenticated)
	}
	add(http.MethodGet, "/health", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) })
	h.registerProcess(add)
	h.registerFilesystem(add)
	h.registerFiles(add)
	h.registerCode(add)
}

// adder registers an operation below [Prefix].
type adder = func(method, path string, handle echo.HandlerFunc)

// keyHeader carries the name of the API key that a request came with, escaped as a part of a path,
// as for the operations of execd's own contract.
const keyHeader = "X-EXECD-KEY-NAME"

// record returns a record of an operation that a request asks for.
func (h *handler) record(r *http.Request, kind activity.Kind) *activity.Operation {
	key := r.Header.Get(keyHeader)
	if name, err := url.PathUnescape(key); err == nil {
		key = name
	}
	return h.Activity.Prepare(kind, activity.Caller{Key: key, Client: r.Header.Get("User-Agent")})
}
