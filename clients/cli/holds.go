package cli

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func holdsCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "holds [flags] SANDBOX",
		Short: "Print what keeps a sandbox awake",
		Long: "Print what keeps a sandbox from being idle: requests, commands, cells, terminals\n" +
			"with a viewer, connections to ports, processor time, and what programs in it\n" +
			"ask for. A sandbox that sleeps is not woken by the question.",
		Example:           "  sandbox holds box",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			holds, err := box.Holds(c.Context())
			if err != nil {
				return err
			}
			return show.All(t.Printer, holdsView(), holds.Holds)
		},
	}
	t.registerOutput(command, "the ids of what keeps it awake")
	return command
}

func holdsView() show.View[sandbox.Hold] {
	now := time.Now()
	return show.View[sandbox.Hold]{
		ID: func(h sandbox.Hold) string { return cmp.Or(h.ID, h.Kind) },
		Columns: []show.Column[sandbox.Hold]{
			{Title: "KIND", Value: func(h sandbox.Hold) string { return h.Kind }},
			{Title: "FOR", Value: func(h sandbox.Hold) string { return roughly(now.Sub(h.Since)) }},
			{Title: "ID", Least: 8, Value: func(h sandbox.Hold) string { return cmp.Or(h.ID, "-") }},
		},
	}
}
