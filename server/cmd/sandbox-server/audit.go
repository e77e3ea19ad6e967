package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandbox.internal/server/audit"
	"sandbox.internal/server/commandline"
)

var sha256Digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// auditCommand returns the commands for the audit log that the configuration in the file names.
func auditCommand(file *string) *cobra.Command {
	var logs []string
	var expect string
	command := &cobra.Command{
		Use:   "verify",
		Short: "Prove that the audit log is as it was written",
		Long: `Prove that the audit log (the configured one, or the files given) is as it was
written, and print its last hash.`,
		Args: commandline.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if expect != "" && !sha256Digest.MatchString(expect) {
				return commandline.Errorf("--expect: must be 64 hexadecimal digits in lower case, " +
					"as this command prints them")
			}
			return verify(*file, logs, expect, c.OutOrStdout())
		},
	}
	commandline.AddFlags(command, "Flags", func(flags *pflag.FlagSet) {
		flags.StringArrayVar(&logs, "file", nil, "`FILE` of the log; repeated for each, oldest first")
		flags.StringVar(&expect, "expect", "",
			"prove also that the log still has the line with this `HASH`, which was kept")
	})
	return commandline.Group("audit", "Verify the audit log", command)
}

// verify proves that files, oldest first, are one unbroken audit log, with a line that has the
// expected hash unless that is empty. Without files it is the configured one.
func verify(configFile string, files []string, expect string, out io.Writer) error {
	if len(files) == 0 {
		_, cfg, err := load(configFile)
		if err != nil {
			return err
		}
		if cfg.Server.AuditLog == "" {
			return errors.New("there is no audit log: server.audit_log is not set; name one with --file")
		}
		files = []string{cfg.Server.AuditLog}
	}
	var before audit.Report
	expected := expect == ""
	for i, name := range files {
		report, err := verifyFile(name, expect)
		if err != nil {
			return err
		}
		if i > 0 && !report.Continues(before) {
			return fmt.Errorf("%s: line 1 does not continue %s: it builds on the hash %s, and the last one there is %s", name, files[i-1], report.Begin, before.Hash)
		}
		describe(out, name, report, i == 0)
		expected = expected || report.Expected
		before = report
	}
	if !expected {
		return fmt.Errorf("no line has the hash %s: lines were cut off at the end, or it is another log", expect)
	}
	return nil
}

func verifyFile(name, expect string) (audit.Report, error) {
	file, err := os.Open(name)
	if err != nil {
		return audit.Report{}, err
	}
	defer file.Close() // only read
	report, err := audit.Verify(file, expect)
	if err != nil {
		return report, fmt.Errorf("%s: %w", name, err)
	}
	return report, nil
}

func describe(out io.Writer, name string, report audit.Report, first bool) {
	fmt.Fprintf(out, "%s: OK, %d lines (%d to %d), last hash %s\n", name, report.Lines, report.First, report.Last, report.Hash)
	if first && !report.NewChain() {
		fmt.Fprintf(out, "  continues an earlier file whose last hash is %s\n", report.Begin)
	}
	if report.Repairs > 0 {
		fmt.Fprintf(out, "  %d lines were cut short by a crash and are repaired\n", report.Repairs)
	}
	if report.Open > 0 {
		fmt.Fprintf(out, "  %d requests have no outcome: they go on, or the service was killed over them\n", report.Open)
	}
}
