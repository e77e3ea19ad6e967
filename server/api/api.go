// Package api serves the lifecycle contract (openapi/lifecycle.yaml) over HTTP. A handler checks
// the key's scope, converts, and calls the backend, which decides; errors are returned, and one
// table maps them.
package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// Version identifies the build of the service.
type Version struct {
	Version string
	Commit  string
}

// Engine is what runs the sandboxes of a service on one machine.
type Engine struct {
	Name    string // docker or local
	Version string // at the start of the service
	// Problem returns why sandboxes do not reach the network, and what to type; "" when nothing is
	// known to be wrong. Nil when the engine cannot say.
	Problem func() string
	// HostUsers returns why users in sandboxes are those of the machine; "" when they are others.
	// Nil when the engine cannot say.
	HostUsers func() string
	// GPUs returns the kind of the GPUs that sandboxes can have, the names of those of the machine,
	// and an error with those that could be read. Nil when the engine has none to give.
	GPUs func() (kind string, names []string, err error)
}

// Defaults are what clients are to ask for where their users say nothing. The limits are those of
// the API key.
type Defaults struct {
	Image   string        // empty means none
	Timeout time.Duration // of whole seconds; 0 means an hour
}

// Options configures the API. Backend is required.
type Options struct {
	Backend lifecycle.Backend
	// Images manages the images of the backend; nil when it has no such ability.
	Images lifecycle.ImageStore
	// Snapshots keeps the files of sandboxes; nil when the backend has no such ability.
	Snapshots lifecycle.SnapshotStore
	// Sleeper lets sandboxes fall asleep and wakes them; nil when the backend has no such ability.
	Sleeper lifecycle.Sleeper
	// MaxSnapshots and MaxSnapshotsBytes are how many snapshots each owner may have, and how many
	// bytes they may have added to the disk together; 0 is no limit.
	MaxSnapshots      int
	MaxSnapshotsBytes int64
	// Keys are the accepted API keys; nil means none. Without any, every client is an
	// administrator, but for pages of other hosts in a browser.
	Keys *keys.Ring
	// Local says that the service listens on a loopback address. Without keys it then refuses
	// requests under names of other hosts, too, whose owners can have them lead to this machine.
	Local bool
	// Session returns who sends a request that carries a session in the place of a key, with ok, or
	// why it is not let in; nil means that there are no sessions.
	Session func(context.Context) (caller lifecycle.Principal, ok bool, err error)
	// Limits bounds the rate of requests.
	Limits Limits
	// Ingress is where clients reach sandboxes; the zero value means that they do it directly.
	Ingress Ingress
	// Signing signs endpoints. Without a key there are no signed endpoints.
	Signing reach.Keys
	// Clock returns the present time for the expiry of signatures and the rates of requests; nil
	// means time.Now.
	Clock   func() time.Time
	Version Version
	// RuntimeClasses are the names of the classes that sandboxes may run in.
	RuntimeClasses []string
	// Engine is what runs the sandboxes; nil on a cluster.
	Engine *Engine
	// Defaults are what clients are to ask for where their users say nothing.
	Defaults Defaults
	// HostLoad begins to measure the machine that runs the sandboxes; nil when that is another one.
	HostLoad func() (LoadSampler, error)
	Logger   zerolog.Logger
	// Metrics answers GET /metrics; nil means that there is no such path.
	Metrics http.Handler
	// Observer measures requests and AuditLog records those that change state; both may be nil.
	Observer serve.Observer
	// Tracer follows requests across services; nil for none.
	Tracer   serve.Tracer
	AuditLog serve.AuditLog
}

