package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func snapshotCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "snapshot",
		Short: "Keep the files of sandboxes, to go back to and to begin with",
		Long: "Keep the files of sandboxes, to go back to and to begin others with. A snapshot\n" +
			"has what was written to the root file system: neither volumes nor, but for\n" +
			"those with --memory, processes.\n" +
			"A SNAPSHOT is named by its id, by the first characters of its id, or by its\n" +
			"name.",
		Example: "  sandbox snapshot ls",
		RunE:    groupOf,
	}
	command.AddCommand(snapshotCreateCommand(t), snapshotListCommand(t), snapshotDiffCommand(t),
		snapshotExportCommand(t), snapshotTreeCommand(t), snapshotRemoveCommand(t))
	return command
}

func snapshotCreateCommand(t *tool) *cobra.Command {
	var options sandbox.SnapshotOptions
	var metadata []string
	command := &cobra.Command{
		Use:   "create [flags] SANDBOX",
		Short: "Keep the files of a sandbox as they are now",
		Long: "Keep the files of a sandbox as they are now. Its processes stand still for a\n" +
			"moment, and go on. With --memory they are kept too, with every secret that they\n" +
			"have, and a rollback of the sandbox has them go on from there. That takes gVisor\n" +
			"as its runtime.",
		Example: "  sandbox snapshot create box --name before\n" +
			"  sandbox snapshot create box --ttl 24h -q",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("ttl") && options.TTL < time.Minute {
				return usageErrorf("ttl: must be at least 1m, not %s", options.TTL)
			}
			var err error
			if options.Metadata, err = pairs("metadata", metadata); err != nil {
				return err
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			snapshot, err := box.Snapshot(c.Context(), &options)
			if err != nil {
				return err
			}
			return show.Item(t.Printer, t.snapshotView(), snapshot)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Name, "name", "", "`NAME` of the snapshot")
	flags.StringVar(&options.Comment, "comment", "", "`TEXT` for people")
	flags.StringArrayVarP(&metadata, "metadata", "l", nil, "`KEY=VALUE` of its metadata")
	flags.BoolVar(&options.Memory, "memory", false, "keep the processes, too")
	flags.DurationVar(&options.TTL, "ttl", 0, "after how long it is deleted by itself; else it is not")
	t.registerOutput(command, "ids")
	return command
}

func snapshotListCommand(t *tool) *cobra.Command {
	var options sandbox.SnapshotListOptions
	var metadata []string
	command := &cobra.Command{
		Use:     "ls [flags] [SANDBOX]",
		Aliases: []string{"list"},
		Short:   "List snapshots, of all sandboxes or of one",
		Example: "  sandbox snapshot ls\n" +
			"  sandbox snapshot ls box -o wide",
		Args:              arguments(0, 1, ""),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if options.Metadata, err = pairs("metadata", metadata); err != nil {
				return err
			}
			if len(args) > 0 {
				id, err := t.idOfSandbox(c.Context(), args[0])
				if err != nil {
					return err
				}
				options.SandboxID = id
			}
			list, err := t.listSnapshots(c.Context(), options)
			if err != nil {
				return err
			}
			return show.All(t.Printer, t.snapshotView(), list)
		},
	}
	command.Flags().StringVar(&options.Name, "name", "", "keep those with this `NAME`")
	command.Flags().StringArrayVarP(&metadata, "metadata", "l", nil, "keep those with this `KEY=VALUE`")
	t.registerOutput(command, "ids")
	return command
}

func snapshotRemoveCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:     "rm SNAPSHOT...",
		Aliases: []string{"remove", "delete"},
		Short:   "Delete snapshots",
		Long: "Delete snapshots. Sandboxes that began with them, or were rolled back to them,\n" +
			"keep their files.",
		Example:           "  sandbox snapshot rm before",
		Args:              arguments(1, -1, "a SNAPSHOT"),
		ValidArgsFunction: t.completeSnapshots(0, -1),
		RunE: func(c *cobra.Command, args []string) error {
			connection, err := t.connect()
			if err != nil {
				return err
			}
			var failed []error
			for _, name := range args {
				id, err := t.findSnapshot(c.Context(), "", name)
				if err == nil {
					err = connection.client.DeleteSnapshot(c.Context(), id)
				}
				failed = append(failed, err)
			}
			return errors.Join(failed...)
		},
	}
}

func rollbackCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "rollback [flags] SANDBOX SNAPSHOT",
		Short: "Give a sandbox the files of one of its snapshots",
		Long: "Give a sandbox the files of one of its snapshots, and wait until it runs. Its\n" +
			"processes end and what was written since is gone; its id, its ports and its\n" +
			"environment stay. With a snapshot of memory, the processes that it has go on.",
		Example:           "  sandbox rollback box before",
		Args:              arguments(2, 2, "a SANDBOX and a SNAPSHOT"),
		ValidArgsFunction: t.completeSnapshots(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			id, err := t.findSnapshot(c.Context(), box.ID(), args[1])
			if err != nil {
				return err
			}
			if err := box.Rollback(c.Context(), id); err != nil {
				return err
			}
			return t.refreshed(c.Context(), box, "has the files of "+t.Clean(args[1]))
		},
	}
	t.registerOutput(command, "ids")
	return command
}

func forkCommand(t *tool) *cobra.Command {
	options := &sandbox.ForkOptions{}
	var env []string
	command := &cobra.Command{
		Use:   "fork [flags] SANDBOX",
		Short: "Create sandboxes that begin with the files of another",
		Long: "Create sandboxes that begin with the files of another, wait until they run and\n" +
			"print their ids. They have none of its processes, and of environment variables\n" +
			"only those of --env. Those of a sandbox that is called NAME are called NAME-ID,\n" +
			"with the first characters of their ids.",
		Example: "  sandbox fork box -n 2 --env ATTEMPT=1 --timeout 10m",
		Args:    arguments(1, 1, "a SANDBOX"), ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if options.Count < 1 || options.Count > 100 {
				return usageErrorf("count: must be from 1 to 100, not %d", options.Count)
			}
			if options.Env, err = environment(env, t.Env); err != nil {
				return err
			}
			return t.fork(c.Context(), args[0], options)
		},
	}
	flags := command.Flags()
	flags.IntVarP(&options.Count, "count", "n", 1, "`NUMBER` of sandboxes, at most 100")
	flags.StringArrayVarP(&env, "env", "e", nil,
		"`NAME=VALUE` for their environment, or NAME to pass your own on")
	flags.DurationVar(&options.Timeout, "timeout", 0,
		"how long they live at most, from 1m to 24h; else as SANDBOX was to")
	t.registerOutput(command, "ids")
	return command
}

