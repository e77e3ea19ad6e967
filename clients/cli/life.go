package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// report prints what became of a sandbox: a line for people, or the sandbox.
func (t *tool) report(box *sandbox.Sandbox, what string) error {
	info := box.Info()
	if t.Printer.Quiet || t.Printer.Format != show.FormatTable {
		return show.Item(t.Printer, t.sandboxView(), info)
	}
	_, err := fmt.Fprintf(t.Stdout, "%s %s\n", t.Clean(label(info)), what)
	return err
}

// forEach acts on every sandbox that is named, goes on after a failure, and returns all failures.
func (t *tool) forEach(ctx context.Context, names []string,
	act func(*sandbox.Sandbox) error) error {
	boxes, err := t.findAll(ctx, names)
	if err != nil {
		return err
	}
	return t.eachOf(ctx, boxes, act)
}

func (t *tool) eachOf(ctx context.Context, boxes []*sandbox.Sandbox,
	act func(*sandbox.Sandbox) error) error {
	var failures []error
	for _, box := range boxes {
		err := act(box)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", label(box.Info()), err))
		}
	}
	return errors.Join(failures...)
}

// simpleCommand is a command that does one thing to each sandbox it is given.
func simpleCommand(t *tool, use, short, example string,
	act func(context.Context, *sandbox.Sandbox) error) *cobra.Command {
	command := &cobra.Command{
		Use:               use + " [flags] SANDBOX...",
		Short:             short,
		Example:           example,
		Args:              arguments(1, -1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(-1),
		RunE: func(c *cobra.Command, args []string) error {
			return t.forEach(c.Context(), args, func(box *sandbox.Sandbox) error {
				return act(c.Context(), box)
			})
		},
	}
	t.registerOutput(command, "ids")
	return command
}

func pauseCommand(t *tool) *cobra.Command {
	filesOnly := false
	command := simpleCommand(t, "pause", "Stop all processes of sandboxes and keep their memory",
		"  sandbox pause box", func(ctx context.Context, box *sandbox.Sandbox) error {
			pause := box.Pause
			if filesOnly {
				pause = box.Suspend
			}
			if err := pause(ctx); err != nil {
				return err
			}
			return t.refreshed(ctx, box, "is paused")
		})
	command.Flags().BoolVar(&filesOnly, "files-only", false, "end the processes and keep the files; resume starts the entrypoint again")
	return command
}

func resumeCommand(t *tool) *cobra.Command {
	command := simpleCommand(t, "resume", "Let the processes of paused sandboxes go on",
		"  sandbox resume box", func(ctx context.Context, box *sandbox.Sandbox) error {
			if err := box.Resume(ctx); err != nil {
				return err
			}
			return t.refreshed(ctx, box, "is running")
		})
	command.Aliases = []string{"unpause"}
	return command
}

// refreshed reports with the state that the sandbox has now, which only some formats show.
func (t *tool) refreshed(ctx context.Context, box *sandbox.Sandbox, what string) error {
	if t.Printer.Structured() || t.Printer.Format == show.FormatWide {
		if _, err := box.Refresh(ctx); err != nil {
			return err
		}
	}
	return t.report(box, what)
}

func renewCommand(t *tool) *cobra.Command {
	var d time.Duration
	command := simpleCommand(t, "renew", "Move the expiry of sandboxes forward",
		"  sandbox renew box --for 2h", func(ctx context.Context, box *sandbox.Sandbox) error {
			length := d
			if length == 0 {
				defaults, err := t.defaults(ctx)
				if err != nil {
					return err
				}
				length = time.Duration(defaults.Timeout) * time.Second
			}
			expires, err := box.Renew(ctx, length)
			if err != nil {
				return err
			}
			return t.report(box, "expires at "+expires.Local().Format(time.RFC3339))
		})
	command.Flags().DurationVar(&d, "for", 0,
		"how long from now it lives, at most 24h; else the service's default timeout")
	return command
}

func waitCommand(t *tool) *cobra.Command {
	var state string
	var limit time.Duration
	command := simpleCommand(t, "wait", "Wait until sandboxes are in a state",
		"  sandbox wait box --for Running --limit 1m",
		func(ctx context.Context, box *sandbox.Sandbox) error {
			if limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, limit,
					fmt.Errorf("not %s after %s", state, limit))
				defer cancel()
			}
			if _, err := box.Wait(ctx, state); err != nil {
				if cause := context.Cause(ctx); cause != nil {
					return cause
				}
				return err
			}
			return t.refreshed(ctx, box, "is "+state)
		})
	states := []string{sandbox.Running, sandbox.Paused, sandbox.Terminated, sandbox.Failed}
	command.Flags().StringVar(&state, "for", sandbox.Running,
		"the `STATE`: "+strings.Join(states, ", "))
	command.Flags().DurationVar(&limit, "limit", 0, "how long to wait; 0 is for ever")
	_ = command.RegisterFlagCompletionFunc("for",
		cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	run := command.RunE
	command.RunE = func(c *cobra.Command, args []string) error {
		for _, known := range states {
			if strings.EqualFold(known, state) {
				state = known
				return run(c, args)
			}
		}
		return usageErrorf("for: must be one of %s, not %q", strings.Join(states, ", "), state)
	}
	return command
}

func removeCommand(t *tool) *cobra.Command {
	var all bool
	var filter filterFlags
	command := &cobra.Command{
		Use:     "rm [flags] SANDBOX...",
		Aliases: []string{"delete"},
		Short:   "End sandboxes and delete what is in them",
		Example: "  sandbox rm box\n" +
			"  sandbox rm --filter metadata.team=research\n" +
			"  sandbox rm --all",
		ValidArgsFunction: t.completeNames(-1),
		Args: func(_ *cobra.Command, args []string) error {
			ways := 0
			for _, given := range []bool{all, len(filter.list) > 0, len(args) > 0} {
				if given {
					ways++
				}
			}
			if ways != 1 {
				return usageErrorf("needs SANDBOX..., --filter or --all, and only one of them")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			if len(args) > 0 {
				return t.forEach(ctx, args, func(box *sandbox.Sandbox) error {
					return t.remove(ctx, box)
				})
			}
			options, err := filter.options()
			if err != nil {
				return err
			}
			return t.removeListed(ctx, options)
		},
	}
	command.Flags().BoolVar(&all, "all", false, "all sandboxes that the key may see")
	filter.register(command)
	t.registerOutput(command, "ids")
	return command
}

func (t *tool) remove(ctx context.Context, box *sandbox.Sandbox) error {
	if err := box.Delete(ctx); err != nil {
		return err
	}
	return t.refreshed(ctx, box, "is deleted")
}

// removeListed removes what a filter chooses and has not ended.
func (t *tool) removeListed(ctx context.Context, options sandbox.ListOptions) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	var boxes []*sandbox.Sandbox
	for info, err := range c.client.List(ctx, &options) {
		if err != nil {
			return err
		}
		if ended(info) {
			continue
		}
		box, err := c.client.Connect(ctx, info.ID)
		if errors.Is(err, sandbox.ErrNotFound) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return err
		}
		boxes = append(boxes, box)
	}
	return t.eachOf(ctx, boxes, func(box *sandbox.Sandbox) error { return t.remove(ctx, box) })
}
