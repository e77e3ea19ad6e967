// Package commandlinetest checks the help of programs, and their documentation.
package commandlinetest

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandbox.internal/server/commandline"
)

// CheckHelp checks that each command has help, on stdout, that fits into 80 columns and names the
// command's flags.
func CheckHelp(t *testing.T, newRoot func() *cobra.Command) {
	t.Helper()
	checkHelp(t, newRoot, newRoot(), nil)
}

// checkHelp checks a command, which is called with the path, and those below it.
func checkHelp(t *testing.T, newRoot func() *cobra.Command, command *cobra.Command, path []string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args := append(slices.Clone(path), "--help")
	code := commandline.Run(newRoot(), args, &stdout, &stderr)
	if code != commandline.ExitOK || stderr.Len() > 0 ||
		!strings.Contains(stdout.String(), "\nUsage:\n  "+command.CommandPath()) {
		t.Errorf("%q: exit %d: %s%s", args, code, stdout.String(), stderr.String())
	}
	for line := range strings.Lines(stdout.String()) {
		if columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > 80 {
			t.Errorf("%q: %d columns: %s", args, columns, line)
		}
	}
	command.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(stdout.String(), " --"+f.Name) {
			t.Errorf("%q does not name --%s", args, f.Name)
		}
	})
	for _, sub := range command.Commands() {
		checkHelp(t, newRoot, sub, append(slices.Clone(path), sub.Name()))
	}
}

// CheckDocumented checks that the rows of a page's table of flags, below the heading, are the flags
// of the command.
func CheckDocumented(t *testing.T, command *cobra.Command, page, heading string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	table, _, _ = strings.Cut(table, "\n## ")
	var documented, defined []string
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	command.LocalFlags().VisitAll(func(f *pflag.Flag) { defined = append(defined, f.Name) })
	slices.Sort(documented)
	slices.Sort(defined)
	if !slices.Equal(documented, defined) {
		t.Errorf("%s has the flags %q, the program %q", page, documented, defined)
	}
}
