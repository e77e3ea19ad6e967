package ingress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// App is an ingress that listens and does not serve yet.
type App struct {
	settings Settings
	logger   zerolog.Logger
	table    *table
	metrics  *metrics
	service  *service // nil with static routes and with a Source
	proxy    *proxy.Proxy
	server   *serve.Server
	listener net.Listener
	admin    net.Listener // nil when there is none
}

// New sets an ingress up and listens. It returns an error when a setting breaks a rule, a file
// cannot be read or an address cannot be listened on. The lifecycle service need not answer yet.
func New(settings Settings, logger zerolog.Logger) (_ *App, err error) {
	if err := settings.Check(); err != nil {
		return nil, err
	}
	a := &App{
		settings: settings,
		logger:   logger,
		table:    newTable(settings.Sandboxes),
		proxy:    proxy.NewKeeping(logger),
	}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	a.metrics = newMetrics(a.table)
	h := &handler{
		mode:        settings.Mode,
		domain:      settings.Domain,
		connections: int64(settings.SandboxConnections),
		key:         settings.Key,
		table:       a.table,
		proxy:       a.proxy,
		metrics:     a.metrics,
		clock:       time.Now,
	}
	if settings.SigningKey != "" {
		if h.signing, err = reach.LoadKeys(settings.SigningKey); err != nil {
			return nil, fmt.Errorf("--signing-key: %w", err)
		}
	}
	if settings.Routes != "" {
		if err = a.Reload(); err != nil {
			return nil, err
		}
	} else if settings.Service != "" {
		if a.service, err = newService(settings.Service, settings.Key); err != nil {
			return nil, fmt.Errorf("--service: %w", err)
		}
		h.locator = a.service
	}
	if a.server, err = h.server(logger); err != nil {
		return nil, err
	}
	if a.listener, err = net.Listen("tcp", settings.Listen); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if settings.Admin != "" {
		if a.admin, err = net.Listen("tcp", settings.Admin); err != nil {
			return nil, fmt.Errorf("--admin: %w", err)
		}
	}
	return a, nil
}

// Reload reads the static routes again. When that fails the old ones stay. With a service there is
// nothing to do.
func (a *App) Reload() error {
	if a.settings.Routes == "" {
		return nil
	}
	routes, err := loadRoutes(a.settings.Routes)
	if err != nil {
		return fmt.Errorf("--routes: %w", err)
	}
	if len(routes) > a.settings.Sandboxes {
		return fmt.Errorf("--routes: there are %d routes, more than --max-sandboxes allows",
			len(routes))
	}
	for i := range routes {
		if routes[i].state.Final() {
			// named in the file, so it exists: 503, not 404
			routes[i].state = lifecycle.StateStopping
		}
	}
	a.table.replace(routes, time.Time{}, time.Time{})
	return nil
}

// Addr returns the host and port that clients connect to.
func (a *App) Addr() string { return a.listener.Addr().String() }

// AdminAddr returns the address of /metrics and /healthz, empty when there is none.
func (a *App) AdminAddr() string {
	if a.admin == nil {
		return ""
	}
	return a.admin.Addr().String()
}

// Gatherer returns what a scrape would, for tests.
func (a *App) Gatherer() prometheus.Gatherer { return a.metrics.registry }

// Run serves until ctx ends. Then it accepts no new connections, and open requests and streams have
// the grace to end.
func (a *App) Run(ctx context.Context) error {
	defer a.close()
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	// The goroutines of this context end after the last request.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	if a.service != nil {
		follower := &follower{
			service: a.service,
			table:   a.table,
			metrics: a.metrics,
			logger:  a.logger,
		}
		all.Go(func() { follower.run(background) })
	}
	if a.settings.Source != nil {
		all.Go(func() {
			if err := a.settings.Source(background, &Routes{a.table, a.metrics}); err != nil {
				a.logger.Error().Err(err).Msg("cannot follow the routes")
				failed(err)
			}
		})
	}
	if a.admin != nil {
		all.Go(func() {
			err := listen.Serve(background, a.admin, admin(a.metrics, a.table, ctx.Done()),
				listen.Options{Logger: a.logger})
			if err != nil {
				a.logger.Error().Err(err).Msg("the admin listener failed")
			}
		})
	}
	a.logger.Info().
		Str("address", a.Addr()).
		Str("admin", a.AdminAddr()).
		Str("mode", string(a.settings.Mode)).
		Msg("ingress listens")
	err := listen.Serve(
		ctx,
		a.listener,
		a.server,
		listen.Options{
			Logger:            a.logger,
			Grace:             a.settings.Grace,
			AwaitUpgrades:     true,
			HTTP2:             true,
			ReadHeaderTimeout: a.settings.HeaderTimeout,
			IdleTimeout:       a.settings.IdleTimeout,
			MaxHeaderBytes:    a.settings.HeaderBytes,
			MaxConnections:    a.settings.Connections,
			// Half of them is left to clients that were admitted.
			MaxUnauthenticated: min(listen.MaxUnauthenticated(), max(1, a.settings.Connections/2)),
		},
	)
	a.logger.Info().Msg("ingress stopping")
	if cause := context.Cause(ctx); err == nil && cause != nil &&
		!errors.Is(cause, context.Canceled) {
		return cause // without routes there is nothing to serve
	}
	return err
}

func (a *App) close() {
	if a.listener != nil {
		a.listener.Close()
	}
	if a.admin != nil {
		a.admin.Close()
	}
	if a.service != nil {
		a.service.close()
	}
	a.proxy.Close()
}
