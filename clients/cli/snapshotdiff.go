package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func snapshotDiffCommand(t *tool) *cobra.Command {
	var options sandbox.SnapshotDiffOptions
	var tar bool
	command := &cobra.Command{
		Use:   "diff [flags] SNAPSHOT [SNAPSHOT]",
		Short: "List the files in which a snapshot differs",
		Long: "List the files in which a snapshot differs from its image, or what has changed\n" +
			"from it to another snapshot. A directory that was removed stands for all\n" +
			"that was in it.",
		Example: "  sandbox snapshot diff before\n" +
			"  sandbox snapshot diff before after --limit 20\n" +
			"  sandbox snapshot diff before --tar >layer.tar",
		Args:              arguments(1, 2, "a SNAPSHOT"),
		ValidArgsFunction: t.completeSnapshots(0, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if options.Limit < 1 || options.Limit > 10_000 {
				return usageErrorf("limit: must be from 1 to 10000, not %d", options.Limit)
			}
			ids := make([]string, len(args))
			for i, name := range args {
				id, err := t.findSnapshot(c.Context(), "", name)
				if err != nil {
					return err
				}
				ids[i] = id
			}
			if len(ids) > 1 {
				options.To = ids[1]
			}
			if tar {
				return t.archiveSnapshot(c.Context(), ids[0], &options)
			}
			return t.diffSnapshot(c.Context(), ids[0], &options)
		},
	}
	flags := command.Flags()
	flags.IntVar(&options.Limit, "limit", 1000, "`NUMBER` of files at most, up to 10000")
	flags.BoolVar(&tar, "tar", false, "write all of them as a tar archive, the layer of an image")
	t.registerOutput(command, "paths")
	return command
}

func snapshotExportCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "export [flags] SNAPSHOT IMAGE",
		Short: "Make an image of a snapshot",
		Long: "Make an image of a snapshot, in the store of the service's engine, from which\n" +
			"sandboxes can be created. It has what programs have written to files, and\n" +
			"nothing of a sandbox's environment. It needs a key with the role admin.",
		Example:           "  sandbox snapshot export before team/prepared:1",
		Args:              arguments(2, 2, "a SNAPSHOT and an IMAGE"),
		ValidArgsFunction: t.completeSnapshots(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := t.findSnapshot(c.Context(), "", args[0])
			if err != nil {
				return err
			}
			connection, err := t.connect()
			if err != nil {
				return err
			}
			image, err := connection.client.ExportSnapshot(c.Context(), id, args[1])
			if err != nil {
				return err
			}
			return show.Item(t.Printer, t.imageView(), image)
		},
	}
	t.registerOutput(command, "ids")
	return command
}

func (t *tool) diffSnapshot(ctx context.Context, id string, options *sandbox.SnapshotDiffOptions) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	diff, err := c.client.DiffSnapshot(ctx, id, options)
	if err != nil {
		return err
	}
	if t.Printer.Structured() {
		return t.ShowValue(diff)
	}
	if err := show.All(t.Printer, fileChangeView(), diff.Items); err != nil {
		return err
	}
	if diff.Truncated {
		_, err = fmt.Fprintf(t.Stderr, "there are more than %d files: see --limit and --tar\n", len(diff.Items))
	}
	return err
}

func fileChangeView() show.View[sandbox.FileChange] {
	return show.View[sandbox.FileChange]{
		ID: func(f sandbox.FileChange) string { return f.Path },
		Columns: []show.Column[sandbox.FileChange]{
			{Title: "CHANGE", Value: func(f sandbox.FileChange) string { return f.Kind }},
			{Title: "TYPE", Value: func(f sandbox.FileChange) string { return f.Type }},
			{Title: "SIZE", Value: func(f sandbox.FileChange) string { return bytesOf(f.Size) }},
			{Title: "PATH", Value: func(f sandbox.FileChange) string { return f.Path }, Least: 20},
		},
	}
}

// archiveSnapshot writes the archive to the standard output.
func (t *tool) archiveSnapshot(ctx context.Context, id string, options *sandbox.SnapshotDiffOptions) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	archive, err := c.client.ArchiveSnapshot(ctx, id, options)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	_, err = io.Copy(t.Stdout, archive)
	return err
}
