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
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	program := cli.Program{Env: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Signals: signals}
	os.Exit(program.Run(context.Background(), os.Args[1:]))
}
