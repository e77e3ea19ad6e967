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

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/api"
	"sandbox.internal/server/box"
	"sandbox.internal/server/config"
	"sandbox.internal/server/egress"
	"sandbox.internal/server/host"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/load"
	"sandbox.internal/server/metrics"
	"sandbox.internal/server/store"
)

// machine is what sandboxes on one machine need: the records, the claim on the instance, the
// engine.
type machine struct {
	store   *store.Store
	claimed io.Closer
	engine  engine.Engine
	info    engine.Info
}

// networkChecker is an engine that says why sandboxes do not reach the network, "" when nothing is
// known to be wrong.
type networkChecker interface{ Problem() string }

// prepareMachine opens them.
func (a *App) prepareMachine(cfg config.Config, measured *metrics.Metrics) (start func(context.Context) (backend, error), err error) {
	if a.machine.store, err = store.Open(cfg.Server.DataDir, a.logger); err != nil {
		return nil, err
	}
	if a.machine.claimed, err = claim(cfg); err != nil {
		return nil, err
	}
	boxes, err := boxOptions(cfg)
	if err != nil {
		return nil, err
	}
	boxes.Logger, boxes.Clock = a.logger, time.Now
	_, reach := addresses(cfg)
	sidecars := egress.New(reach)
	boxes.Sidecars = sidecars
	return func(ctx context.Context) (backend, error) {
		opened, err := openEngine(ctx, cfg, a.logger)
		if err != nil {
			return nil, err
		}
		a.machine.engine = opened
		boxes.Engine = measured.Engine(opened)
		boxes.Snapshots, _ = opened.(engine.Snapshots)
		boxes.Traffic, _ = opened.(engine.Traffic)
		boxes.Ports, _ = opened.(engine.Ports)
		boxes.ImageGrants = a.machine.store
		containers, err := box.Open(ctx, boxes)
		if err != nil {
			return nil, err
		}
		if images, ok := opened.(engine.ImageStore); ok {
			a.images = containers.Images(ctx, images)
		}
		a.machine.info = containers.Info()
		if checked, ok := opened.(networkChecker); ok {
			measured.NetworkProblem(checked.Problem)
		}
		if boxes.SpareNetworks > 0 {
			measured.SpareNetworks(containers.SpareNetworkCounts)
		}
		memory, err := load.New(cfg.Server.DataDir)
		if err != nil {
			return nil, err
		}
		started, err := host.Start(ctx, host.Options{
			Boxes: containers, Store: measured.Store(a.machine.store), Sidecars: sidecars,
			Logger: a.logger, Clock: time.Now, Observer: measured, AvailableMemory: memory.AvailableMemory,
			MaxSandboxes:           cfg.Server.MaxSandboxes,
			EndpointHost:           cfg.Sandbox.HostIP,
			TerminatedRetention:    cfg.Server.TerminatedRetention.Duration(),
			FailedPendingRetention: cfg.Environment.PendingFailureTTL.Duration(),
		})
		if err != nil {
			return nil, err
		}
		a.snapshots, a.sleeper = started, started
		measured.Snapshots(started.CountSnapshots)
		return started, nil
	}, nil
}

// gpuLister is an engine that knows the GPUs of its machine.
type gpuLister interface {
	GPUs() (kind string, names []string, err error)
}

// describe returns what GET /v1/version says about the engine; nil on a cluster.
func (m *machine) describe() *api.Engine {
	if m.engine == nil {
		return nil
	}
	described := &api.Engine{Name: m.info.Name, Version: m.info.Version}
	if checked, ok := m.engine.(networkChecker); ok {
		described.Problem = checked.Problem
	}
	if checked, ok := m.engine.(interface{ HostUsers() string }); ok {
		described.HostUsers = checked.HostUsers
	}
	if listed, ok := m.engine.(gpuLister); ok {
		if kind, _, _ := listed.GPUs(); kind != "" {
			described.GPUs = listed.GPUs
		}
	}
	return described
}

