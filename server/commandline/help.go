package commandline

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// columns is how wide help may be.
const columns = 80

// section is the annotation of a flag with the title that the help shows it under.
const section = "section"

// AddFlags adds the flags that register defines to those of the command. The help shows them in
// this order under a title.
func AddFlags(command *cobra.Command, title string, register func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
	register(flags)
	flags.VisitAll(func(f *pflag.Flag) { f.Annotations = map[string][]string{section: {title}} })
	flags.SortFlags = false
	command.Flags().SortFlags = false
	command.Flags().AddFlagSet(flags)
}

// writeUsage writes how the command is called, every command below it, and the flags.
func writeUsage(command *cobra.Command) error {
	out := command.OutOrStderr()
	_, _ = fmt.Fprintln(out, "Usage:")
	below := runnable(command)
	if !isGroup(command) {
		_, _ = fmt.Fprintf(out, "  %s\n", command.UseLine())
	}
	if len(below) > 0 {
		_, _ = fmt.Fprintf(out, "  %s COMMAND\n\nCommands:\n", command.CommandPath())
		writeCommands(out, command.CommandPath()+" ", below)
	}
	for _, flags := range sections(command.LocalFlags()) {
		_, _ = fmt.Fprintf(out, "\n%s:\n%s", flags.Name(), flags.FlagUsagesWrapped(columns))
	}
	if command.HasAvailableInheritedFlags() {
		_, _ = fmt.Fprintf(out, "\nFlags of every command:\n%s",
			command.InheritedFlags().FlagUsagesWrapped(columns))
	}
	return nil
}

// runnable returns the commands below this one that have none below them.
func runnable(command *cobra.Command) []*cobra.Command {
	var found []*cobra.Command
	for _, sub := range command.Commands() {
		switch {
		case !sub.IsAvailableCommand():
		case sub.HasAvailableSubCommands():
			found = append(found, runnable(sub)...)
		default:
			found = append(found, sub)
		}
	}
	return found
}

// writeCommands writes a line for each command, which is named without the prefix.
func writeCommands(out io.Writer, prefix string, commands []*cobra.Command) {
	names := make([]string, len(commands))
	width := 0
	for i, command := range commands {
		names[i] = strings.TrimPrefix(command.CommandPath(), prefix)
		width = max(width, len(names[i]))
	}
	for i, command := range commands {
		_, _ = fmt.Fprintf(out, "  %-*s  %s\n", width, names[i], command.Short)
	}
}

// sections returns the flags by their titles, in the order of the flags. Those without a title,
// such as --help, which cobra adds last, have a common one.
func sections(flags *pflag.FlagSet) []*pflag.FlagSet {
	var found []*pflag.FlagSet
	flags.VisitAll(func(f *pflag.Flag) {
		title := "Flags"
		if titles := f.Annotations[section]; len(titles) > 0 {
			title = titles[0]
		}
		at := slices.IndexFunc(found, func(s *pflag.FlagSet) bool { return s.Name() == title })
		if at < 0 {
			at = len(found)
			found = append(found, pflag.NewFlagSet(title, pflag.ContinueOnError))
			found[at].SortFlags = false
		}
		found[at].AddFlag(f)
	})
	return found
}
