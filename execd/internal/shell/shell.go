// Package shell is the shell for images that have none: a POSIX shell interpreter that runs as a
// process of its own.
package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// exitUsage is a shell's exit code for a command line that it cannot parse.
const exitUsage = 2

// Main runs the command line behind -c, or in a file, and returns its exit code. A descriptor's
// name (/proc/self/fd/3) is a file, too; the descriptor is closed before the command line runs.
func Main(args []string) int {
	var text io.Reader
	switch {
	case len(args) == 2 && args[0] == "-c":
		text = strings.NewReader(args[1])
	case len(args) == 1 && args[0] != "-c":
		line, err := readFile(args[0])
		if err != nil {
			fmt.Fprintf(os.Stderr, "sh: %v\n", err)
			return exitUsage
		}
		text = bytes.NewReader(line)
	default:
		fmt.Fprintln(os.Stderr, "usage: execd sh -c command, or execd sh file")
		return exitUsage
	}
	program, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(text, "sh")
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

// readFile reads a file, and closes the descriptor that it names, if it does.
func readFile(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if number, ok := strings.CutPrefix(path, "/proc/self/fd/"); ok && err == nil {
		if fd, err := strconv.Atoi(number); err == nil && fd > 2 {
			_ = unix.Close(fd) // only read from
		}
	}
	return text, err
}
