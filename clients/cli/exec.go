package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

// program is a program to run in a sandbox.
type program struct {
	argv        []string // empty means the image's shell, on a terminal only
	interactive bool     // it gets our standard input
	tty         bool     // it gets a terminal
	env         map[string]string
	dir         string
	user        string // USER or USER:GROUP, names or numbers
	timeout     time.Duration
}

// execFlags are the flags of a program to run.
type execFlags struct {
	program
	list []string // of --env
}

func (f *execFlags) register(command *cobra.Command) {
	flags := command.Flags()
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "pass the standard input on")
	flags.BoolVarP(&f.tty, "tty", "t", false, "run it on a terminal")
	flags.StringVarP(&f.dir, "workdir", "w", "", "`DIRECTORY` to run in")
	flags.StringVarP(&f.user, "user", "u", "", "`USER[:GROUP]` to run as, names that the sandbox has or numbers")
}

func execCommand(t *tool) *cobra.Command {
	f := &execFlags{}
	command := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] PROGRAM [ARGUMENT...]",
		Short: "Run a program in a sandbox",
		Long: "Run a program in a sandbox, and exit with its exit code.\n\n" +
			"With -i the program reads our standard input as it comes, and its end.\n" +
			"An interrupt (Ctrl-C) ends the program with SIGTERM, a second one leaves.",
		Example: "  sandbox exec box -- ls -l /\n" +
			"  echo hello | sandbox exec -i box -- wc -c\n" +
			"  sandbox exec -e GREETING=hello -w /tmp box -- sh -c 'echo $GREETING from $PWD'",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(afterDash(args, 1)) == 0 {
				return usageErrorf("needs a SANDBOX and a PROGRAM")
			}
			return nil
		},
		Annotations:       map[string]string{runsPrograms: "yes"},
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			f.argv = afterDash(args, 1)
			var err error
			if f.env, err = environment(f.list, t.Env); err != nil {
				return err
			}
			if err := f.check(t); err != nil {
				return err
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			return t.runProgram(c.Context(), box, f.program)
		},
	}
	f.register(command)
	command.Flags().StringArrayVarP(&f.list, "env", "e", nil,
		"`NAME=VALUE` for its environment, or NAME to pass your own on")
	command.Flags().DurationVar(&f.timeout, "timeout", 0, "end it after this time; 0 is never")
	command.Flags().SetInterspersed(false)
	return command
}

// check refuses what cannot work before anything is done.
func (p program) check(t *tool) error {
	switch {
	case p.tty && !isTerminal(t.Stdin):
		return usageErrorf("tty: the standard input is not a terminal")
	case !p.tty && len(p.argv) == 0:
		return usageErrorf("needs a PROGRAM, or -it for a shell")
	}
	_, _, err := parseUser(p.user)
	return err
}

// runProgram runs a program and returns nil after exit code 0, and an exitError after any other.
func (t *tool) runProgram(ctx context.Context, box *sandbox.Sandbox, p program) error {
	if p.tty {
		return t.runOnTerminal(ctx, box, p)
	}
	uid, gid, err := p.ids(ctx, box)
	if err != nil {
		return err
	}
	command, err := box.Commands.Start(ctx, quote(p.argv), &sandbox.RunOptions{Cwd: p.dir, Envs: p.env,
		UID: uid, GID: gid, Timeout: p.timeout, OpenStdin: p.interactive})
	if err != nil {
		return err
	}
	if p.interactive {
		feeding, stop := context.WithCancel(ctx)
		defer stop()
		go t.feed(feeding, command)
	}
	result, interrupted, err := t.follow(ctx, command)
	switch {
	case err != nil:
		return err
	case interrupted && endedBySignal(result):
		return exitError{ExitInterrupted}
	case result.TimedOut():
		t.warn("the program was ended after %s", p.timeout)
		return exitError{ExitTimeout}
	case result.ExitCode == nil:
		return fmt.Errorf("the program ended without an exit code: %s", result.ErrorName)
	case result.OOMKilled():
		t.warn("the program was killed because memory ran out (%s)", sandbox.OOMKilled)
		return exitError{*result.ExitCode}
	case *result.ExitCode != 0:
		return exitError{*result.ExitCode}
	}
	return nil
}

// endedBySignal reports whether a program was ended by one of the signals of an interrupt, and has
// not chosen an exit code of its own.
func endedBySignal(result sandbox.Result) bool {
	return result.ExitCode == nil || *result.ExitCode == 128+int(syscall.SIGTERM) ||
		*result.ExitCode == 128+int(syscall.SIGKILL) || *result.ExitCode == 128+int(syscall.SIGINT)
}

// follow prints the output of a command up to its end. The first interrupt ends the command, and is
// reported.
func (t *tool) follow(ctx context.Context, command *sandbox.Command) (result sandbox.Result,
	interrupted bool, err error) {
	asked := make(chan struct{}, 1)
	release := t.signals.onInterrupt(func() { asked <- struct{}{} })
	defer release()
	over := make(chan struct{})
	delivered := make(chan bool, 1) // whether the daemon ends the command
	go func() {
		select {
		case <-asked:
			err := command.Interrupt(ctx)
			if err != nil && ctx.Err() == nil {
				t.warn("interrupt the program: %v", err)
			}
			delivered <- err == nil
		case <-over:
			delivered <- false
		}
	}()
	// What is printed cannot be taken back, so an output that cannot be written ends the command.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	print := func(w io.Writer) func([]byte) {
		return func(data []byte) {
			if _, err := w.Write(data); err != nil {
				stop(fmt.Errorf("print the output: %w", err))
			}
		}
	}
	result, err = command.Wait(ctx, &sandbox.RunOptions{OnStdout: print(t.Stdout),
		OnStderr: print(t.Stderr), MaxOutput: 1})
	close(over)
	if interrupted = <-delivered; err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
		if !interrupted {
			t.abort(ctx, command)
		}
	}
	return result, interrupted, err
}

// callOffLimit bounds the request that ends a command when the tool leaves.
const callOffLimit = 2 * time.Second

// abort ends a command whose output goes nowhere any more.
func (t *tool) abort(ctx context.Context, command *sandbox.Command) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callOffLimit)
	defer cancel()
	if err := command.Interrupt(ctx); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		t.warn("command %s goes on in the sandbox: %v", command.ID, err)
	}
}

// inputPiece is how many bytes of the standard input are read at once.
const inputPiece = 256 << 10

// feed passes our standard input on to a command until it ends or the command reads no further. It
// ends with the tool: a read of a terminal cannot be called off.
func (t *tool) feed(ctx context.Context, command *sandbox.Command) {
	stdin := command.Stdin(ctx)
	_, err := io.CopyBuffer(struct{ io.Writer }{stdin}, struct{ io.Reader }{t.Stdin},
		make([]byte, inputPiece))
	if err == nil {
		err = stdin.Close()
	}
	over := errors.Is(err, io.ErrClosedPipe) || errors.Is(err, sandbox.ErrNotFound) || ctx.Err() != nil
	if err != nil && !over {
		t.warn("pass the standard input on: %v", err)
		t.abort(ctx, command) // it would wait for the rest, or take a part for the whole
	}
}

// quote writes words for a shell, each one as it is.
func quote(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
