package cli

import (
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func docsCommand(*tool) *cobra.Command {
	format := "man"
	command := &cobra.Command{
		Use:     "docs [flags] DIRECTORY",
		Short:   "Write the manual of this tool to a directory",
		Example: "  sandbox docs man1\n  sandbox docs --format markdown reference",
		Args:    arguments(1, 1, "a DIRECTORY"),
		RunE: func(c *cobra.Command, args []string) error {
			if format != "man" && format != "markdown" {
				return usageErrorf("format: must be man or markdown, not %q", format)
			}
			if err := os.MkdirAll(args[0], 0o777); err != nil {
				return err
			}
			root := c.Root()
			root.DisableAutoGenTag = true // the same text every time
			if format == "markdown" {
				return doc.GenMarkdownTree(root, filepath.Clean(args[0]))
			}
			epoch := time.Unix(0, 0).UTC()
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "sandbox", Date: &epoch},
				filepath.Clean(args[0]))
		},
	}
	command.Flags().StringVar(&format, "format", format, "`FORMAT`: man or markdown")
	return command
}
