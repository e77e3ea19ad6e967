package commandline_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandbox.internal/server/commandline"
	"sandbox.internal/server/commandline/commandlinetest"
)

// program is a command line with everything that those of the services' programs have.
func program() *cobra.Command {
	var outcome string
	root := &cobra.Command{
		Use:  "program",
		Long: "Does what --outcome says.",
		Args: commandline.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			switch outcome {
			case "failure":
				return errors.New("a failure")
			case "code":
				return fmt.Errorf("around: %w",
					commandline.ExitError{Code: 78, Err: errors.New("a failure of its own")})
			case "":
				_, err := fmt.Fprintln(c.OutOrStdout(), "done")
				return err
			}
			return commandline.Errorf("--outcome: must be failure or code (got %q)", outcome)
		},
	}
	commandline.AddFlags(root, "Outcome", func(flags *pflag.FlagSet) {
		flags.StringVar(&outcome, "outcome", "",
			"`WORD` for what comes of it, in a text that is so long that a terminal of eighty "+
				"columns does not show it in one line")
		flags.Int("another", 3, "`N` that nothing reads")
	})
	commandline.AddFlags(root, "Other", func(flags *pflag.FlagSet) {
		flags.Bool("switch", true, "a switch")
	})
	check := &cobra.Command{Use: "check", Short: "Check it", Args: commandline.NoArguments,
		RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(commandline.Group("config", "Configuration", check),
		commandline.Version("1.2", "commit"))
	return root
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{nil, 0, "done\n", ""},
		{[]string{"version"}, 0, "program 1.2 commit\n", ""},
		{[]string{"--version"}, 0, "program 1.2 commit\n", ""},
		{[]string{"config", "check"}, 0, "", ""},
		{[]string{"--outcome", "failure"}, 1, "", "a failure\n"},
		{[]string{"--outcome", "code"}, 78, "", "around: a failure of its own\n"},
		{[]string{"--outcome", "x"}, 2, "", "program: --outcome: must be failure or code (got \"x\")\n" +
			"See 'program --help'.\n"},
		{[]string{"--unknown"}, 2, "", "program: unknown flag: --unknown\nSee 'program --help'.\n"},
		{[]string{"-outcome", "x"}, 2, "", "program: unknown shorthand flag: 'o' in -outcome: " +
			"flags begin with two dashes\nSee 'program --help'.\n"},
		{[]string{"--another", "x"}, 2, "", "program: invalid argument \"x\" for \"--another\" flag: " +
			"strconv.ParseInt: parsing \"x\": invalid syntax\nSee 'program --help'.\n"},
		{[]string{"confgi"}, 2, "", "program: unexpected argument \"confgi\"; did you mean config?\n" +
			"See 'program --help'.\n"},
		{[]string{"config"}, 2, "", "program config: needs a command: check\n" +
			"See 'program config --help'.\n"},
		{[]string{"config", "chekc"}, 2, "", "program config: unexpected argument \"chekc\"; " +
			"did you mean check?\nSee 'program config --help'.\n"},
		{[]string{"config", "check", "x"}, 2, "", "program config check: unexpected argument \"x\"\n" +
			"See 'program config check --help'.\n"},
		{[]string{"version", "x"}, 2, "", "program version: unexpected argument \"x\"\n" +
			"See 'program version --help'.\n"},
		{[]string{"completion"}, 2, "", "program: unexpected argument \"completion\"\n" +
			"See 'program --help'.\n"},
	} {
		var stdout, stderr bytes.Buffer
		code := commandline.Run(program(), test.args, &stdout, &stderr)
		if code != test.code || stdout.String() != test.stdout || stderr.String() != test.stderr {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", test.args, code, stdout.String(), stderr.String())
		}
	}
}

func TestHelp(t *testing.T) {
	commandlinetest.CheckHelp(t, program)
	var stdout, stderr bytes.Buffer
	commandline.Run(program(), []string{"--help"}, &stdout, &stderr)
	const want = `Does what --outcome says.

Usage:
  program [flags]
  program COMMAND

Commands:
  config check  Check it
  version       Print the version

Outcome:
      --outcome WORD   WORD for what comes of it, in a text that is so
                       long that a terminal of eighty columns does not
                       show it in one line
      --another N      N that nothing reads (default 3)

Other:
      --switch   a switch (default true)

Flags:
  -h, --help   help for program
`
	if stdout.String() != want {
		t.Errorf("%s", stdout.String())
	}
	stdout.Reset()
	commandline.Run(program(), []string{"config", "--help"}, &stdout, &stderr)
	if !strings.Contains(stdout.String(), "Usage:\n  program config COMMAND\n\nCommands:\n  check  Check it\n") {
		t.Errorf("%s", stdout.String())
	}
}
