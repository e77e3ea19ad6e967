// Command egress is the egress daemon, the program of the egress sidecar that decides what the
// sandbox beside it may reach. It runs in the sandbox's network namespace with CAP_NET_ADMIN, below
// egress-init. Package config says how the sidecar is started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"sandbox.internal/egress/app"
	"sandbox.internal/egress/config"
	"sandbox.internal/internal/log"
	"sandbox.internal/internal/supervisor"
)

// gcPercent is how much garbage may gather, in percent of what is in use: there is a sidecar beside
// every sandbox, and it has little to do.
const gcPercent = 30

// memoryLimit is how many bytes the Go runtime may hold before it collects garbage whatever
// gcPercent says. The container has 64 MiB, and some of that is the kernel's, for sockets and sets.
const memoryLimit = 40 << 20

// maxProcessors is how many processors the egress daemon uses: the Go runtime keeps memory for each
// of them, 0.3 MiB under load, and two answer thousands of names a second.
const maxProcessors = 2

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxProcessors))
	settings, err := config.Parse(args, os.Getenv, os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "egress: %v\n", err)
		return 2
	}
	logger, _, err := log.New(log.Options{Level: settings.LogLevel}, os.Stdout)
	if err != nil {
		return fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ready, err := supervisor.Ready(supervisor.PrefixEgress)
	if err != nil {
		return fail(err)
	}
	sidecar, err := app.New(ctx, settings, logger)
	if err != nil {
		return fail(err)
	}
	if err := sidecar.Run(ctx, ready); err != nil {
		return fail(err)
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintf(os.Stderr, "egress: %v\n", err)
	return 1
}
