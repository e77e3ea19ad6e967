package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func createCommand(t *tool) *cobra.Command {
	spec := &specFlags{}
	noWait, snapshot := false, ""
	command := &cobra.Command{
		Use:   "create [flags] [IMAGE] [-- ENTRYPOINT...]",
		Short: "Create a sandbox and wait until it runs",
		Long: "Create a sandbox and wait until it runs. What is left out has the default of the\n" +
			"service, which `sandbox version -o yaml` shows: image, timeout, limits and a\n" +
			"main program that does nothing.",
		Example: "  sandbox create sandbox/base:dev --name box\n" +
			"  sandbox create sandbox/base:dev --name web --timeout 10m --memory 256Mi \\\n" +
			"    -- python3 -u -m http.server 8000",
		Args: arguments(0, -1, ""),
		RunE: func(c *cobra.Command, args []string) error {
			image := ""
			if len(args) > 0 && c.ArgsLenAtDash() != 0 {
				image, args = args[0], args[1:]
			}
			options, err := spec.options(t, image)
			if err != nil {
				return err
			}
			if snapshot != "" || c.Flags().Changed("snapshot") {
				if image != "" {
					return usageErrorf("snapshot: must not be given with the IMAGE %q", image)
				}
				if options.SnapshotID, err = t.findSnapshot(c.Context(), "", snapshot); err != nil {
					return err
				}
			}
			if len(args) > 0 {
				if len(options.Entrypoint) > 0 || options.ImageEntrypoint {
					return usageErrorf("the entrypoint is given twice: by a flag and by %q", args[0])
				}
				options.Entrypoint = args
			}
			return t.create(c.Context(), options, !noWait)
		},
	}
	spec.register(command, 0)
	command.Flags().StringVar(&snapshot, "snapshot", "",
		"`SNAPSHOT` whose files it begins with, in place of an IMAGE")
	_ = command.RegisterFlagCompletionFunc("snapshot", t.completeSnapshots(0, -1))
	command.Flags().BoolVar(&noWait, "no-wait", false, "return while it is still Pending")
	t.registerOutput(command, "ids")
	return command
}

func (t *tool) create(ctx context.Context, options sandbox.CreateOptions, wait bool) error {
	box, err := t.newSandbox(ctx, options)
	if err != nil {
		return err
	}
	info := box.Info()
	if wait {
		if err := t.awaitStart(ctx, box, nil); err != nil {
			return err
		}
		if info, err = box.Refresh(ctx); err != nil {
			return err
		}
	}
	return show.Item(t.Printer, t.sandboxView(), info)
}

// defaults are the service's for sandboxes whose users say nothing.
func (t *tool) defaults(ctx context.Context) (sandbox.CreateDefaults, error) {
	c, err := t.connect()
	if err != nil {
		return sandbox.CreateDefaults{}, err
	}
	return c.client.Defaults(ctx)
}

// newSandbox creates a sandbox and returns it while it is Pending.
func (t *tool) newSandbox(ctx context.Context, options sandbox.CreateOptions) (*sandbox.Sandbox, error) {
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	options.Wait = -1
	// Not cut short by an interrupt: an accepted sandbox whose id was not read could not be
	// deleted. The answer takes milliseconds.
	asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	return c.client.Create(asked, &options)
}

// awaitStart waits until a sandbox runs, and shows its progress on a terminal. A sandbox that does
// not get there, because of an interrupt for instance, is deleted, unless the exit code of its main
// program is one that mayEnd accepts; nil accepts none.
func (t *tool) awaitStart(ctx context.Context, box *sandbox.Sandbox, mayEnd func(exitCode int) bool) error {
	err := t.showStart(ctx, box)
	code := box.Info().Status.ExitCode
	if err == nil || code != nil && mayEnd != nil && mayEnd(*code) {
		return nil
	}
	t.discard(ctx, box)
	return err
}

// cleanupTimeout bounds the delete of a sandbox that is not wanted any more.
const cleanupTimeout = 15 * time.Second

// discard deletes a sandbox even though the command was interrupted. When that fails it says so.
func (t *tool) discard(ctx context.Context, box *sandbox.Sandbox) {
	if err := deleteUninterrupted(ctx, box); err != nil {
		t.warn("%v", err)
	}
}

// deleteUninterrupted deletes a sandbox even though ctx has ended. Its error says when the sandbox
// ends by itself.
func deleteUninterrupted(ctx context.Context, box *sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := box.Delete(ctx); err != nil {
		return fmt.Errorf("sandbox %s could not be deleted and ends by itself at %s: %w", box.ID(),
			box.Info().ExpiresAt.Local().Format(time.TimeOnly), err)
	}
	return nil
}

// showStart waits until a sandbox runs, and shows its progress on a terminal.
func (t *tool) showStart(ctx context.Context, box *sandbox.Sandbox) error {
	line := t.newProgress()
	if line == nil {
		_, err := box.Wait(ctx, sandbox.Running)
		return err
	}
	defer line.clear()
	line.show("starting " + label(box.Info()))
	_, err := awaitRunning(ctx, box, func(event sandbox.Event) {
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
	})
	return err
}

// awaitRunning waits until a sandbox runs, and calls show with its events meanwhile.
func awaitRunning(ctx context.Context, box *sandbox.Sandbox,
	show func(sandbox.Event)) (sandbox.Info, error) {
	follow, stop := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		for event, err := range box.Events(follow, &sandbox.EventOptions{FromStart: true}) {
			if err != nil {
				return // waiting reports what is wrong
			}
			show(event)
		}
	}()
	info, err := box.Wait(ctx, sandbox.Running)
	stop()
	<-shown
	return info, err
}