// New returns the HTTP server of the lifecycle service.
func New(options Options) (*serve.Server, error) {
	clock := options.Clock
	if clock == nil {
		clock = time.Now
	}
	if options.Keys == nil {
		options.Keys = keys.Fixed()
	}
	server, err := serve.New(serve.Options{
		Rules:        rules.Lifecycle(),
		Logger:       options.Logger,
		Authenticate: authenticate(options.Keys, options.Local, options.Session),
		Revocable:    true,
		Problem:      problem,
		Body:         body,
		Quiet:        []string{"getHealth"},
		RateLimits:   rateLimits(options.Keys, options.Limits, clock),
		WarnRefusals: true,
		Observer:     options.Observer,
		Tracer:       options.Tracer,
		AuditLog:     options.AuditLog,
		Audited:      []string{"getEndpoint"}, // its response has the token of the sandbox
	})
	if err != nil {
		return nil, err
	}
	server.Echo().Use(joinPrefer)
	h := &handlers{
		backend: options.Backend,
		images:  options.Images,
		sleeper: options.Sleeper,

		snapshots:         options.Snapshots,
		maxSnapshots:      options.MaxSnapshots,
		maxSnapshotsBytes: options.MaxSnapshotsBytes,

		version: options.Version,
		classes: append([]string{}, options.RuntimeClasses...), // never nil
		engine:  options.Engine,

		defaults: options.Defaults,
		hostLoad: options.HostLoad,
		ingress:  options.Ingress,
		signing:  options.Signing,
		clock:    clock,

		keys:   options.Keys,
		limits: options.Limits,
		proxy:  proxy.New(options.Logger),
	}
	gen.RegisterHandlersWithOptions(
		server.Echo(),
		gen.NewStrictHandler(h, nil),
		gen.RegisterHandlersOptions{
			OperationMiddlewares: server.OperationMiddlewares(),
		},
	)
	forwarder := &ports{
		server:   server,
		handlers: h,
		proxy:    h.proxy,
		signing:  options.Signing,
		clock:    clock,
		keys:     options.Keys,
	}
	forwarder.register()
	if options.Metrics != nil {
		server.Echo().
			GET("/metrics", echo.WrapHandler(options.Metrics), server.Named("getMetrics", true),
				server.Authenticated)
	}
	return server, nil
}

type handlers struct {
	backend lifecycle.Backend
	images  lifecycle.ImageStore // nil without the ability
	sleeper lifecycle.Sleeper    // nil without the ability

	snapshots         lifecycle.SnapshotStore // nil without the ability
	maxSnapshots      int
	maxSnapshotsBytes int64

	version Version
	classes []string // names of runtime classes
	engine  *Engine  // nil on a cluster
	ingress Ingress

	defaults Defaults
	signing  reach.Keys
	clock    func() time.Time

	keys   *keys.Ring
	limits Limits
	proxy  *proxy.Proxy

	hostLoad func() (LoadSampler, error) // nil where sandboxes run on other machines
}

// statuses is the one table from kinds of failure to HTTP.
var statuses = map[lifecycle.Kind]struct {
	status int
	code   string
}{
	lifecycle.KindInvalid:     {http.StatusBadRequest, "INVALID_REQUEST_BODY"},
	lifecycle.KindForbidden:   {http.StatusForbidden, "FORBIDDEN"},
	lifecycle.KindNotFound:    {http.StatusNotFound, "SANDBOX_NOT_FOUND"},
	lifecycle.KindConflict:    {http.StatusConflict, "CONFLICT"},
	lifecycle.KindUnavailable: {http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE"},
	lifecycle.KindUnsupported: {http.StatusNotImplemented, "NOT_IMPLEMENTED"},
	lifecycle.KindNoImage:     {http.StatusNotFound, "IMAGE_NOT_FOUND"},
	lifecycle.KindNoKey:       {http.StatusNotFound, "KEY_NOT_FOUND"},
	lifecycle.KindNoSnapshot:  {http.StatusNotFound, "SNAPSHOT_NOT_FOUND"},
	lifecycle.KindImagePull:   {http.StatusBadRequest, "IMAGE_PULL_ERROR"},
}

func problem(err error) (serve.Problem, bool) {
	var known *lifecycle.Error
	if !errors.As(err, &known) {
		return serve.Problem{}, false
	}
	row := statuses[known.Kind]
	return serve.Problem{
		Status:     row.status,
		Code:       row.code,
		Message:    known.Message,
		RetryAfter: time.Duration(known.RetryAfter) * time.Second,
	}, true
}

// body is the shape of an error: detail is what the document shows, code and message are what
// clients of the field read.
func body(p serve.Problem) any {
	return gen.Error{Code: p.Code, Message: p.Message, Detail: p.Message}
}
