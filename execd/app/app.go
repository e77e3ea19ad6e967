// Package app puts execd together: engines, API and listener. It touches no flag and no signal, so
// that a test can embed it.
package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/api"
	"sandbox.internal/execd/code"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/compat"
	"sandbox.internal/execd/config"
	"sandbox.internal/execd/e2b"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/metrics"
	"sandbox.internal/execd/internal/oomkill"
	"sandbox.internal/execd/internal/ports"
	"sandbox.internal/execd/terminal"
	"sandbox.internal/internal/process"
	"sandbox.internal/internal/supervisor"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
)

// closeGrace is how long commands have to end, once the daemon stops, before they are killed.
const closeGrace = 2 * time.Second

// endGrace is what a killed command's end may need to reach its streams on a busy machine, on top
// of closeGrace and the streams' own time.
const endGrace = 2 * time.Second

// collectAt is how much garbage there may be before it is collected, in percent of what lives
// (GOGC).
const collectAt = 50

// App is a daemon that listens and does not serve yet.
type App struct {
	settings  config.Settings
	logger    zerolog.Logger
	listener  net.Listener
	code      *code.Manager
	commands  *command.Manager
	terminals *terminal.Manager
	freezer   *freeze.Freezer
	handler   http.Handler
	arrivals  *listen.Arrivals
	stopping  *atomic.Bool // Run is ending what runs
}

// Machine is what a daemon measures that tests give it instead.
type Machine struct {
	// Used returns the processor time that the sandbox has used so far; nil means that of its
	// control group.
	Used func() (time.Duration, error)
}

// New puts a daemon together and listens. It returns an error when the address cannot be listened
// on.
func New(settings config.Settings, logger zerolog.Logger) (*App, error) {
	return NewOn(Machine{}, settings, logger)
}

// NewOn is [New] with what is measured given.
func NewOn(machine Machine, settings config.Settings, logger zerolog.Logger) (*App, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	freezer, err := newFreezer()
	if err != nil {
		return nil, err
	}
	kernels, err := kernelHost(settings, freezer, logger)
	if err != nil {
		return nil, err
	}
	inherited, err := supervisor.Listener(supervisor.PrefixExecd)
	if err != nil {
		return nil, err
	}
	listener, err := listen.Listener(inherited, "tcp", settings.Addr())
	if err != nil {
		return nil, err
	}
	sampler := metrics.New(metrics.Options{})
	if machine.Used == nil {
		machine.Used = sampler.OpenProcessorTime().Used
	}
	arrivals := listen.NewArrivals()
	awake := holds.New(holds.Options{Used: machine.Used, Arriving: arrivals.Pending, Processes: freezer})
	kills := oomkill.New(metrics.OpenOOMKills(metrics.Options{}).Count)
	commands := command.New(command.Options{
		Dir:          dir,
		Env:          environ(),
		LogLimit:     settings.CommandLogLimit,
		BuiltinShell: []string{"/proc/self/exe", "sh"},
		OOMKills:     kills,
		Holds:        awake,
		Clock:        time.Now,
	})
	cells := code.New(code.Options{
		Host: kernels, Dir: dir, LogLimit: settings.CommandLogLimit, Logger: logger, Clock: time.Now, Frozen: freezer.Frozen,
		Holds: awake, OOMKills: kills,
	})
	terminals := terminal.New(terminal.Options{Dir: dir, Env: environ(), Clock: time.Now, Enter: freezer.Enter, Holds: awake})
	stored := files.New(files.Options{Root: dir})
	port := listener.Addr().(*net.TCPAddr).Port
	operations := activity.New(time.Now)
	stopping := new(atomic.Bool)
	server, err := api.New(api.Options{
		Activity:  operations,
		Code:      cells,
		Commands:  commands,
		Files:     stored,
		Freezer:   freezer,
		Holds:     awake,
		Metrics:   sampler,
		Ports:     ports.New(ports.Options{}),
		Terminals: terminals,
		Token:     settings.AccessToken,
		Port:      port,
		Linger:    settings.GracefulShutdownTimeout,
		Logger:    logger,
	})
	if err != nil {
		listener.Close()
		return nil, err
	}
	e2b.Register(server, e2b.Options{
		Activity: operations, Code: cells, Commands: commands, Files: stored, Freezer: freezer, Terminals: terminals,
		Env: environ(), Stopping: stopping.Load, Logger: logger,
	})
	handler := compat.New(server, compat.Options{Code: cells, Commands: commands, Files: stored, Terminals: terminals, Port: port})
	return &App{
		settings: settings, logger: logger, listener: listener,
		code: cells, commands: commands, terminals: terminals, freezer: freezer, handler: handler, arrivals: arrivals, stopping: stopping,
	}, nil
}

