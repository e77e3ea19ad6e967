// Package app puts the egress sidecar together: firewall, DNS proxy, enforcer and API. It touches
// no flag and no signal, so that a test can embed it; it changes the network namespace that it runs
// in.
package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/egress/api"
	"sandbox.internal/egress/config"
	"sandbox.internal/egress/dnsproxy"
	"sandbox.internal/egress/enforcer"
	"sandbox.internal/egress/firewall"
	"sandbox.internal/egress/policy"
	"sandbox.internal/internal/supervisor"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
)

const (
	resolvConf = "/etc/resolv.conf"

	// logGroup is the netfilter log group of the firewall. The namespace has no other.
	logGroup = 1

	// maxHeader bounds the header of a request, in bytes: the sandbox may send one without the
	// token.
	maxHeader = 16 << 10

	// logBurst is how many lines a second about single requests and queries are logged, because the
	// sandbox decides how many of them there are.
	logBurst = 20

	// stopGrace is how long requests may go on once the sidecar stops.
	stopGrace = time.Second
)

// App is a sidecar whose firewall is installed and does not mark packets yet: nothing passes.
type App struct {
	settings config.Settings
	logger   zerolog.Logger
	firewall *firewall.Firewall
	packets  *firewall.Packets
	proxy    *dnsproxy.Proxy
	enforcer *enforcer.Enforcer
	listener net.Listener
	server   *serve.Server
}

// New installs the firewall with the saved policy, closed, and everything behind it. After an error
// the firewall stays closed.
func New(ctx context.Context, settings config.Settings, logger zerolog.Logger) (_ *App, err error) {
	var opened []func() error
	defer func() {
		if err != nil {
			for _, closeIt := range opened {
				err = errors.Join(err, closeIt())
			}
		}
	}()
	store, err := enforcer.NewStore(settings.StateDir)
	if err != nil {
		return nil, err
	}
	held, damage := store.Load(settings.Policy)
	if damage != nil {
		logger.Error().Err(damage).Msg("no saved policy: denying all traffic")
	}
	compiled, err := policy.Compile(held)
	if err != nil {
		return nil, err
	}
	upstream, err := nameServers(settings, store)
	switch {
	case errors.Is(err, enforcer.ErrDamaged):
		logger.Error().Err(err).Msg("no saved name servers: DNS disabled")
	case err != nil:
		return nil, err
	}
	inherited, err := supervisor.Listener(supervisor.PrefixEgress)
	if err != nil {
		return nil, err
	}
	listener, err := listen.Listener(inherited, "tcp4", settings.Addr())
	if err != nil {
		return nil, err
	}
	opened = append(opened, listener.Close)
	udp, tcp, err := dnsproxy.Listen(ctx)
	if err != nil {
		return nil, err
	}
	opened = append(opened, udp.Close, tcp.Close)
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	options := firewall.Options{
		DNSPort: uint16(udp.LocalAddr().(*net.UDPAddr).Port), APIPort: at.Port(), APIAddr: at.Addr().Unmap(), LogGroup: logGroup,
	}
	if settings.RefuseNeighbours {
		if options.Neighbours, options.Gateways, err = neighbours(); err != nil {
			return nil, err
		}
	}
	filter, err := firewall.Install(options, compiled)
	if err != nil {
		return nil, err
	}
	opened = append(opened, filter.Close)
	if err := filter.Forget(); err != nil {
		logger.Warn().Err(err).Msg("cannot redirect DNS on connections of the previous egress daemon")
	}
	packets, err := firewall.Listen(logGroup)
	if err != nil {
		return nil, err
	}
	opened = append(opened, packets.Close)
	own := newInterfaces(time.Now).own
	decider := enforcer.New(enforcer.Options{
		Policy: compiled, Firewall: filter, Store: store, Own: own, Logger: logger, Clock: time.Now,
	})
	server, err := api.New(api.Options{
		Enforcer: decider, Token: settings.AccessToken, Started: time.Now(), Restarts: settings.Restarts,
		Logger: bounded(logger),
	})
	if err != nil {
		return nil, err
	}
	return &App{
		settings: settings, logger: logger, firewall: filter, packets: packets, enforcer: decider,
		listener: newBoundedListener(listener, own), server: server,
		proxy: dnsproxy.New(udp, tcp, dnsproxy.Options{
			Decider: decider, Upstream: upstream, Mark: filter.Mark(), Logger: bounded(logger),
		}),
	}, nil
}

// bounded returns the logger for what the sandbox can cause at any rate.
func bounded(logger zerolog.Logger) zerolog.Logger {
	return logger.Sample(&zerolog.BurstSampler{Burst: logBurst, Period: time.Second})
}

// nameServers returns those of the settings, and without such those that resolv.conf named when the
// network was made. The sandbox shares that file and can write it, so it is read once, before there
// is a sandbox.
func nameServers(settings config.Settings, store *enforcer.Store) ([]netip.AddrPort, error) {
	if len(settings.Upstream) > 0 {
		return settings.Upstream, nil
	}
	return store.NameServers(func() ([]netip.AddrPort, error) {
		conf, err := os.Open(resolvConf)
		if err != nil {
			return nil, fmt.Errorf("find name servers: %w", err)
		}
		defer conf.Close()
		servers, err := dnsproxy.NameServers(conf)
		if err == nil && len(servers) == 0 {
			err = fmt.Errorf("%s names no IPv4 name server that can be asked from here: name some with --upstream", resolvConf)
		}
		return servers, err
	})
}

// Addr returns the address of the API.
func (a *App) Addr() string { return a.listener.Addr().String() }

// Run lets the traffic pass that the policy allows, calls ready, and serves until ctx ends or a
// part fails. When it returns, all traffic is denied.
func (a *App) Run(ctx context.Context, ready func()) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var parts sync.WaitGroup
	part := func(run func(context.Context) error) {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				stop(err)
			}
		})
	}
	part(a.proxy.Run)
	part(func(ctx context.Context) error { return a.packets.Run(ctx, a.enforcer.Packet) })
	part(func(ctx context.Context) error { a.enforcer.Run(ctx); return nil })
	// Loading the contract leaves garbage behind that is as large as the idle sidecar.
	debug.FreeOSMemory()
	if err := a.firewall.Open(); err != nil {
		stop(err)
	} else {
		if a.settings.AccessToken == "" {
			a.logger.Warn().Msg("no access token is set: anyone who reaches this port, the sandbox too, may change the policy")
		}
		p := a.enforcer.Policy()
		a.logger.Info().Str("address", a.Addr()).Str("default_action", string(p.DefaultAction)).Int("rules", len(p.Egress)).
			Bool("dry_run", p.DryRun).Msg("firewall installed, traffic allowed by policy")
		ready()
	}
	part(func(ctx context.Context) error {
		return listen.Serve(ctx, a.listener, a.server, listen.Options{Logger: bounded(a.logger), Grace: stopGrace, MaxHeaderBytes: maxHeader})
	})
	parts.Wait()
	err := errors.Join(a.firewall.Close(), a.packets.Close())
	a.logger.Info().Msg("firewall closed, all traffic denied")
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}
