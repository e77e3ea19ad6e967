// Command sandbox is the command line tool for people: see 'sandbox help'.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"sandbox.internal/clients/cli"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	// With its default action, SIGPIPE would end the tool at a write to an output that is read no
	// more, before it has cleaned up. With a handler, the write returns EPIPE.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	program := cli.Program{Env: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Signals: signals}
	os.Exit(program.Run(context.Background(), os.Args[1:]))
}
