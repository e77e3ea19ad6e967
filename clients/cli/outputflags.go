package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
)

// registerOutput declares the flags that every command with results has. quiet names what --quiet
// prints of a result; empty means that the command has no such flag.
func (t *tool) registerOutput(command *cobra.Command, quiet string) {
	flags := command.Flags()
	flags.StringVarP(&t.Printer.Format, "output", "o", show.FormatTable,
		"how to print: `FORMAT` is "+strings.Join(show.Formats, ", "))
	if quiet != "" {
		flags.BoolVarP(&t.Printer.Quiet, "quiet", "q", false, "print "+quiet+" only")
	}
	_ = command.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(show.Formats, cobra.ShellCompDirectiveNoFileComp))
	check := command.PreRunE
	command.PreRunE = func(c *cobra.Command, args []string) error {
		if !slices.Contains(show.Formats, t.Printer.Format) {
			return usageErrorf("output: must be one of %s, not %q", strings.Join(show.Formats, ", "),
				t.Printer.Format)
		}
		if check != nil {
			return check(c, args)
		}
		return nil
	}
}
