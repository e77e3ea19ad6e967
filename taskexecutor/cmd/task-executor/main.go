// Command task-executor runs tasks in the main container of its pod. It is started by
// task-executor-init; docs/kubernetes-resources.md describes what the pod needs. `task-executor
// --help` shows its settings.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"sandbox.internal/internal/log"
	"sandbox.internal/internal/supervisor"
	"sandbox.internal/taskexecutor"
)

const (
	// gcPercent is how much garbage may gather, in percent of what is in use: there is little to
	// do, and one in every pod.
	gcPercent = 30
	// stopGrace is how long requests may go on once all tasks have ended.
	stopGrace = time.Second
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case taskexecutor.ShimCommand:
			return taskexecutor.Shim(args[1:])
		case taskexecutor.EnterCommand:
			return taskexecutor.Enter(args[1:])
		}
	}
	debug.SetGCPercent(gcPercent)
	given, err := parse(args, os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "task-executor: %v\n", err)
		return 2
	}
	logger, _, err := log.New(log.Options{Level: given.logLevel}, os.Stdout)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		err = serve(ctx, given, logger)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "task-executor: %v\n", err)
		return 1
	}
	return 0
}

// serve answers requests until ctx ends and the tasks have, too.
func serve(ctx context.Context, s options, logger zerolog.Logger) error {
	access, err := s.access()
	if err != nil {
		return err
	}
	ready, err := supervisor.Ready(supervisor.PrefixTaskExecutor)
	if err != nil {
		return err
	}
	options := taskexecutor.Options{StateDir: s.stateDir, MainMarker: s.mainMarker, Logger: logger}
	restarts, supervised := supervisor.Restarts(os.Getenv, supervisor.PrefixTaskExecutor)
	if supervised {
		options.Init = os.Getppid()
	}
	executor, err := taskexecutor.New(options)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.addr())
	if err != nil {
		return err
	}
	if access.Open() {
		logger.Warn().Msg("neither a token nor the controller's key is set: anyone who reaches this port, the sandbox too, may run tasks")
	}
	server := &http.Server{Handler: executor.Handler(access), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	served := make(chan struct{})
	err = executor.Run(ctx, func() {
		go func() {
			defer close(served)
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				fail(err)
			}
		}()
		logger.Info().Str("address", listener.Addr().String()).Int("restarts", restarts).Msg("task-executor listens")
		ready()
	})
	grace, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close() // its error is about listeners, which are closed
	}
	<-served
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}
