// Package app puts execd together: engines, API and listener. It touches no flag and no signal, so that a test can embed it.
package app

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/execd/api"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/config"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/metrics"
	"sandbox.internal/openapi/serve"
)

// closeGrace is how long commands have to end, once the daemon stops, before they are killed.
const closeGrace = 2 * time.Second

// settle is what a killed command's end needs to reach its streams, on top of closeGrace and the streams' own time.
const settle = 500 * time.Millisecond

// App is a daemon that listens and does not serve yet.
type App struct {
	settings config.Settings
	logger   zerolog.Logger
	listener net.Listener
	commands *command.Manager
	server   *serve.Server
}

// New puts a daemon together and listens. It returns an error when the address cannot be listened on.
func New(settings config.Settings, logger zerolog.Logger) (*App, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	listener, err := net.Listen("tcp", settings.Addr())
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	commands := command.New(command.Options{
		Dir:          dir,
		Env:          os.Environ(),
		LogLimit:     settings.CommandLogLimit,
		BuiltinShell: []string{"/proc/self/exe", "sh"},
		Logger:       logger,
		Clock:        time.Now,
	})
	server, err := api.New(api.Options{
		Commands: commands,
		Files:    files.New(files.Options{Root: dir}),
		Metrics:  metrics.New(metrics.Options{}),
		Token:    settings.AccessToken,
		Port:     listener.Addr().(*net.TCPAddr).Port,
		Linger:   settings.GracefulShutdownTimeout,
		Logger:   logger,
	})
	if err != nil {
		listener.Close()
		return nil, err
	}
	return &App{settings: settings, logger: logger, listener: listener, commands: commands, server: server}, nil
}

// Addr returns the address that the daemon listens on.
func (a *App) Addr() string { return a.listener.Addr().String() }

// Run serves until ctx ends. Then commands are interrupted, their streams get their last events, stay open for the graceful
// shutdown timeout, and Run returns.
func (a *App) Run(ctx context.Context) error {
	if a.settings.AccessToken == "" {
		a.logger.Warn().Msg("no access token is set: everybody who reaches this port may run commands")
	}
	a.logger.Info().Str("address", a.Addr()).Msg("execd listens")
	// Loading the contract leaves garbage behind that is as large as the idle daemon; there is one in every sandbox.
	debug.FreeOSMemory()
	ctx, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		a.commands.Stop(grace)
	}()
	err := serve.Serve(ctx, a.listener, a.server, serve.ServeOptions{
		Logger: a.logger,
		Grace:  closeGrace + settle + a.settings.GracefulShutdownTimeout,
	})
	stop()
	<-stopped
	a.commands.Close()
	a.logger.Info().Msg("execd stopped")
	return err
}