// fork prints the sandboxes that there are, and returns why others are not.
func (t *tool) fork(ctx context.Context, name string, options *sandbox.ForkOptions) error {
	box, err := t.find(ctx, name)
	if err != nil {
		return err
	}
	forks, err := box.Fork(ctx, options)
	if err != nil {
		return err
	}
	var made []sandbox.Info
	var failed []error
	for _, fork := range forks {
		failed = append(failed, fork.Err)
		if fork.Sandbox != nil {
			failed = append(failed, renameFork(ctx, fork.Sandbox))
			made = append(made, fork.Sandbox.Info())
		}
	}
	list := func() error { return show.All(t.Printer, t.sandboxView(), made) }
	if t.Printer.Format == show.FormatTable {
		list = func() error {
			for _, info := range made {
				if _, err := fmt.Fprintln(t.Stdout, info.ID); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return errors.Join(append([]error{list()}, failed...)...)
}

// renameFork gives a fork a name of its own: with that of the sandbox that it was made of, neither
// could be named any more.
func renameFork(ctx context.Context, fork *sandbox.Sandbox) error {
	info := fork.Info()
	name := nameOf(info)
	if name == "" || ended(info) {
		return nil
	}
	_, err := fork.UpdateMetadata(ctx, map[string]*string{nameKey: new(name + "-" + shortID(info.ID))})
	return err
}

func (t *tool) listSnapshots(ctx context.Context, options sandbox.SnapshotListOptions) ([]sandbox.Snapshot, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	var list []sandbox.Snapshot
	for snapshot, err := range c.client.Snapshots(ctx, &options) {
		if err != nil {
			return nil, err
		}
		list = append(list, snapshot)
	}
	return list, nil
}

// idOfSandbox returns the id that a name means. A whole id may be that of a sandbox which is gone.
func (t *tool) idOfSandbox(ctx context.Context, name string) (string, error) {
	if uuid.Validate(name) == nil {
		return name, nil
	}
	return t.lookUp(ctx, name)
}

// findSnapshot returns the id of the snapshot that a name means: the one with this id, the only one
// with this name, or else the only one whose id begins so. Snapshots of the sandbox with the id are
// meant first, if it is not empty.
func (t *tool) findSnapshot(ctx context.Context, sandboxID, name string) (string, error) {
	if uuid.Validate(name) == nil {
		return name, nil
	}
	if name == "" {
		return "", usageErrorf("the name of a snapshot is empty")
	}
	list, err := t.listSnapshots(ctx, sandbox.SnapshotListOptions{})
	if err != nil {
		return "", err
	}
	var own, named, begun []sandbox.Snapshot
	for _, snapshot := range list {
		switch {
		case snapshot.Status.State == sandbox.SnapshotDeleting:
		case optional(snapshot.Name) == name && snapshot.SandboxID == sandboxID:
			own = append(own, snapshot)
		case optional(snapshot.Name) == name:
			named = append(named, snapshot)
		case strings.HasPrefix(snapshot.ID, name):
			begun = append(begun, snapshot)
		}
	}
	for _, matches := range [][]sandbox.Snapshot{own, named, begun} {
		switch len(matches) {
		case 0:
			continue
		case 1:
			return matches[0].ID, nil
		}
		var ids []string
		for _, match := range matches[:min(len(matches), maxNamed)] {
			ids = append(ids, match.ID)
		}
		return "", fmt.Errorf("%q is ambiguous: it means %d snapshots, such as %s", name, len(matches), strings.Join(ids, ", "))
	}
	return "", fmt.Errorf("there is no snapshot %q", name)
}

// completeSnapshots offers sandboxes for the arguments before first and snapshots for those from
// there on; most is how many arguments there may be, -1 for any number.
func (t *tool) completeSnapshots(first, most int) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) < first {
			return t.completeNames(first)(c, args, typed)
		}
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), versionTimeout)
		defer cancel()
		list, err := t.listSnapshots(ctx, sandbox.SnapshotListOptions{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, s := range list {
			names = append(names, cobra.CompletionWithDesc(t.Clean(cmp.Or(optional(s.Name), s.ID)), t.Clean(s.Status.State)))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func (t *tool) snapshotView() show.View[sandbox.Snapshot] {
	now := time.Now()
	short := func(id string) string {
		if t.Printer.Format == show.FormatWide {
			return id
		}
		return shortID(id)
	}
	return show.View[sandbox.Snapshot]{
		ID: func(s sandbox.Snapshot) string { return s.ID },
		// A name may be that of several.
		Columns: []show.Column[sandbox.Snapshot]{
			{Title: "ID", Value: func(s sandbox.Snapshot) string { return short(s.ID) }},
			{Title: "NAME", Value: func(s sandbox.Snapshot) string { return optional(s.Name) }, Least: 8},
			{Title: "SANDBOX", Value: func(s sandbox.Snapshot) string { return short(s.SandboxID) }},
			{Title: "STATE", Value: func(s sandbox.Snapshot) string { return s.Status.State }},
			{Title: "SIZE", Value: func(s sandbox.Snapshot) string { return bytesOf(s.Size) }},
			{Title: "FROZEN", Value: func(s sandbox.Snapshot) string { return fmt.Sprintf("%.1f ms", s.FreezeMs) }},
			{Title: "AGE", Value: func(s sandbox.Snapshot) string { return roughly(now.Sub(s.CreatedAt)) }},
			{Title: "EXPIRES", Value: func(s sandbox.Snapshot) string {
				if s.ExpiresAt == nil {
					return "-"
				}
				return "in " + roughly(s.ExpiresAt.Sub(now))
			}},
			{Title: "PARENT", Wide: true, Value: func(s sandbox.Snapshot) string { return optional(s.ParentID) }},
			{Title: "IMAGE", Wide: true, Value: func(s sandbox.Snapshot) string { return s.Image.URI }},
			{Title: "DIGEST", Wide: true, Value: func(s sandbox.Snapshot) string { return optional(s.TreeDigest) }},
			{Title: "COMMENT", Wide: true, Value: func(s sandbox.Snapshot) string { return optional(s.Comment) }},
			{Title: "MESSAGE", Wide: true, Value: func(s sandbox.Snapshot) string { return optional(s.Status.Message) }},
		},
	}
}
