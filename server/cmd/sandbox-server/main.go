// Command sandbox-server is the lifecycle service: it creates, pauses, resumes, renews and deletes
// sandboxes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"sandbox.internal/internal/build"
	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/commandline"
	"sandbox.internal/server/config"
	"sandbox.internal/server/reach"
)

const long = `The lifecycle service: it creates, pauses, resumes, renews and deletes
sandboxes.

Without a command the service runs until SIGINT or SIGTERM; a second one ends it
at once. SIGHUP begins a new audit log where the old one was renamed.

The configuration is read from --config, else from $SANDBOX_CONFIG_PATH, else
from ~/.sandbox.toml.

Exit codes: 0 after a graceful stop or success, 1 after a failure, 2 for a wrong
command line, 78 when the configuration that the service is started with cannot
be used.`

// exitConfig is EX_CONFIG of sysexits.h, which systemd has a name for.
const exitConfig = 78

func main() { os.Exit(commandline.Run(newRoot(), os.Args[1:], os.Stdout, os.Stderr)) }

func newRoot() *cobra.Command {
	var file string
	root := &cobra.Command{
		Use:   "sandbox-server",
		Short: "The lifecycle service",
		Long:  long,
		Args:  commandline.NoArguments,
		RunE:  func(c *cobra.Command, _ []string) error { return serve(file, c.ErrOrStderr()) },
	}
	root.PersistentFlags().StringVar(&file, "config", "", "`FILE` with the configuration")
	root.AddCommand(configCommand(&file), auditCommand(&file),
		commandline.Version(build.Version(), build.Commit()))
	return root
}

func load(file string) (string, config.Config, error) {
	path, err := config.Path(file, os.Getenv)
	if err != nil {
		return "", config.Config{}, err
	}
	cfg, err := config.Load(path, os.Getenv)
	return path, cfg, err
}

// loadWhole also reads the file of server.signing_key, of which the configuration has the path
// alone.
func loadWhole(file string) (string, config.Config, error) {
	path, cfg, err := load(file)
	if err != nil || cfg.Server.SigningKey == "" {
		return path, cfg, err
	}
	if _, err := reach.LoadKeys(cfg.Server.SigningKey); err != nil {
		return path, cfg, fmt.Errorf("%s: server.signing_key: %w", path, err)
	}
	return path, cfg, nil
}

func serve(file string, logs io.Writer) error {
	path, cfg, err := loadWhole(file)
	if err == nil {
		cfg.File, err = filepath.Abs(path)
	}
	if err != nil {
		return commandline.ExitError{Code: exitConfig, Err: err}
	}
	// Before anything else: the signal would end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	logger := zerolog.New(logs).Level(level(cfg.Server.LogLevel)).With().Timestamp().Logger()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal has its usual effect
	service, err := app.New(ctx, cfg, api.Version{Version: build.Version(), Commit: build.Commit()}, logger)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	var reopening sync.WaitGroup
	reopening.Go(func() {
		for {
			select {
			case <-hangups:
				service.Reopen()
			case <-done:
				return
			}
		}
	})
	err = service.Run(ctx)
	close(done)
	reopening.Wait()
	return err
}

func level(l config.LogLevel) zerolog.Level {
	switch l {
	case config.LogLevelDebug:
		return zerolog.DebugLevel
	case config.LogLevelWarning:
		return zerolog.WarnLevel
	case config.LogLevelError:
		return zerolog.ErrorLevel
	}
	return zerolog.InfoLevel
}
