// Package app puts the lifecycle service together: configuration in, a running service out. It
// touches no flag and no signal, so that a test can embed it.
package app

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/api"
	"sandbox.internal/server/audit"
	"sandbox.internal/server/compat"
	"sandbox.internal/server/config"
	"sandbox.internal/server/console"
	"sandbox.internal/server/docsui"
	"sandbox.internal/server/e2b"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/mcphttp"
	"sandbox.internal/server/metrics"
	"sandbox.internal/server/telemetry"
	"sandbox.internal/server/webhooks"
)

// stopGrace is how long requests in flight may go on once the service stops.
const stopGrace = 5 * time.Second

// App is a lifecycle service that listens and does not serve yet.
type App struct {
	logger  zerolog.Logger
	backend backend
	machine machine              // what sandboxes on one machine need beside their backend
	images  lifecycle.ImageStore // nil where the backend does not manage images

	snapshots lifecycle.SnapshotStore // nil where the backend has none
	sleeper   lifecycle.Sleeper       // nil without the ability
	audit     *audit.Log              // nil when none is configured
	listener  net.Listener
	most      int          // connections of clients
	debug     net.Listener // nil when none is configured
	server    *serve.Server
	keys      *keys.Ring
	compat    *compat.Edge         // nil unless configured
	e2b       *e2b.Edge            // nil unless configured
	console   *console.Console     // nil unless configured
	webhooks  *webhooks.Dispatcher // nil on a cluster
	telemetry *telemetry.Telemetry // nil unless configured
}

// backend keeps sandboxes: on one machine or on a cluster.
type backend interface {
	lifecycle.Backend
	// Count returns how many sandboxes there are in each state that any is in.
	Count() map[lifecycle.State]int
	// Ready returns an error of KindUnavailable when what the service needs to change anything does
	// not answer.
	Ready(context.Context) error
	Close()
}

// prepare opens what the runtime needs, and returns what takes the sandboxes up.
func (a *App) prepare(cfg config.Config, measured *metrics.Metrics) (start func(context.Context) (backend, error), err error) {
	if cfg.Runtime.Type == config.RuntimeKubernetes {
		return a.prepareCluster(cfg, measured), nil
	}
	return a.prepareMachine(cfg, measured)
}

// New puts a service together, takes up the sandboxes that there are, and listens. It returns an
// error when the engine or the cluster does not answer, the records cannot be read or the address
// cannot be listened on.
func New(ctx context.Context, cfg config.Config, version api.Version, logger zerolog.Logger) (_ *App, err error) {
	for _, warning := range cfg.Warnings() {
		logger.Warn().Msg(warning)
	}
	if exposed := cfg.Exposed(); exposed != "" {
		logger.Log().Str("level", zerolog.LevelWarnValue).Msg(exposed) // whatever the log's level is
	}
	a := &App{logger: logger}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	measured := metrics.New(version.Version, version.Commit, time.Now)
	start, err := a.prepare(cfg, measured)
	if err != nil {
		return nil, err
	}
	if err := a.openAudit(cfg.Server.AuditLog); err != nil {
		return nil, err
	}
	if err := a.listenForDebugging(cfg.Server.DebugAddress); err != nil {
		return nil, err
	}
	// Listen before anything is taken up: a second service on the same port must not touch the
	// first one's sandboxes.
	if a.listener, err = net.Listen("tcp", net.JoinHostPort(cfg.Server.Host, strconv.Itoa(cfg.Server.Port))); err != nil {
		return nil, fmt.Errorf("listen (server.host, server.port): %w", err)
	}
	a.most = cfg.Server.MaxConnections
	backend, err := start(ctx)
	if err != nil {
		return nil, err
	}
	a.backend = backend
	measured.Sandboxes(backend.Count)
	if err := a.openTelemetry(ctx, cfg.Telemetry, version.Version, measured); err != nil {
		return nil, err
	}
	options, err := a.apiOptions(ctx, cfg, version, measured)
	if err != nil {
		return nil, err
	}
	if a.server, err = api.New(options); err != nil {
		return nil, err
	}
	a.server.Echo().GET("/readyz", readyz(backend.Ready))
	if err := a.openWebhooks(ctx, cfg, measured); err != nil {
		return nil, err
	}
	return a, a.addFrontEnds(cfg, options)
}

// apiOptions are what the API is made with, once there is a backend.
func (a *App) apiOptions(ctx context.Context, cfg config.Config, version api.Version, measured *metrics.Metrics) (api.Options, error) {
	signing, err := signingKeys(cfg)
	if err != nil {
		return api.Options{}, err
	}
	if a.keys, err = a.openKeys(ctx, cfg.Server); err != nil {
		return api.Options{}, err
	}
	return api.Options{
		Backend: a.backend, Images: a.images, Snapshots: a.snapshots, Sleeper: a.sleeper,
		MaxSnapshots: cfg.Server.MaxSnapshots, MaxSnapshotsBytes: cfg.Server.MaxSnapshotsMiB << 20,
		Keys: a.keys, Local: isLoopback(cfg.Server.Host), Session: console.Caller, Limits: limits(cfg.Server), Version: version, Logger: a.logger,
		Ingress: ingress(cfg.Ingress), Signing: signing, RuntimeClasses: runtimeClasses(cfg.Runtime).Names(),
		Engine: a.machine.describe(), HostLoad: hostLoad(cfg),
		Defaults: api.Defaults{Image: cfg.Server.DefaultImage, Timeout: cfg.Server.DefaultTimeout.Duration()},
		Metrics:  measured.Handler(), Observer: measured, Tracer: a.tracer(), AuditLog: a.auditLog(measured.AuditFailed),
	}, nil
}

