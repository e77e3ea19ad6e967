// Package app puts the lifecycle service together: configuration in, a running service out. It touches no flag and no signal, so that
// a test can embed it.
package app

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/api"
	"sandbox.internal/server/audit"
	"sandbox.internal/server/config"
	"sandbox.internal/server/docsui"
	"sandbox.internal/server/egress"
	"sandbox.internal/server/host"
	"sandbox.internal/server/metrics"
	"sandbox.internal/server/store"
)

// stopGrace is how long requests in flight may go on once the service stops.
const stopGrace = 5 * time.Second

// App is a lifecycle service that listens and does not serve yet.
type App struct {
	logger   zerolog.Logger
	engine   engine.Engine
	store    *store.Store
	audit    *audit.Log // nil when none is configured
	host     *host.Host
	claimed  net.Listener // the claim on the instance
	listener net.Listener
	debug    net.Listener // nil when none is configured
	server   *serve.Server
}

// New puts a service together, takes up the sandboxes that there are, and listens. It returns an error when the engine does not
// answer, the records cannot be read or the address cannot be listened on.
func New(ctx context.Context, cfg config.Config, version api.Version, logger zerolog.Logger) (_ *App, err error) {
	for _, warning := range cfg.Warnings() {
		logger.Warn().Msg(warning)
	}
	a := &App{logger: logger}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.store, err = store.Open(cfg.Server.DataDir, logger); err != nil {
		return nil, err
	}
	if a.claimed, err = claim(cfg); err != nil {
		return nil, err
	}
	a.engine, err = docker.New(docker.Options{
		Host:       cfg.Environment.DockerHost,
		APITimeout: cfg.Docker.APITimeout.Duration(),
		Logger:     logger,
	})
	if err != nil {
		return nil, err
	}
	options, err := hostOptions(cfg)
	if err != nil {
		return nil, err
	}
	measured := metrics.New(version.Version, version.Commit, time.Now)
	options.Engine, options.Store, options.Observer, options.Logger = measured.Engine(a.engine), measured.Store(a.store), measured, logger
	if err := a.openAudit(cfg.Server.AuditLog); err != nil {
		return nil, err
	}
	if err := a.listenForDebugging(cfg.Server.DebugAddress); err != nil {
		return nil, err
	}
	// Listen before anything is taken up: a second service on the same port must not touch the first one's sandboxes.
	if a.listener, err = net.Listen("tcp", net.JoinHostPort(cfg.Server.Host, strconv.Itoa(cfg.Server.Port))); err != nil {
		return nil, fmt.Errorf("listen (server.host, server.port): %w", err)
	}
	if a.host, err = host.Start(ctx, options); err != nil {
		return nil, err
	}
	measured.Sandboxes(a.host.Count)
	signing, err := signingKeys(cfg.Server)
	if err != nil {
		return nil, err
	}
	keys, err := apiKeys(cfg.Server)
	if err != nil {
		return nil, err
	}
	a.server, err = api.New(api.Options{
		Backend: a.host, Reacher: a.host,
		Keys: keys, Limits: limits(cfg.Server.RateLimit), Version: version, Logger: logger,
		Gateway: gateway(cfg.Ingress), Signing: signing,
		Metrics: measured.Handler(), Observer: measured, Witness: a.witness(measured.AuditFailed),
	})
	if err != nil {
		return nil, err
	}
	return a, a.addPages()
}

// addPages puts the contracts, for people, beside the API. Nobody needs a key to read them.
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
	err := serve.Serve(ctx, a.listener, a.server, serve.ServeOptions{Logger: a.logger, Grace: stopGrace})
	a.logger.Info().Msg("lifecycle service stops; sandboxes go on running")
	return err
}

func (a *App) close() {
	if a.listener != nil {
		a.listener.Close()
	}
	if a.debug != nil {
		a.debug.Close()
	}
	if a.host != nil {
		a.host.Close()
	}
	if a.engine != nil {
		if err := a.engine.Close(); err != nil {
			a.logger.Warn().Err(err).Msg("the connection to the container engine did not close cleanly")
		}
	}
	if a.claimed != nil {
		a.claimed.Close()
	}
	if a.store != nil {
		if err := a.store.Close(); err != nil {
			a.logger.Error().Err(err).Msg("the store did not close cleanly")
		}
	}
	if a.audit != nil {
		if err := a.audit.Close(); err != nil {
			a.logger.Error().Err(err).Msg("the audit log did not close cleanly")
		}
	}
}

func hostOptions(cfg config.Config) (host.Options, error) {
	seccomp, err := seccompProfile(cfg.Docker.SeccompProfile)
	if err != nil {
		return host.Options{}, err
	}
	publish, reach := addresses(cfg)
	return host.Options{
		Clock:      time.Now,
		Instance:   cfg.Server.Instance,
		ExecdImage: cfg.Runtime.ExecdImage,
		Security: engine.Security{
			DropCapabilities: cfg.Docker.DropCapabilities,
			NoNewPrivileges:  cfg.Docker.NoNewPrivileges,
			AppArmorProfile:  cfg.Docker.AppArmorProfile,
			SeccompProfile:   seccomp,
		},
		PIDsLimit:              cfg.Docker.PidsLimit,
		AllowUnenforcedLimits:  cfg.Docker.AllowUnenforcedLimits,
		EgressImage:            cfg.Egress.Image,
		EgressUpstream:         strings.Join(cfg.Egress.Upstream, ","),
		Guards:                 egress.New(reach),
		HostNetwork:            cfg.Docker.NetworkMode == config.NetworkHost,
		PublishIP:              publish,
		EngineHost:             reach,
		EndpointHost:           cfg.Docker.HostIP,
		AllowedHostPaths:       cfg.Storage.AllowedHostPaths,
		TerminatedRetention:    cfg.Server.TerminatedRetention.Duration(),
		FailedPendingRetention: cfg.Environment.PendingFailureTTL.Duration(),
	}, nil
}

// seccompProfile returns the profile's content, which is what the engine takes; the engine's host need not have the file.
func seccompProfile(setting string) (string, error) {
	if setting == "" || setting == config.SeccompUnconfined {
		return setting, nil
	}
	content, err := os.ReadFile(setting)
	if err != nil {
		return "", fmt.Errorf("docker.seccomp_profile: %w", err)
	}
	return string(content), nil
}

// addresses returns the address of the engine's host that sandboxes are published on, empty for all, and where the service
// reaches them. A service that listens on one address only does not publish its sandboxes on any other.
func addresses(cfg config.Config) (publish, reach string) {
	if endpoint, err := url.Parse(cfg.Environment.DockerHost); err == nil && endpoint.Scheme == "tcp" && !isLoopback(endpoint.Hostname()) {
		return "", endpoint.Hostname()
	}
	if cfg.Docker.HostIP != "" { // the service runs in a container: its own addresses are not the host's
		return "", cfg.Docker.HostIP
	}
	if cfg.Server.Host == "localhost" {
		return "127.0.0.1", "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(cfg.Server.Host); err == nil && !ip.IsUnspecified() {
		return ip.String(), ip.String()
	}
	return "", "127.0.0.1"
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
