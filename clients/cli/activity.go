package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
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
			return show.All(t.Printer, activityView, list)
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is done")
	t.registerOutput(command, "the ids of commands, cells and terminals")
	return command
}

func (t *tool) followActivity(ctx context.Context, box *sandbox.Sandbox) error {
	rows := show.NewRows(t.Printer, activityView)
	for entry, err := range box.WatchActivity(ctx) {
		if err != nil {
			return err
		}
		if err := rows.Print(entry); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

var activityView = show.View[sandbox.Activity]{
	ID: func(a sandbox.Activity) string { return cmp.Or(a.Operation, strconv.FormatInt(a.ID, 10)) },
	Columns: []show.Column[sandbox.Activity]{
		{Title: "TIME", Usual: 8, Value: func(a sandbox.Activity) string {
			return a.Started.Local().Format(time.TimeOnly)
		}},
		{Title: "STATE", Usual: 9, Value: describeActivity},
		{Title: "KEY", Usual: 10, Least: 3, Value: func(a sandbox.Activity) string {
			return cmp.Or(a.Key, "-")
		}},
		{Title: "CLIENT", Usual: 12, Least: 6, Value: func(a sandbox.Activity) string {
			return cmp.Or(a.Client, "-")
		}},
		{Title: "KIND", Usual: 8, Value: func(a sandbox.Activity) string { return string(a.Kind) }},
		{Title: "WHAT", Usual: 400, Least: 10, Value: func(a sandbox.Activity) string {
			return strings.TrimSpace(a.Text)
		}},
		{Title: "ID", Wide: true, Value: func(a sandbox.Activity) string { return a.Operation }},
		{Title: "ERROR", Wide: true, Value: func(a sandbox.Activity) string { return a.Error }},
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