// Addr returns the address that the daemon listens on.
func (a *App) Addr() string { return a.listener.Addr().String() }

// Run serves until ctx ends. Then commands are interrupted, their streams get their last events,
// stay open for the graceful shutdown timeout, and Run returns.
func (a *App) Run(ctx context.Context) error {
	if a.settings.AccessToken == "" {
		a.logger.Warn().Msg("no access token is set: anyone who reaches this port may run commands")
	}
	a.logger.Info().Str("address", a.Addr()).Msg("execd listens")
	if a.freezer.Asleep() { // what it was to be woken by has ended with the daemon before
		a.logger.Info().Msg("the sandbox is asleep, and is woken")
		if err := a.freezer.Thaw(); err != nil {
			a.logger.Error().Err(err).Msg("cannot wake the sandbox")
		}
	} else if a.freezer.Frozen() { // by a daemon that did not live to finish it, perhaps
		a.logger.Info().Msg("the sandbox is frozen")
		if err := a.freezer.Freeze(ctx); err != nil {
			a.logger.Error().Err(err).Msg("not every process of the frozen sandbox is stopped")
		}
	}
	// Most of what lives is what streams wait with, and little of it becomes garbage: twice as many
	// collections cost nothing that can be measured, and a third less memory.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	ctx, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		a.stopping.Store(true)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		cells := make(chan struct{})
		go func() { defer close(cells); a.code.Stop() }()
		hungUp := make(chan struct{})
		go func() { defer close(hungUp); a.terminals.Stop(grace) }()
		a.commands.Stop(grace)
		<-cells
		<-hungUp
	}()
	err := listen.Serve(ctx, a.listener, newTrimmer(a.handler, giveBack, held), listen.Options{
		Logger:             a.logger,
		Grace:              closeGrace + endGrace + a.settings.GracefulShutdownTimeout,
		MaxUnauthenticated: listen.MaxUnauthenticated(), // every process in the sandbox can open some
		Arrivals:           a.arrivals,
	})
	stop()
	<-stopped
	a.commands.Close()
	if err := a.code.Close(); err != nil {
		a.logger.Warn().Err(err).Msg("the kernels' host did not close cleanly")
	}
	a.logger.Info().Msg("execd stopped")
	return err
}

// kernelHost returns what runs kernels: a Jupyter Server where one is configured, else execd
// itself.
func kernelHost(settings config.Settings, freezer *freeze.Freezer, logger zerolog.Logger) (kernel.Host, error) {
	if settings.JupyterHost == "" {
		return jupyter.NewDirect(jupyter.DirectOptions{
			Env: environ(), Enter: freezer.Enter, AwaitExit: awaitKernel, Frozen: freezer.Frozen, Logger: logger,
		}), nil
	}
	server, err := jupyter.NewServer(jupyter.ServerOptions{
		URL: settings.JupyterHost, Token: settings.JupyterToken, Frozen: freezer.Frozen, Logger: logger,
	})
	if err != nil {
		return nil, fmt.Errorf("--jupyter-host: %w", err)
	}
	return server, nil
}

// awaitKernel returns when a kernel that was just started has ended.
func awaitKernel(pid int) {
	process.PreferForOOMKill(pid)
	process.AwaitExit(pid)
}

// environ returns the environment of commands, terminals and kernels: this process's own without
// the token of a Jupyter Server. Names that begin with EXECD_ are left out by whoever starts a
// process.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "JUPYTER_TOKEN=") })
}

// newFreezer returns what stops the sandbox's processes. Under execd-init they are its descendants,
// orphans included, and it keeps which are stopped; a daemon on its own stops its own descendants.
func newFreezer() (*freeze.Freezer, error) {
	var options freeze.Options
	state, err := supervisor.State(supervisor.PrefixExecd)
	if err != nil {
		return nil, err
	}
	if state != nil {
		options = freeze.Options{Root: os.Getppid(), State: state}
	} else if os.Getpid() == 1 {
		options.Root = 1
	}
	freezer, err := freeze.New(options)
	if err != nil {
		return nil, fmt.Errorf("the state of the freezer: %w", err)
	}
	return freezer, nil
}
