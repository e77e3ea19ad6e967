package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func commandsCommand(t *tool) *cobra.Command {
	var all bool
	command := &cobra.Command{
		Use:   "commands [flags] SANDBOX",
		Short: "List the commands that run in a sandbox",
		Long: "List the commands that run in a sandbox, whichever client started them, and\n" +
			"with --all the last that have ended. Programs of terminals, and those that the\n" +
			"sandbox's own program started, are not among them.",
		Example:           "  sandbox commands box\n  sandbox commands --all -o wide box",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			options := &sandbox.CommandListOptions{}
			if !all {
				options.Running = new(true)
			}
			list, err := box.Commands.List(c.Context(), options)
			if err != nil {
				return err
			}
			return show.All(t.Printer, commandsView, list)
		},
	}
	command.Flags().BoolVarP(&all, "all", "a", false, "with those that have ended")
	t.registerOutput(command, "ids")
	return command
}

var commandsView = show.View[sandbox.CommandStatus]{
	ID: func(c sandbox.CommandStatus) string { return c.ID },
	Columns: []show.Column[sandbox.CommandStatus]{
		{Title: "ID", Least: 8, Value: func(c sandbox.CommandStatus) string { return c.ID }},
		{Title: "PID", Value: func(c sandbox.CommandStatus) string {
			if c.Pid == nil {
				return "-"
			}
			return strconv.Itoa(*c.Pid)
		}},
		{Title: "STARTED", Value: func(c sandbox.CommandStatus) string {
			return c.StartedAt.Local().Format(time.TimeOnly)
		}},
		{Title: "STATE", Value: describeCommand},
		{Title: "COMMAND", Least: 10, Value: func(c sandbox.CommandStatus) string {
			text := strings.TrimSpace(c.Content)
			if c.ContentTruncated != nil && *c.ContentTruncated {
				text += "…"
			}
			return text
		}},
		{Title: "DIRECTORY", Wide: true, Value: func(c sandbox.CommandStatus) string {
			if c.Cwd == nil {
				return ""
			}
			return *c.Cwd
		}},
	},
}

// describeCommand is how a command is doing: that it runs, or its exit code, whether memory ran
// out, and how long it took.
func describeCommand(c sandbox.CommandStatus) string {
	switch {
	case c.Running || c.FinishedAt == nil:
		return "running"
	case c.ExitCode == nil:
		return "timeout " + duration(c.FinishedAt.Sub(c.StartedAt))
	}
	how := fmt.Sprintf("exit %d", *c.ExitCode)
	if c.Reason != nil && *c.Reason == sandbox.OOMKilled {
		how += " (out of memory)"
	}
	return how + " " + duration(c.FinishedAt.Sub(c.StartedAt))
}
