package app

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/config"
	"sandbox.internal/server/egress"
	"sandbox.internal/server/host"
	"sandbox.internal/server/metrics"
	"sandbox.internal/server/store"
)

// machine is what the docker runtime needs: the records, the claim on the instance, the engine.
type machine struct {
	store   *store.Store
	claimed io.Closer
	engine  engine.Engine
}

// prepareMachine opens them.
func (a *App) prepareMachine(cfg config.Config, measured *metrics.Metrics) (start func(context.Context) (backend, error), err error) {
	if a.machine.store, err = store.Open(cfg.Server.DataDir, a.logger); err != nil {
		return nil, err
	}
	if a.machine.claimed, err = claim(cfg); err != nil {
		return nil, err
	}
	a.machine.engine, err = docker.New(docker.Options{
		Host:       cfg.Environment.DockerHost,
		APITimeout: cfg.Docker.APITimeout.Duration(),
		Logger:     a.logger,
	})
	if err != nil {
		return nil, err
	}
	boxes, err := boxOptions(cfg)
	if err != nil {
		return nil, err
	}
	boxes.Engine, boxes.Logger, boxes.Clock = measured.Engine(a.machine.engine), a.logger, time.Now
	_, reach := addresses(cfg)
	guards := egress.New(reach)
	boxes.Guards = guards
	return func(ctx context.Context) (backend, error) {
		opened, err := box.Open(ctx, boxes)
		if err != nil {
			return nil, err
		}
		started, err := host.Start(ctx, host.Options{
			Box: opened, Store: measured.Store(a.machine.store), Guards: guards, Logger: a.logger, Clock: time.Now, Observer: measured,
			EndpointHost:           cfg.Docker.HostIP,
			TerminatedRetention:    cfg.Server.TerminatedRetention.Duration(),
			FailedPendingRetention: cfg.Environment.PendingFailureTTL.Duration(),
		})
		if err != nil {
			return nil, err
		}
		return started, nil
	}, nil
}

func (m *machine) close(logger zerolog.Logger) {
	if m.engine != nil {
		if err := m.engine.Close(); err != nil {
			logger.Warn().Err(err).Msg("the connection to the container engine did not close cleanly")
		}
	}
	if m.claimed != nil {
		m.claimed.Close()
	}
	if m.store != nil {
		if err := m.store.Close(); err != nil {
			logger.Error().Err(err).Msg("the store did not close cleanly")
		}
	}
}

func boxOptions(cfg config.Config) (box.Options, error) {
	seccomp, err := seccompProfile(cfg.Docker.SeccompProfile)
	if err != nil {
		return box.Options{}, err
	}
	publish, reach := addresses(cfg)
	return box.Options{
		Instance:   cfg.Server.Instance,
		ExecdImage: cfg.Runtime.ExecdImage,
		Security: engine.Security{
			DropCapabilities: cfg.Docker.DropCapabilities,
			NoNewPrivileges:  cfg.Docker.NoNewPrivileges,
			AppArmorProfile:  cfg.Docker.AppArmorProfile,
			SeccompProfile:   seccomp,
		},
		PIDsLimit:             cfg.Docker.PidsLimit,
		AllowUnenforcedLimits: cfg.Docker.AllowUnenforcedLimits,
		EgressImage:           cfg.Egress.Image,
		EgressUpstream:        strings.Join(cfg.Egress.Upstream, ","),
		HostNetwork:           cfg.Docker.NetworkMode == config.NetworkHost,
		PublishIP:             publish,
		EngineHost:            reach,
		NoHostVolumes:         !cfg.Storage.HostVolumes,
		AllowedHostPaths:      cfg.Storage.AllowedHostPaths,
		OwnPaths:              cfg.OwnPaths(),
		PinFolder:             pinFolder(cfg),
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