// addFrontEnds puts beside the API, which was made with the options, what is configured for clients
// of other protocols and for people.
func (a *App) addFrontEnds(cfg config.Config, options api.Options) error {
	ring := options.Keys
	admits := api.Admits(a.server, ring, options.Local)
	if slices.Contains(cfg.Server.Compatibility, config.CompatibilityOpenSandbox) {
		a.compat = compat.New(compat.Options{
			Next: a.server, Admits: admits, Backend: a.backend, Cluster: options.Engine == nil,
			HostNetwork: options.Engine != nil && cfg.Sandbox.NetworkMode == config.NetworkHost, Logger: a.logger,
		})
	}
	if slices.Contains(cfg.Server.Compatibility, config.CompatibilityE2B) {
		var err error
		suspend := (func(context.Context, string) error)(nil)
		if cfg.Runtime.Type == config.RuntimeLocal {
			suspend = a.snapshots.Suspend
		}
		a.e2b, err = e2b.New(e2b.Options{
			Next: a.server, Admits: admits, Attempt: a.server.Attempt, IsKey: ring.Holds,
			Backend: a.backend, Suspend: suspend, Sleeper: a.sleeper, MaxTimeout: maxTimeout(options),
			Templates: templates(cfg), Domain: cfg.E2B.Domain,
			HostNetwork: cfg.Sandbox.NetworkMode == config.NetworkHost, Logger: a.logger,
		})
		if err != nil {
			return err
		}
	}
	if cfg.Server.Console {
		pages, err := console.New(console.Options{
			Identify: func(r *http.Request, key string) (lifecycle.Principal, error) {
				return api.Identify(r, ring, options.Local, key)
			},
			Alive: func(holder lifecycle.Principal) context.Context { return ring.Alive(holder.Name) },
			Open:  ring.Open(), Shared: sharedSessions(a.backend, options),
		})
		if err != nil {
			return err
		}
		a.console = pages
		a.console.Register(a.server)
	}
	if cfg.Server.MCP {
		mcphttp.Register(a.server, options.Version.Version, options.RuntimeClasses)
	}
	return a.addPages()
}

// maxTimeout returns a function that returns the longest timeout that a key allows, by its name.
func maxTimeout(options api.Options) func(string) time.Duration {
	return func(owner string) time.Duration {
		bounds := options.Limits.Bounds // without any key
		if key, ok := options.Keys.Named(owner); ok {
			bounds = key.Bounds
		}
		return cmp.Or(bounds.MaxTimeout, lifecycle.MaxTimeout)
	}
}

// templates returns what clients of E2B create sandboxes from.
func templates(cfg config.Config) e2b.Templates {
	made := e2b.Templates{Named: map[string]e2b.Template{}, Images: cfg.E2B.AllowImages}
	for _, t := range cfg.E2B.Templates {
		made.Named[t.Name] = e2b.Template{
			Name: t.Name, Image: t.Image, Entrypoint: t.Entrypoint, CPU: t.CPU, Memory: t.Memory, User: t.User, Directory: t.WorkingDirectory,
		}
	}
	if len(made.Named) == 0 {
		made.Named = e2b.Default(cfg.Server.DefaultImage)
	}
	return made
}

// addPages puts the contracts, for people, beside the API. They need no key.
func (a *App) addPages() error {
	pages, err := docsui.New()
	if err != nil {
		return err
	}
	for _, path := range pages.Paths() {
		a.server.Echo().GET(path, echo.WrapHandler(pages))
	}
	return nil
}

// Addr returns the address that the service listens on.
func (a *App) Addr() string { return a.listener.Addr().String() }

// Run serves until ctx ends, and then leaves every sandbox as it is: the next start takes them up.
func (a *App) Run(ctx context.Context) error {
	defer a.close()
	stopDebugging := a.serveDebugging()
	defer stopDebugging()
	a.logger.Info().Str("address", a.Addr()).Msg("lifecycle service listens")
	handler, stop := a.edge(ctx)
	defer stop()
	err := listen.Serve(ctx, a.listener, handler, listen.Options{
		Logger: a.logger, Grace: stopGrace, MaxConnections: a.most, MaxUnauthenticated: min(listen.MaxUnauthenticated(), max(1, a.most/2)),
	})
	a.logger.Info().Msg("lifecycle service stopping; sandboxes keep running")
	return err
}

// edge returns what answers clients, and what ends the work beside it.
func (a *App) edge(ctx context.Context) (handler http.Handler, stop func()) {
	handler = a.server
	ctx, cancel := context.WithCancel(ctx)
	var keepers sync.WaitGroup
	if a.compat != nil {
		keepers.Go(func() { a.compat.Keep(ctx) })
		handler = a.compat
	}
	if a.e2b != nil {
		keepers.Go(func() { a.e2b.Keep(ctx) })
		handler = a.e2b.Before(handler)
	}
	if a.webhooks != nil {
		keepers.Go(func() { a.webhooks.Run(ctx) })
	}
	stop = func() { cancel(); keepers.Wait() }
	if a.console != nil {
		handler = a.console.Handler(handler)
	}
	return handler, stop
}

func (a *App) close() {
	if a.console != nil {
		a.console.Close()
	}
	if a.keys != nil {
		a.keys.Close()
	}
	if a.listener != nil {
		a.listener.Close()
	}
	if a.debug != nil {
		a.debug.Close()
	}
	if a.backend != nil {
		a.backend.Close()
	}
	a.machine.close(a.logger)
	a.closeTelemetry()
	if a.audit != nil {
		if err := a.audit.Close(); err != nil {
			a.logger.Error().Err(err).Msg("the audit log did not close cleanly")
		}
	}
}
