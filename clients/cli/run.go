package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

func runCommand(t *tool) *cobra.Command {
	spec, f := &specFlags{}, &execFlags{}
	remove, detach := true, false
	var ports []string
	command := &cobra.Command{
		Use:   "run [flags] [IMAGE] [--] [PROGRAM [ARGUMENT...]]",
		Short: "Run a program in a sandbox of its own",
		Long: "Run a program in a sandbox of its own, which is deleted afterwards, and exit\n" +
			"with the program's exit code. Without a program, -it starts the image's shell,\n" +
			"and otherwise the image's own entrypoint runs.\n" +
			"With -d the program becomes the sandbox's main program: the sandbox's id is\n" +
			"printed, and the sandbox stays until the program ends or its timeout is over.\n" +
			"Without an IMAGE, before --, the service's default image is used.",
		Example: "  sandbox run sandbox/base:dev -- echo hello\n" +
			"  echo 'print(6 * 7)' | sandbox run -i sandbox/base:dev -- python3 -\n" +
			"  sandbox run -d --name site sandbox/base:dev -- python3 -m http.server 8000\n" +
			"  sandbox run --memory 256Mi -e LANG=C.UTF-8 sandbox/base:dev -- uname -a",
		Args:        arguments(0, -1, ""),
		Annotations: map[string]string{runsPrograms: "yes"},
		RunE: func(c *cobra.Command, args []string) error {
			image, own := "", 0
			if len(args) > 0 && c.ArgsLenAtDash() != 0 {
				image, own = args[0], 1
			}
			options, err := spec.options(t, image)
			if err != nil {
				return err
			}
			f.argv = afterDash(args, own)
			if len(f.argv) == 0 && !f.tty && len(options.Entrypoint) == 0 {
				if options.ImageEntrypoint = true; image == "" {
					return usageErrorf("needs an IMAGE or a PROGRAM")
				}
			}
			if detach {
				if err := f.checkDetached(len(ports) > 0, options); err != nil {
					return err
				}
				if !options.ImageEntrypoint {
					options.Entrypoint = f.argv
				}
				return t.detach(c.Context(), options)
			}
			main := options.ImageEntrypoint && len(f.argv) == 0
			if main {
				err = f.checkMain()
			} else {
				err = f.check(t)
			}
			if err != nil {
				return err
			}
			rules, err := parseForwards(ports)
			if err != nil {
				return err
			}
			run := func(ctx context.Context, box *sandbox.Sandbox) error { return t.runProgram(ctx, box, f.program) }
			var mayEnd func(int) bool
			if main {
				run, mayEnd = t.followMain, func(int) bool { return true }
			}
			return t.runInNew(c.Context(), options, mayEnd, run, rules, remove)
		},
	}
	spec.register(command, 0)
	f.register(command)
	flags := command.Flags()
	flags.StringArrayVarP(&ports, "publish", "p", nil,
		"`[LOCAL:]PORT`: forward a local port while the program runs")
	flags.BoolVarP(&detach, "detach", "d", false, "print the sandbox's id and leave the program to itself")
	flags.BoolVar(&remove, "rm", true, "delete the sandbox afterwards")
	flags.BoolVarP(&t.Printer.Quiet, "quiet", "q", false, "show no progress")
	flags.SetInterspersed(false)
	return command
}

// checkDetached refuses what a program that is left to itself cannot have.
func (p program) checkDetached(ports bool, o sandbox.CreateOptions) error {
	switch {
	case len(p.argv) > 0 && o.ImageEntrypoint:
		return usageErrorf("image-entrypoint: must not be given with --detach and a PROGRAM")
	case len(p.argv) == 0 && !o.ImageEntrypoint:
		return usageErrorf("detach: needs a PROGRAM; 'sandbox create' makes a sandbox without one")
	case p.interactive || p.tty:
		return usageErrorf("detach: must not be given with --interactive or --tty")
	case ports:
		return usageErrorf("detach: must not be given with --publish; 'sandbox port' forwards ports afterwards")
	case p.dir != "" || p.user != "":
		return usageErrorf("detach: must not be given with --workdir or --user: the main program has those of the image")
	case len(o.Entrypoint) > 0:
		return usageErrorf("detach: must not be given with --entrypoint: the PROGRAM is the entrypoint")
	}
	return nil
}

// checkMain refuses what the main program of an image cannot have.
func (p program) checkMain() error {
	switch {
	case p.interactive:
		return usageErrorf("interactive: needs a PROGRAM: the image's entrypoint has no standard input")
	case p.dir != "" || p.user != "":
		return usageErrorf("workdir and user: need a PROGRAM: the image's entrypoint has those of the image")
	}
	return nil
}

// detach creates a sandbox and prints its id. It succeeds, too, when the main program has ended
// with exit code 0 before that: a slower program ends afterwards, which detach does not see.
func (t *tool) detach(ctx context.Context, options sandbox.CreateOptions) error {
	t.Printer.Quiet = true
	box, err := t.newSandbox(ctx, options)
	if err != nil {
		return err
	}
	if err := t.awaitStart(ctx, box, func(exitCode int) bool { return exitCode == 0 }); err != nil {
		return err
	}
	_, err = fmt.Fprintln(t.Stdout, box.ID())
	return err
}

// followMain prints what the main program of a sandbox prints, until the sandbox ends, and returns
// an exitError after an exit code other than 0. Another error says why the sandbox ended.
func (t *tool) followMain(ctx context.Context, box *sandbox.Sandbox) error {
	log, err := box.OpenLogs(ctx, &sandbox.LogOptions{Follow: true})
	if err != nil {
		return err
	}
	_, err = io.Copy(t.Stdout, log)
	if err := errors.Join(err, log.Close()); err != nil {
		return err
	}
	info, err := box.Wait(ctx, sandbox.Terminated)
	if code := info.Status.ExitCode; code != nil && *code != 0 {
		return exitError{*code}
	}
	return err
}

// runInNew creates a sandbox, calls run with it, and deletes the sandbox whatever happened. mayEnd
// is as awaitStart has it.
func (t *tool) runInNew(ctx context.Context, options sandbox.CreateOptions,
	mayEnd func(exitCode int) bool, run func(context.Context, *sandbox.Sandbox) error,
	rules []forwardRule, remove bool) error {
	box, err := t.newSandbox(ctx, options)
	if err != nil {
		return err
	}
	if err := t.awaitStart(ctx, box, mayEnd); err != nil {
		return err
	}
	if remove {
		defer t.discard(ctx, box)
	} else if !t.Printer.Quiet {
		defer t.warn("the sandbox is %s", box.ID())
	}
	forwards, err := t.startForwards(box, localhost, rules)
	if err != nil {
		return err
	}
	return errors.Join(run(ctx, box), forwards.stop())
}
