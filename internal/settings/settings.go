// Package settings reads the settings of a program from flags and environment variables, as a table
// says: an explicit flag overrides an environment variable, which overrides the default.
package settings

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
)

// Setting is one row of a program's table. S holds the effective settings.
type Setting[S any] struct {
	Flag    string // without dashes; empty when there is only a variable
	Env     string // empty when there is only a flag
	Default string // in the notation of the flag
	Meaning string // for --help
	// Set checks a value and stores it. The error says which rule is broken, and does not say where
	// the value comes from.
	Set func(*S, string) error
}

// Parse computes the settings from the command line (without the program's name) and the
// environment. An empty variable counts as unset; an empty flag does not. The error names the flag
// or variable and the rule that it breaks. For -h and --help it writes the table to usage and
// returns flag.ErrHelp.
func Parse[S any](table []Setting[S], args []string, getenv func(string) string, usage io.Writer) (S, error) {
	var none, settings S
	given := make(map[string]string)
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for _, row := range table {
		if row.Flag == "" {
			continue
		}
		flags.Func(row.Flag, row.Meaning, func(value string) error {
			given[row.Flag] = value
			return nil
		})
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return none, errors.Join(err, writeUsage(usage, table))
	case err != nil:
		return none, fmt.Errorf("%w (--help shows every flag)", err)
	case flags.NArg() > 0:
		return none, fmt.Errorf("unexpected argument %q: only flags are accepted here", flags.Arg(0))
	}
	for _, row := range table {
		value, source := row.Default, "default of --"+row.Flag
		if row.Env != "" {
			if fromEnv := getenv(row.Env); fromEnv != "" {
				value, source = fromEnv, "environment variable "+row.Env
			}
		}
		if fromFlag, ok := given[row.Flag]; ok {
			value, source = fromFlag, "flag --"+row.Flag
		}
		if err := row.Set(&settings, value); err != nil {
			return none, fmt.Errorf("%s: %w", source, err)
		}
	}
	return settings, nil
}

func writeUsage[S any](w io.Writer, table []Setting[S]) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FLAG\tENVIRONMENT\tDEFAULT\tMEANING")
	for _, row := range table {
		name := "-"
		if row.Flag != "" {
			name = "--" + row.Flag
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", name, cmp.Or(row.Env, "-"), cmp.Or(row.Default, "-"), row.Meaning)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write usage: %w", err)
	}
	_, err := fmt.Fprintln(w, "\nA flag overrides its environment variable, which overrides the default.")
	return err
}
