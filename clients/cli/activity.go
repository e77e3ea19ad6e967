package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

func activityCommand(t *tool) *cobra.Command {
	var follow bool
	command := &cobra.Command{
		Use:   "activity [flags] SANDBOX",
		Short: "Print what clients have done in a sandbox",
		Long: "Print the commands, cells, terminals and operations on files of a sandbox, by\n" +
			"which API key and through what client. With -f it goes on with what is done; a\n" +
			"line comes when an operation begins, and one when it has ended.",
		Example:           "  sandbox activity box\n  sandbox activity -f box",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			if follow {
				return t.followActivity(c.Context(), box)
			}
			list, err := box.Activity(c.Context())
			if err != nil {
				return err
			}
			return showAll(t, activityView, list)
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is done")
	t.registerOutput(command, "the ids of commands, cells and terminals")
	return command
}

func (t *tool) followActivity(ctx context.Context, box *sandbox.Sandbox) error {
	rows := newRows(t, activityView)
	for entry, err := range box.WatchActivity(ctx) {
		if err != nil {
			return err
		}
		if err := rows.print(entry); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

var activityView = view[sandbox.Activity]{
	id: func(a sandbox.Activity) string { return cmp.Or(a.Operation, strconv.FormatInt(a.ID, 10)) },
	columns: []column[sandbox.Activity]{
		{title: "TIME", usual: 8, value: func(a sandbox.Activity) string {
			return a.Started.Local().Format(time.TimeOnly)
		}},
		{title: "STATE", usual: 9, value: describeActivity},
		{title: "KEY", usual: 10, least: 3, value: func(a sandbox.Activity) string {
			return cmp.Or(a.Key, "-")
		}},
		{title: "CLIENT", usual: 12, least: 6, value: func(a sandbox.Activity) string {
			return cmp.Or(a.Client, "-")
		}},
		{title: "KIND", usual: 8, value: func(a sandbox.Activity) string { return string(a.Kind) }},
		{title: "WHAT", usual: 400, least: 10, value: func(a sandbox.Activity) string {
			return strings.TrimSpace(a.Text)
		}},
		{title: "ID", wide: true, value: func(a sandbox.Activity) string { return a.Operation }},
		{title: "ERROR", wide: true, value: func(a sandbox.Activity) string { return a.Error }},
	},
}

// describeActivity is how an operation is doing: its state, or how long it took and its exit code.
func describeActivity(a sandbox.Activity) string {
	if a.Ended == nil {
		return string(a.State)
	}
	took := duration(a.Ended.Sub(a.Started))
	switch {
	case a.State == sandbox.ActivitySucceeded:
		return "ok " + took
	case a.Exit != nil:
		return fmt.Sprintf("exit %d %s", *a.Exit, took)
	}
	return string(a.State) + " " + took
}
