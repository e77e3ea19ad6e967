package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

func runCommand(t *tool) *cobra.Command {
	spec, f := &specFlags{}, &execFlags{}
	remove, detach := true, false
	var ports []string
	command := &cobra.Command{
		Use:   "run [flags] IMAGE [--] [PROGRAM [ARGUMENT...]]",
		Short: "Run a program in a sandbox of its own",
		Long: "Run a program in a sandbox of its own, which is deleted afterwards, and exit\n" +
			"with the program's exit code. Without a program, -it starts the image's shell.\n" +
			"With -d the program becomes the sandbox's main program: the sandbox's id is\n" +
			"printed, and the sandbox stays until the program ends or its timeout is over.",
		Example: "  sandbox run sandbox/base:dev -- echo hello\n" +
			"  echo 'print(6 * 7)' | sandbox run -i sandbox/base:dev -- python3 -\n" +
			"  sandbox run -d --name site sandbox/base:dev -- python3 -m http.server 8000\n" +
			"  sandbox run --memory 256Mi -e LANG=C.UTF-8 sandbox/base:dev -- uname -a",
		Args:        arguments(1, -1, "an IMAGE"),
		Annotations: map[string]string{runsPrograms: "yes"},
		RunE: func(c *cobra.Command, args []string) error {
			options, err := spec.options(t, args[0])
			if err != nil {
				return err
			}
			f.argv = afterDash(args, 1)
			if detach {
				if err := f.checkDetached(len(ports) > 0, len(options.Entrypoint) > 0); err != nil {
					return err
				}
				options.Entrypoint = f.argv
				t.output.quiet = true
				return t.create(c.Context(), options, true)
			}
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
	flags.BoolVarP(&detach, "detach", "d", false, "print the sandbox's id and leave the program to itself")
	flags.BoolVar(&remove, "rm", true, "delete the sandbox afterwards")
	flags.BoolVarP(&t.output.quiet, "quiet", "q", false, "show no progress")
	flags.SetInterspersed(false)
	return command
}

// checkDetached refuses what a program that is left to itself cannot have.
func (p program) checkDetached(ports, entrypoint bool) error {
	switch {
	case len(p.argv) == 0:
		return usageErrorf("detach: needs a PROGRAM; 'sandbox create' makes a sandbox without one")
	case p.interactive || p.tty:
		return usageErrorf("detach: must not be given with --interactive or --tty")
	case ports:
		return usageErrorf("detach: must not be given with --publish; 'sandbox port' forwards ports afterwards")
	case p.dir != "" || p.user != "":
		return usageErrorf("detach: must not be given with --workdir or --user: the main program has those of the image")
	case entrypoint:
		return usageErrorf("detach: must not be given with --entrypoint: the PROGRAM is the entrypoint")
	}
	return nil
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