// hostLoad returns what begins to measure this machine; nil where sandboxes run on others.
func hostLoad(cfg config.Config) func() (api.LoadSampler, error) {
	directory := cfg.Server.DataDir
	switch cfg.Runtime.Type {
	case config.RuntimeKubernetes:
		return nil
	case config.RuntimeLocal:
		directory = cfg.Local.Directory(cfg.Server)
	case config.RuntimeDocker:
		if remote(cfg) != "" {
			return nil
		}
	}
	return func() (api.LoadSampler, error) { return load.New(directory) }
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
	seccomp, err := seccompProfile(cfg)
	if err != nil {
		return box.Options{}, err
	}
	publish, reach := addresses(cfg)
	spares := cfg.Docker.SpareNetworks
	if cfg.Runtime.Type == config.RuntimeLocal { // it makes networks ahead by itself
		spares = 0
	}
	return box.Options{
		Instance:   cfg.Server.Instance,
		ExecdImage: cfg.Runtime.ExecdImage,
		Security: engine.Security{
			DropCapabilities: cfg.Sandbox.DropCapabilities,
			NoNewPrivileges:  cfg.Sandbox.NoNewPrivileges,
			AppArmorProfile:  cfg.Sandbox.AppArmorProfile,
			SeccompProfile:   seccomp,
		},
		RuntimeClasses:        runtimeClasses(cfg.Runtime),
		PIDsLimit:             cfg.Sandbox.PidsLimit,
		Key:                   func(name string) string { return cfg.Key("sandbox." + name) },
		AllowUnenforcedLimits: cfg.Sandbox.AllowUnenforcedLimits,
		EgressImage:           cfg.Egress.Image,
		EgressUpstream:        strings.Join(cfg.Egress.Upstream, ","),
		SpareNetworks:         spares,
		HostNetwork:           cfg.Sandbox.NetworkMode == config.NetworkHost,
		PublishIP:             publish,
		EngineHost:            reach,
		NoHostVolumes:         !cfg.Storage.HostVolumes,
		AllowedHostPaths:      cfg.Storage.AllowedHostPaths,
		OwnPaths:              cfg.OwnPaths(),
		PinDirectory:          pinDirectory(cfg),
	}, nil
}

// runtimeClasses are those of the configuration, which has been checked.
func runtimeClasses(r config.Runtime) lifecycle.RuntimeClasses {
	var classes lifecycle.RuntimeClasses
	for _, class := range r.Classes {
		classes = append(classes, lifecycle.RuntimeClass{Name: class.Name, Handler: class.Handler, EgressSidecar: class.EgressSidecar})
	}
	return classes
}

// seccompProfile returns the profile's content, which is what the engine takes; the engine's host
// need not have the file.
func seccompProfile(cfg config.Config) (string, error) {
	setting := cfg.Sandbox.SeccompProfile
	if setting == "" || setting == config.SeccompUnconfined {
		return setting, nil
	}
	content, err := os.ReadFile(setting)
	if err != nil {
		return "", fmt.Errorf("%s: %w", cfg.Key("sandbox.seccomp_profile"), err)
	}
	return string(content), nil
}

// addresses returns the address of the engine's host that sandboxes are published on, empty for
// all, and where the service reaches them. A service that listens on one address only does not
// publish its sandboxes on any other, but for one that was given a name to listen on.
func addresses(cfg config.Config) (publish, reach string) {
	if host := remote(cfg); host != "" {
		return "", host
	}
	if cfg.Sandbox.HostIP != "" { // the service runs in a container: its own addresses are not the host's
		return "", cfg.Sandbox.HostIP
	}
	if cfg.Server.Host == "localhost" {
		return "127.0.0.1", "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(cfg.Server.Host); err == nil && !ip.IsUnspecified() {
		return ip.String(), ip.String()
	}
	return "", "127.0.0.1"
}

// remote returns the host of an engine on another machine, empty for one on this machine.
func remote(cfg config.Config) string {
	endpoint, err := url.Parse(cfg.Environment.DockerHost)
	if err != nil || cfg.Runtime.Type != config.RuntimeDocker || endpoint.Scheme != "tcp" || isLoopback(endpoint.Hostname()) {
		return ""
	}
	return endpoint.Hostname()
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
