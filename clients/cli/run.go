package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

func runCommand(t *tool) *cobra.Command {
	spec, f := &specFlags{}, &execFlags{}
	remove := true
	var ports []string
	command := &cobra.Command{
		Use:   "run [flags] IMAGE [--] [PROGRAM [ARGUMENT...]]",
		Short: "Run a program in a sandbox of its own",
		Long: "Run a program in a sandbox of its own, which is deleted afterwards, and exit\n" +
			"with the program's exit code. Without a program, -it starts the image's shell.",
		Example: "  sandbox run sandbox/base:dev -- echo hello\n" +
			"  echo 'print(6 * 7)' | sandbox run -i sandbox/base:dev -- python3 -\n" +
			"  sandbox run --memory 256Mi -e LANG=C.UTF-8 sandbox/base:dev -- uname -a",
		Args:        arguments(1, -1, "an IMAGE"),
		Annotations: map[string]string{runsPrograms: "yes"},
		RunE: func(c *cobra.Command, args []string) error {
			options, err := spec.options(t, args[0])
			if err != nil {
				return err
			}
			f.argv = afterDash(args, 1)
			if err := f.check(t); err != nil {
				return err
			}
			rules, err := parseForwards(ports)
			if err != nil {
				return err
			}
			return t.runInNew(c.Context(), options, f.program, rules, remove)
		},
	}
	spec.register(command, defaultLifetime)
	f.register(command)
	flags := command.Flags()
	flags.StringArrayVarP(&ports, "publish", "p", nil,
		"`[LOCAL:]PORT`: forward a local port while the program runs")
	flags.BoolVar(&remove, "rm", true, "delete the sandbox afterwards")
	flags.BoolVarP(&t.output.quiet, "quiet", "q", false, "show no progress")
	flags.SetInterspersed(false)
	return command
}

// runInNew creates a sandbox, runs a program in it, and deletes the sandbox whatever happened.
func (t *tool) runInNew(ctx context.Context, options sandbox.CreateOptions, p program,
	rules []forwardRule, remove bool) error {
	box, err := t.newSandbox(ctx, options, true)
	if err != nil {
		return err
	}
	if remove {
		defer t.discard(ctx, box)
	} else if !t.output.quiet {
		defer t.warn("the sandbox is %s", box.ID())
	}
	forwards, err := t.startForwards(box, localhost, rules)
	if err != nil {
		return err
	}
	return errors.Join(t.runProgram(ctx, box, p), forwards.stop())
}
