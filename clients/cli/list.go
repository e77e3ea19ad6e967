package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// filterFlags choose sandboxes.
type filterFlags struct{ list []string }

func (f *filterFlags) register(command *cobra.Command) {
	command.Flags().StringArrayVar(&f.list, "filter", nil,
		"`state=STATE` or metadata.KEY=VALUE; states are OR-ed")
}

func (f *filterFlags) options() (sandbox.ListOptions, error) {
	var o sandbox.ListOptions
	for _, item := range f.list {
		key, value, ok := strings.Cut(item, "=")
		name, metadata := strings.CutPrefix(key, "metadata.")
		switch {
		case ok && key == "state":
			o.States = append(o.States, value)
		case ok && metadata && name != "":
			if o.Metadata == nil {
				o.Metadata = map[string]string{}
			}
			o.Metadata[name] = value
		default:
			return o, usageErrorf("filter: must be state=STATE or metadata.KEY=VALUE, not %q", item)
		}
	}
	return o, nil
}

func listCommand(t *tool) *cobra.Command {
	var filter filterFlags
	var all, watch bool
	command := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"ps", "list"},
		Short:   "List sandboxes",
		Long: "List sandboxes, newest first. Those that have ended are left out, unless --all\n" +
			"or a filter of states asks for them.",
		Example: "  sandbox ls\n" +
			"  sandbox ls --all -o wide\n" +
			"  sandbox ls --filter metadata.name=box -q",
		Args: arguments(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			options, err := filter.options()
			if err != nil {
				return err
			}
			keep := func(s sandbox.Info) bool { return all || len(options.States) > 0 || !ended(s) }
			if watch {
				return t.watchList(c.Context(), options, keep)
			}
			list, err := t.list(c.Context(), options, keep)
			if err != nil {
				return err
			}
			return show.All(t.Printer, t.sandboxView(), list)
		},
	}
	filter.register(command)
	command.Flags().BoolVarP(&all, "all", "a", false, "with those that have ended")
	command.Flags().BoolVarP(&watch, "watch", "w", false,
		"go on with what happens, until an interrupt")
	t.registerOutput(command, "ids")
	return command
}

func (t *tool) list(ctx context.Context, options sandbox.ListOptions,
	keep func(sandbox.Info) bool) ([]sandbox.Info, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	var list []sandbox.Info
	for info, err := range c.client.List(ctx, &options) {
		if err != nil {
			return nil, err
		}
		if keep(info) {
			list = append(list, info)
		}
	}
	return list, nil
}

func getCommand(t *tool) *cobra.Command {
	var watch bool
	command := &cobra.Command{
		Use:     "get [flags] SANDBOX...",
		Aliases: []string{"inspect", "describe"},
		Short:   "Show sandboxes",
		Example: "  sandbox get box\n" +
			"  sandbox get box -o yaml",
		Args:              arguments(1, -1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(-1),
		RunE: func(c *cobra.Command, args []string) error {
			boxes, err := t.findAll(c.Context(), args)
			if err != nil {
				return err
			}
			if watch {
				if len(boxes) > 1 {
					return usageErrorf("watch: needs one SANDBOX")
				}
				return t.watchOne(c.Context(), boxes[0])
			}
			if len(boxes) == 1 {
				return show.Item(t.Printer, t.sandboxView(), boxes[0].Info())
			}
			var list []sandbox.Info
			for _, box := range boxes {
				list = append(list, box.Info())
			}
			return show.All(t.Printer, t.sandboxView(), list)
		},
	}
	command.Flags().BoolVarP(&watch, "watch", "w", false,
		"go on with each change, until it has ended")
	t.registerOutput(command, "ids")
	return command
}

// changes reports whether an event changes what a list shows.
func changes(e sandbox.Event) bool {
	switch e.Type {
	case sandbox.EventState, sandbox.EventRenewed, sandbox.EventMetadata, sandbox.EventNetworkPolicy:
		return true
	}
	return false
}

// watchOne prints a sandbox, and again after each change until it has ended.
func (t *tool) watchOne(ctx context.Context, box *sandbox.Sandbox) error {
	rows := show.NewRows(t.Printer, t.sandboxView())
	last := box.Info()
	if err := rows.Print(last); err != nil || ended(last) {
		return err
	}
	for event, err := range box.Events(ctx, &sandbox.EventOptions{FromStart: true}) {
		if err != nil {
			return err
		}
		if !changes(event) || !event.Timestamp.After(last.Status.LastTransitionAt) {
			continue
		}
		info, err := box.Refresh(ctx)
		if err != nil {
			return err
		}
		if same(last, info) {
			continue
		}
		last = info
		if err := rows.Print(info); err != nil || ended(info) {
			return err
		}
	}
	return context.Cause(ctx)
}

// same reports whether two answers show the same.
func same(a, b sandbox.Info) bool {
	return a.Status == b.Status && a.ExpiresAt.Equal(b.ExpiresAt) && fmt.Sprint(a.Metadata) ==
		fmt.Sprint(b.Metadata)
}
