// Package commandline is what the command lines of the services' programs have in common: exit
// codes, messages for wrong command lines, the command version, and help. The tool for people,
// clients/cli, exits with the codes of the programs that it runs and has help of its own.
package commandline

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit codes of [Run]. A program may have others, see [ExitError].
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2 // the command line is wrong; nothing was done
)

// UsageError is an error of the command line, as opposed to what it asked for.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the error without its kind.
func (e UsageError) Unwrap() error { return e.Err }

// Errorf returns a [UsageError].
func Errorf(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// ExitError is a failure with an exit code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the error without its code.
func (e ExitError) Unwrap() error { return e.Err }

// Run carries out one command line, args without the program's name, and returns the exit code. It
// prints an error to stderr: that of a wrong command line with the name of the command and where
// its help is, any other as it is.
func Run(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetUsageFunc(writeUsage)
	for _, command := range root.Commands() {
		if words := command.Annotations[versionWords]; words != "" {
			root.Version = words
			root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
			root.Flags().Bool("version", false, "print the version")
			root.Flags().Lookup("version").Hidden = true // the help has the command
		}
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(append([]string{}, args...)) // cobra takes those of the process for nil
	command, err := root.ExecuteC()
	var usage UsageError
	var exit ExitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		name := command.CommandPath()
		_, _ = fmt.Fprintf(stderr, "%s: %v\nSee '%s --help'.\n", name, err, name)
		return ExitUsage
	}
	_, _ = fmt.Fprintln(stderr, err)
	if errors.As(err, &exit) {
		return exit.Code
	}
	return ExitFailure
}

// flagError explains "-config", which other libraries for flags read as "--config".
func flagError(err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedShortnames()) > 1 {
		return Errorf("%w: flags begin with two dashes", err)
	}
	return UsageError{err}
}

// NoArguments refuses arguments, with the commands that may have been meant.
func NoArguments(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	command.SuggestionsMinimumDistance = 2
	if near := command.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return Errorf("unexpected argument %q%s", args[0], hint)
}

// group is the annotation of a command that only has other commands.
const group = "group"

// Group returns a command that only has other commands.
func Group(name, short string, commands ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use:         name,
		Short:       short,
		Annotations: map[string]string{group: name},
		Args:        NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			var names []string
			for _, sub := range c.Commands() {
				names = append(names, sub.Name())
			}
			return Errorf("needs a command: %s", strings.Join(names, ", "))
		},
	}
	command.AddCommand(commands...)
	return command
}

func isGroup(command *cobra.Command) bool { return command.Annotations[group] != "" }

// versionWords is an annotation of the command that Version returns: what it prints after the
// program's name.
const versionWords = "version-words"

// Version returns the command version, which prints the program's name and the words. Of a program
// that has it, the flag --version prints the same.
func Version(words ...string) *cobra.Command {
	return &cobra.Command{
		Use:         "version",
		Short:       "Print the version",
		Args:        NoArguments,
		Annotations: map[string]string{versionWords: strings.Join(words, " ")},
		RunE: func(c *cobra.Command, _ []string) error {
			line := append([]string{c.Root().Name()}, words...)
			_, err := fmt.Fprintln(c.OutOrStdout(), strings.Join(line, " "))
			return err
		},
	}
}
