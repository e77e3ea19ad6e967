package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/sdk/go"
)

// lifetime is how long a sandbox of `create` lives that is given no --timeout.
const lifetime = time.Hour

func createCommand(t *tool) *cobra.Command {
	spec := &specFlags{}
	noWait := false
	command := &cobra.Command{
		Use:   "create [flags] IMAGE [-- ENTRYPOINT...]",
		Short: "Create a sandbox and wait until it runs",
		Example: "  sandbox create sandbox/base:dev --name box\n" +
			"  sandbox create sandbox/base:dev --name web --timeout 10m --memory 256Mi \\\n" +
			"    -- python3 -u -m http.server 8000",
		Args: arguments(1, -1, "an IMAGE"),
		RunE: func(c *cobra.Command, args []string) error {
			options, err := spec.options(t, args[0])
			if err != nil {
				return err
			}
			if len(args) > 1 {
				if len(options.Entrypoint) > 0 {
					return usageErrorf("the entrypoint is given twice: --entrypoint and %q", args[1])
				}
				options.Entrypoint = args[1:]
			}
			return t.create(c.Context(), options, !noWait)
		},
	}
	spec.register(command, lifetime)
	command.Flags().BoolVar(&noWait, "no-wait", false, "return while it is still Pending")
	t.registerOutput(command, "ids")
	return command
}

func (t *tool) create(ctx context.Context, options sandbox.CreateOptions, wait bool) error {
	box, err := t.newSandbox(ctx, options, wait)
	if err != nil {
		return err
	}
	info := box.Info()
	if wait {
		if info, err = box.Refresh(ctx); err != nil {
			return err
		}
	}
	return showOne(t, t.sandboxView(), info)
}

// newSandbox creates a sandbox, and shows on a terminal how it gets on until it runs. One that
// does not get there, because of an interrupt for instance, is deleted.
func (t *tool) newSandbox(ctx context.Context, options sandbox.CreateOptions,
	wait bool) (*sandbox.Sandbox, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	options.Wait = -1
	// Not cut short by an interrupt: an accepted sandbox whose id was not read could not be
	// deleted.
	asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), quick)
	box, err := c.client.Create(asked, &options)
	cancel()
	if err != nil || !wait {
		return box, err
	}
	follow, stop := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		t.showStart(follow, box)
	}()
	_, err = box.Wait(ctx, sandbox.Running)
	stop()
	<-shown
	if err != nil {
		t.discard(ctx, box)
		return nil, err
	}
	return box, nil
}

// cleanup bounds the delete of a sandbox that is not wanted any more.
const cleanup = 15 * time.Second

// discard deletes a sandbox even though the command was interrupted. When that fails it says so.
func (t *tool) discard(ctx context.Context, box *sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if err := box.Delete(ctx); err != nil {
		t.warn("sandbox %s could not be deleted and ends by itself at %s: %v", box.ID(),
			box.Info().ExpiresAt.Local().Format(time.TimeOnly), err)
	}
}

// showStart shows the progress of a sandbox that starts, on a terminal.
func (t *tool) showStart(ctx context.Context, box *sandbox.Sandbox) {
	line := t.newProgress()
	if line == nil {
		return
	}
	defer line.clear()
	line.show("starting " + label(box.Info()))
	for event, err := range box.Events(ctx, &sandbox.EventOptions{FromStart: true}) {
		if err != nil {
			return // waiting reports what is wrong
		}
		switch event.Type {
		case sandbox.EventProgress:
			if event.Message != nil {
				line.show(*event.Message)
			}
		case sandbox.EventStage:
			if event.Stage != nil {
				line.show(*event.Stage)
			}
		}
	}
}
