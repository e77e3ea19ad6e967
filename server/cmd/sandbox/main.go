// Command sandbox is the command line tool for people: see 'sandbox help'.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sandbox.internal/server/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal lets the command clean up; a second one ends it at once.
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
