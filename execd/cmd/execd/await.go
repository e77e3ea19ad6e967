package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sandbox.internal/execd/app"
	"sandbox.internal/internal/claims"
	"sandbox.internal/internal/log"
	"sandbox.internal/internal/supervisor"
)

// runAwait waits for a claim and leaves it to execd-init.
func runAwait(args []string) int {
	settings, code := parse(args)
	if code >= 0 {
		return code
	}
	if err := shield(); err != nil {
		return fail(err)
	}
	output := logOutput(warning)
	defer output.Close()
	logger, closer, err := log.New(log.Options{Level: warning}, output)
	if err != nil {
		return fail(err)
	}
	defer closer.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	claim, err := app.Await(ctx, settings, app.Claimable{Key: os.Getenv(claims.KeyVariable), Pod: os.Getenv(claims.PodVariable)}, logger)
	if err != nil {
		return fail(err)
	}
	if claim == nil {
		return 0 // a signal
	}
	if err := supervisor.DeliverClaim(supervisor.PrefixExecd, *claim); err != nil {
		return fail(err)
	}
	return 0
}
