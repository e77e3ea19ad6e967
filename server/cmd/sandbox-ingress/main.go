// Command sandbox-ingress gives clients one address for every port of every sandbox.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"sandbox.internal/internal/build"
	"sandbox.internal/server/commandline"
	"sandbox.internal/server/ingress"
)

const long = `Forwards requests to the ports of sandboxes until SIGINT or SIGTERM; then open
requests and streams have --grace to end, and a second signal ends them at once.
SIGHUP reads --routes again.

A request names its sandbox and port by --mode:

  wildcard  host <sandbox_id>-<port>.<domain>
  uri       path /<sandbox_id>/<port>/...
  header    header Service-Ingress-To: <sandbox_id>-<port>

The sandboxes are those of one of --service, --kubernetes and --routes.

Exit codes: 0 after a graceful stop, 1 after a failure, 2 for a wrong command
line.`

func main() { os.Exit(commandline.Run(newRoot(serve), os.Args[1:], os.Stdout, os.Stderr)) }

// newRoot returns the command line. serve is called with valid settings.
func newRoot(serve func(ingress.Settings, zerolog.Level, io.Writer) error) *cobra.Command {
	given := flags{settings: ingress.DefaultSettings()}
	root := &cobra.Command{
		Use:   "sandbox-ingress --mode MODE",
		Short: "One address for every port of every sandbox",
		Long:  long,
		Args:  commandline.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			settings, level, err := given.resolve(os.Getenv, c.ErrOrStderr())
			if err != nil {
				return commandline.UsageError{Err: err}
			}
			if err := serve(settings, level, c.ErrOrStderr()); err != nil {
				return fmt.Errorf("%s: %w", c.Name(), err)
			}
			return nil
		},
	}
	given.register(root)
	root.AddCommand(commandline.Version(build.Version()))
	return root
}

// serve runs an ingress that logs to logs.
func serve(settings ingress.Settings, level zerolog.Level, logs io.Writer) error {
	lines := ingress.NewLogWriter(logs)
	defer func() { _ = lines.Close() }() // there is no other place to report that it cannot be written
	logger := zerolog.New(lines).Level(level).With().Timestamp().Logger()
	// net/http writes there what a server sends unasked: a sandbox could fill the disk.
	log.SetOutput(io.Discard)
	// Before anything else: the signal would end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal has its usual effect
	app, err := ingress.New(settings, logger)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	var reloading sync.WaitGroup
	reloading.Go(func() {
		for {
			select {
			case <-hangups:
				if err := app.Reload(); err != nil {
					logger.Error().Err(err).Msg("the routes stay as they were")
				}
			case <-done:
				return
			}
		}
	})
	err = app.Run(ctx)
	close(done)
	reloading.Wait()
	return err
}
