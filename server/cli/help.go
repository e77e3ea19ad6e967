package cli

import (
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
)

func (t *tool) help() error {
	table := newTable(t.stdout)
	_, _ = fmt.Fprint(table, "Usage: sandbox [flags] COMMAND [flags]\n\nCommands:\n")
	for _, c := range commands() {
		_, _ = fmt.Fprintf(table, "  %s\t%s\n", c.name, c.summary)
	}
	_, _ = fmt.Fprint(table, "  help COMMAND\tprint the flags of a command\n\nFlags:\n")
	flags := newFlagSet("sandbox")
	t.target.register(flags)
	writeFlags(table, flags)
	return table.Flush()
}

func (t *tool) commandHelp(c command, flags *flag.FlagSet) error {
	table := newTable(t.stdout)
	_, _ = fmt.Fprintf(table, "Usage: sandbox %s [flags]\n\nWill %s.\n\nFlags:\n", c.name,
		c.summary)
	writeFlags(table, flags)
	return table.Flush()
}

func newTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
}

func writeFlags(w io.Writer, flags *flag.FlagSet) {
	flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		_, _ = fmt.Fprintf(w, "  --%s %s\t%s\n", f.Name, value, usage)
	})
}
