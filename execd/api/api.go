// Package api serves the execution contract (openapi/execd.yaml) over HTTP. A handler converts and
// calls one of execd's packages, which decides; errors are returned, and one table maps them.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/code"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/execd/internal/metrics"
	"sandbox.internal/execd/internal/ports"
	"sandbox.internal/execd/internal/watch"
	"sandbox.internal/execd/proxy"
	"sandbox.internal/execd/terminal"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
)

// tokenHeader is the header that carries the access token (execd document, "Authentication").
const tokenHeader = "X-EXECD-ACCESS-TOKEN"

// documentedPort is execd's default port (execd document, "Daemon settings").
const documentedPort = 44772

// maxJSONBody bounds a JSON request body, in bytes. A replacement or a command line may be long.
const maxJSONBody = 16 << 20

// Options configures the API. The engines are required.
type Options struct {
	// Activity records operations; nil means a log of its own.
	Activity *activity.Log
	Code     *code.Manager
	Commands *command.Manager
	Files    *files.Files
	Freezer  *freeze.Freezer
	// Holds has what keeps the sandbox awake; nil means a registry of its own.
	Holds     *holds.Registry
	Metrics   *metrics.Sampler
	Ports     *ports.Table
	Terminals *terminal.Manager
	// Token is what requests must carry; empty admits every request.
	Token string
	// Port is the port that execd listens on, which its own proxy serves without a hop.
	Port int
	// Linger is how long event streams stay open after their last event once the daemon is
	// stopping, so that what is on its way arrives (execd document, --graceful-shutdown-timeout).
	Linger time.Duration
	Logger zerolog.Logger
}

// New returns the HTTP server of execd.
func New(options Options) (*serve.Server, error) {
	if options.Holds == nil {
		options.Holds = holds.New(holds.Options{Processes: options.Freezer})
	}
	server, err := serve.New(serve.Options{
		Rules:        rules.Execd(),
		Logger:       options.Logger,
		Authenticate: holding(options.Holds, serve.HeaderSecret(tokenHeader, options.Token)),
		MaxJSONBody:  maxJSONBody,
		Problem:      problem,
		InternalCode: "RUNTIME_ERROR",
		Quiet:        []string{"ping"},
	})
	if err != nil {
		return nil, err
	}
	if options.Activity == nil {
		options.Activity = activity.New(time.Now)
	}
	h := &handlers{code: options.Code, commands: options.Commands, files: options.Files, freezer: options.Freezer,
		metrics: options.Metrics, ports: options.Ports, ownPort: options.Port, terminals: options.Terminals, linger: options.Linger,
		token: options.Token, repeats: newRepeats(), activity: options.Activity, holds: options.Holds}
	gen.RegisterHandlersWithOptions(server.Echo(), gen.NewStrictHandler(h, nil), gen.RegisterHandlersOptions{
		OperationMiddlewares: server.OperationMiddlewares(),
	})
	// Clients identify execd by the documented port, wherever it listens: a sandbox on the host's
	// network has another one.
	own := []int{options.Port}
	if options.Port != documentedPort {
		own = append(own, documentedPort)
	}
	forwarder := proxy.New(proxy.Options{
		Self:        server,
		SelfPorts:   own,
		TokenHeader: tokenHeader,
		KeyHeader:   keyHeader,
		Logger:      options.Logger,
		ErrorBody:   writeError,
	})
	forward := echo.WrapHandler(forwarder)
	onward := func(c echo.Context) error {
		listen.ForwardBody(c.Request())
		return forward(c)
	}
	server.Echo().Any("/proxy/:port", onward, server.Authenticated)
	server.Echo().Any("/proxy/:port/*", onward, server.Authenticated)
	server.Echo().GET("/tunnel/:port", func(c echo.Context) error {
		listen.ForwardBody(c.Request())
		forwarder.Tunnel(c.Response(), c.Request(), c.Param("port"))
		return nil
	}, server.Authenticated)
	// The path of execd's own port leads back to the server, which asks for the token itself where
	// it is needed.
	for _, port := range own {
		self := fmt.Sprintf("/proxy/%d", port)
		server.Echo().Any(self, forward)
		server.Echo().Any(self+"/*", forward)
	}
	return server, nil
}

