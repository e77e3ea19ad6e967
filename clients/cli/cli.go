// Package cli is the `sandbox` command line tool. It uses the services only through
// their published contracts: the generated clients, and the Go client of clients/go for streams.
//
// Each command, or small group of them, has a file of its own and one line in newRoot. Results are
// printed by internal/show.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
)

// The exit codes of [Program.Run]. Commands that run a program in a sandbox (run, exec, shell)
// exit with the program's own code instead, and with the codes of docker(1) where there is none:
// 125 when the tool or the service failed, 126 when the program cannot be run, 127 when there is
// no such program; 124 when the timeout ended it, as timeout(1) has it.
const (
	ExitOK          = 0
	ExitFailed      = 1 // the command was understood and did not succeed
	ExitUsage       = 2 // the command line is wrong; nothing was done
	ExitTimeout     = 124
	ExitService     = 125
	ExitCannotRun   = 126
	ExitNotFound    = 127
	ExitInterrupted = 130 // an interrupt has ended the command, or the program that it ran
	ExitOutput      = 141 // the output has no reader any more; as a shell has it for SIGPIPE
)

// Program is what one invocation of the tool has around it.
type Program struct {
	Env    func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Signals are interrupts. The first one interrupts what runs in the sandbox, or ends the
	// command where nothing does; the second one ends the command; at the third Run returns at
	// once. A SIGHUP ends the command like the second one, and further ones change nothing: a shell
	// sends one when its terminal is closed, and the kernel others. It may be nil.
	Signals <-chan os.Signal
}

// tool is one invocation.
type tool struct {
	Program
	show.Printer
	target  target
	signals *signals
}

// usageError is an error of the command line, as opposed to what it asked for.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usageErrorf(format string, args ...any) error {
	return usageError{fmt.Sprintf(format, args...)}
}

// exitError ends the tool with a code and without a message of its own.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// codedError is an error with an exit code of its own.
type codedError struct {
	code int
	error
}

func (e codedError) Unwrap() error { return e.error }

// errInterrupted is the cause of the context of a command that an interrupt has ended.
var errInterrupted = errors.New("interrupted")

// Run carries out one command line, args without the program's name, and returns the exit
// code. Cancelling ctx ends the command, which still cleans up after itself.
func (p Program) Run(ctx context.Context, args []string) int {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	t := &tool{Program: p, Printer: show.Printer{Out: p.Stdout, ASCII: asciiLocale(p.Env)}, signals: &signals{leave: leave}}
	t.Columns = t.width
	done := make(chan int, 1)
	go func() { done <- t.run(ctx, args) }()
	for {
		select {
		case code := <-done:
			return code
		case received, ok := <-p.Signals:
			switch {
			case !ok:
				p.Signals = nil
			case received == syscall.SIGHUP:
				t.signals.hangUp()
			case !t.signals.deliver():
				return ExitInterrupted
			}
		}
	}
}

func (t *tool) run(ctx context.Context, args []string) int {
	root := newRoot(t)
	root.SetArgs(append([]string{}, args...)) // cobra takes those of the process for nil
	command, err := root.ExecuteContextC(ctx)
	t.target.close()
	return t.exit(ctx, command, err)
}

// exit prints an error and returns the code to exit with.
func (t *tool) exit(ctx context.Context, command *cobra.Command, err error) int {
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return ExitInterrupted // also of what an interrupt is the usual end of
	}
	if err == nil {
		return ExitOK
	}
	var exit exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	if t.outputClosed(err) {
		return ExitOutput
	}
	runs := command.Annotations[runsPrograms] != ""
	names := strings.Fields(command.CommandPath())
	t.warn("%s", strings.Join(append(names[1:], strings.TrimSpace(err.Error())), ": "))
	var usage usageError
	var coded codedError
	switch {
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(t.Stderr, "See '%s --help'.\n", command.CommandPath())
		if runs {
			return ExitService
		}
		return ExitUsage
	case runs:
		return ExitService
	}
	return ExitFailed
}

// outputClosed reports whether an error is that our output has no reader any more. A broken pipe
// elsewhere, such as a connection's, is another error.
func (t *tool) outputClosed(err error) bool {
	var failed *fs.PathError
	if !errors.As(err, &failed) || !errors.Is(failed, syscall.EPIPE) {
		return false
	}
	for _, output := range []io.Writer{t.Stdout, t.Stderr} {
		if file, ok := output.(*os.File); ok && file.Name() == failed.Path {
			return true
		}
	}
	return false
}
