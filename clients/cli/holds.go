package cli

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

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
			return showAll(t, holdsView(), holds.Holds)
		},
	}
	t.registerOutput(command, "the ids of what keeps it awake")
	return command
}

func holdsView() view[sandbox.Hold] {
	now := time.Now()
	return view[sandbox.Hold]{
		id: func(h sandbox.Hold) string { return cmp.Or(h.ID, h.Kind) },
		columns: []column[sandbox.Hold]{
			{title: "KIND", value: func(h sandbox.Hold) string { return h.Kind }},
			{title: "FOR", value: func(h sandbox.Hold) string { return roughly(now.Sub(h.Since)) }},
			{title: "ID", least: 8, value: func(h sandbox.Hold) string { return cmp.Or(h.ID, "-") }},
		},
	}
}
