// Package cli is the `sandbox` command line tool. It uses the services only through
// their published contracts: it uses the generated clients and nothing else of ours.
//
// Each command has a file of its own and one row in [commands].
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
)

// The exit codes of [Run].
const (
	ExitOK     = 0
	ExitFailed = 1 // the command was understood and did not succeed
	ExitUsage  = 2 // the command line is wrong; nothing was done
)

// command is one word that the tool understands.
type command struct {
	name    string
	summary string
	// setup declares the command's flags on flags and returns what to do once they
	// are parsed.
	setup func(t *tool, flags *flag.FlagSet) func(ctx context.Context) error
}

// commands lists what the tool can do, in the order of its help.
func commands() []command {
	return []command{
		{"demo", "take one sandbox through its whole life and check every step", setupDemo},
		{"version", "print the version of this tool and of the service", setupVersion},
	}
}

// tool is one invocation of the command line.
type tool struct {
	env    func(string) string
	stdout io.Writer
	stderr io.Writer
	target target
}

// usageError says that the command line is wrong, as opposed to what it asked for.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usageErrorf(format string, args ...any) error {
	return usageError{fmt.Sprintf(format, args...)}
}

// Run carries out one command line, args without the program's name, and returns the
// exit code. Cancelling ctx interrupts the command, which still cleans up after itself.
func Run(ctx context.Context, args []string, env func(string) string, stdout,
	stderr io.Writer) int {
	t := &tool{env: env, stdout: stdout, stderr: stderr}
	err := t.run(ctx, args)
	if err == nil {
		return ExitOK
	}
	_, _ = fmt.Fprintf(stderr, "sandbox: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		_, _ = fmt.Fprintln(stderr, "Run 'sandbox help' for what there is.")
		return ExitUsage
	}
	return ExitFailed
}

func (t *tool) run(ctx context.Context, args []string) error {
	global := newFlagSet("sandbox")
	t.target.register(global)
	switch help, err := parse(global, args); {
	case err != nil:
		return err
	case help:
		return t.help()
	case global.NArg() == 0:
		return usageErrorf("which command?")
	}

	name, rest := global.Arg(0), global.Args()[1:]
	if name == "help" {
		if len(rest) == 0 {
			return t.help()
		}
		name, rest = rest[0], []string{"--help"}
	}
	for _, c := range commands() {
		if c.name == name {
			return t.runCommand(ctx, c, rest)
		}
	}
	return usageErrorf("there is no command %q", name)
}

func (t *tool) runCommand(ctx context.Context, c command, args []string) error {
	flags := newFlagSet("sandbox " + c.name)
	// The target's flags are understood before and after the command's name.
	t.target.register(flags)
	do := c.setup(t, flags)
	switch help, err := parse(flags, args); {
	case err != nil:
		return fmt.Errorf("%s: %w", c.name, err)
	case help:
		return t.commandHelp(c, flags)
	case flags.NArg() > 0:
		return usageErrorf("%s: unexpected argument %q", c.name, flags.Arg(0))
	}
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// newFlagSet returns a flag set that leaves all printing to us.
func newFlagSet(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	return flags
}

// parse reports whether help was asked for; any other trouble is a usageError.
func parse(flags *flag.FlagSet, args []string) (help bool, err error) {
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return true, nil
	case err != nil:
		return false, usageError{err.Error()}
	}
	return false, nil
}