// writeError answers with an error from outside of the contract.
func writeError(w http.ResponseWriter, _ *http.Request, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(gen.Error{Code: code, Message: message}) // a client that is gone by now is no news
}

type handlers struct {
	code      *code.Manager
	commands  *command.Manager
	files     *files.Files
	freezer   *freeze.Freezer
	metrics   *metrics.Sampler
	ports     *ports.Table
	ownPort   int
	terminals *terminal.Manager
	linger    time.Duration
	token     string
	repeats   *repeats
	activity  *activity.Log
	holds     *holds.Registry
}

// problem is the one table from the engines' errors to HTTP (execd document, "Errors").
func problem(err error) (serve.Problem, bool) {
	switch {
	case invalid.Is(err), errors.Is(err, watch.ErrInvalid):
		return serve.Problem{Status: http.StatusBadRequest, Code: "INVALID_REQUEST_BODY", Message: err.Error()}, true
	case errors.Is(err, command.ErrNotFound), errors.Is(err, code.ErrNotFound), errors.Is(err, terminal.ErrNotFound):
		return serve.Problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Message: err.Error()}, true
	case errors.Is(err, watch.ErrNotFound):
		return serve.Problem{Status: http.StatusNotFound, Code: "FILE_NOT_FOUND", Message: err.Error()}, true
	case errors.Is(err, watch.ErrPermission):
		return serve.Problem{Status: http.StatusForbidden, Code: "FORBIDDEN", Message: err.Error()}, true
	case errors.Is(err, command.ErrConflict):
		return serve.Problem{Status: http.StatusConflict, Code: "CONFLICT", Message: err.Error()}, true
	case errors.Is(err, holds.ErrBusy):
		return serve.Problem{Status: http.StatusConflict, Code: "NOT_IDLE", Message: err.Error()}, true
	case errors.Is(err, freeze.ErrFrozen), errors.Is(err, holds.ErrPaused):
		return serve.Problem{Status: http.StatusConflict, Code: "FROZEN", Message: err.Error()}, true
	case atProcessLimit(err):
		return serve.Problem{Status: http.StatusServiceUnavailable, Code: "SERVICE_UNAVAILABLE",
			Message: "the sandbox has as many processes as it may have: end some, with DELETE /command, and try again"}, true
	case errors.Is(err, command.ErrClosed), errors.Is(err, code.ErrClosed), errors.Is(err, code.ErrUnavailable),
		errors.Is(err, code.ErrFull), errors.Is(err, terminal.ErrClosed), errors.Is(err, watch.ErrLimit),
		errors.Is(err, holds.ErrTooMany), errors.Is(err, holds.ErrTooManyWatches):
		return serve.Problem{Status: http.StatusServiceUnavailable, Code: "SERVICE_UNAVAILABLE", Message: err.Error()}, true
	}
	switch files.KindOf(err) {
	case files.KindInvalid:
		return serve.Problem{Status: http.StatusBadRequest, Code: "INVALID_REQUEST_BODY", Message: err.Error()}, true
	case files.KindNotFound:
		return serve.Problem{Status: http.StatusNotFound, Code: "FILE_NOT_FOUND", Message: err.Error()}, true
	case files.KindConflict:
		return serve.Problem{Status: http.StatusConflict, Code: "CONFLICT", Message: err.Error()}, true
	case files.KindPermission:
		return serve.Problem{Status: http.StatusForbidden, Code: "FORBIDDEN", Message: err.Error()}, true
	case files.KindNoSpace:
		return serve.Problem{Status: http.StatusInsufficientStorage, Code: "INSUFFICIENT_STORAGE", Message: err.Error()}, true
	}
	return serve.Problem{}, false
}

// atProcessLimit recognises a process that was not started because the kernel allows no more of
// them (fork(2), EAGAIN).
func atProcessLimit(err error) bool {
	var start *fs.PathError
	return errors.As(err, &start) && start.Op == "fork/exec" && errors.Is(start, syscall.EAGAIN)
}
