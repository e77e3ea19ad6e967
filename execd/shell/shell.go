// Package shell is the shell for images that have none: a POSIX shell interpreter that runs as a process of its own.
package shell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// exitUsage is a shell's exit code for a command line that it cannot parse.
const exitUsage = 2

// Main runs the command line behind -c and returns its exit code.
func Main(args []string) int {
	if len(args) != 2 || args[0] != "-c" {
		fmt.Fprintln(os.Stderr, "usage: execd sh -c command")
		return exitUsage
	}
	program, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(args[1]), "sh")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitUsage
	}
	runner, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr))
	if err != nil {
		fmt.Fprintf(os.Stderr, "sh: %v\n", err)
		return exitUsage
	}
	err = runner.Run(context.Background(), program)
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintf(os.Stderr, "sh: %v\n", err)
	return 1
}
