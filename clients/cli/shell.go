package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	sandbox "sandbox.internal/clients/go"
)

// detachKeys are Ctrl-P Ctrl-Q, as docker has them.
var detachKeys = [2]byte{0x10, 0x11}

// lastTerminal is the value of --attach without an id.
const lastTerminal = "last"

func shellCommand(t *tool) *cobra.Command {
	p := program{tty: true}
	var attach string
	var list []string
	command := &cobra.Command{
		Use:   "shell [flags] SANDBOX [--] [PROGRAM [ARGUMENT...]]",
		Short: "Open a terminal in a sandbox",
		Long: "Open a terminal in a sandbox, with the image's shell or a program, and exit with\n" +
			"its exit code. Ctrl-P Ctrl-Q detaches: the program goes on, and --attach comes\n" +
			"back to it.",
		Example: "  sandbox shell box\n" +
			"  sandbox shell --user 1000 --timeout 1h box\n" +
			"  sandbox shell box -- python3\n" +
			"  sandbox shell --attach box",
		Args:              arguments(1, -1, "a SANDBOX"),
		Annotations:       map[string]string{runsPrograms: "yes"},
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			p.argv = afterDash(args, 1)
			if attach != "" && (len(p.argv) > 0 || p.user != "" || p.timeout > 0) {
				return usageErrorf("attach: does not go with a PROGRAM, --user or --timeout")
			}
			var err error
			if p.env, err = environment(list, t.Env); err != nil {
				return err
			}
			if err := p.check(t); err != nil {
				return err
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			if attach == "" {
				return t.runOnTerminal(c.Context(), box, p)
			}
			id, err := terminalID(c.Context(), box, attach)
			if err != nil {
				return err
			}
			return t.attach(c.Context(), box, id, nil)
		},
	}
	flags := command.Flags()
	flags.StringVar(&attach, "attach", "", "attach to the terminal with this `ID`; without one, to the last")
	flags.Lookup("attach").NoOptDefVal = lastTerminal
	flags.StringVarP(&p.dir, "workdir", "w", "", "`DIRECTORY` to start in")
	flags.StringArrayVarP(&list, "env", "e", nil,
		"`NAME=VALUE` for its environment, or NAME to pass your own on")
	flags.StringVarP(&p.user, "user", "u", "", "`UID[:GID]` to run as, in numbers")
	flags.DurationVar(&p.timeout, "timeout", 0, "hang it up after this time; 0 is never")
	flags.SetInterspersed(false)
	return command
}

// terminalID finds the terminal to attach to.
func terminalID(ctx context.Context, box *sandbox.Sandbox, id string) (string, error) {
	if id != lastTerminal {
		return id, nil
	}
	terminals, err := box.Terminals.List(ctx)
	if err != nil {
		return "", err
	}
	for i := len(terminals) - 1; i >= 0; i-- {
		if terminals[i].Running {
			return terminals[i].ID, nil
		}
	}
	return "", errors.New("no terminal runs in the sandbox")
}

// runOnTerminal starts a program on a terminal of the sandbox and connects it with ours.
func (t *tool) runOnTerminal(ctx context.Context, box *sandbox.Sandbox, p program) error {
	uid, gid, err := p.ids(ctx, box)
	if err != nil {
		return err
	}
	options := &sandbox.TerminalOptions{Cwd: p.dir, Envs: p.env, UID: uid, GID: gid, Timeout: p.timeout}
	if len(p.argv) > 0 {
		options.Command, options.Args = p.argv[0], p.argv[1:]
	}
	options.Rows, options.Cols = t.terminalSize()
	id, err := box.Terminals.Create(ctx, options)
	if err != nil {
		return startFailure(err)
	}
	return t.attach(ctx, box, id, &p)
}

// startFailure gives a program that cannot be started the exit code of docker run.
func startFailure(err error) error {
	var refused *sandbox.Error
	if !errors.As(err, &refused) || !strings.Contains(refused.Message, "command: ") {
		return err
	}
	if strings.Contains(refused.Message, "cannot be run") {
		return codedError{ExitCannotRun, err}
	}
	return codedError{ExitNotFound, err}
}

// terminalSize is the size of our terminal; 0, 0 when it is not known.
func (t *tool) terminalSize() (rows, cols int) {
	fd, ok := terminalOf(t.Stdin)
	if !ok {
		return 0, 0
	}
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return 0, 0
	}
	return rows, cols
}

// attach connects our terminal with one of the sandbox until its program ends or the person
// detaches. started is the program that was started just now; nil when it was started before.
func (t *tool) attach(ctx context.Context, box *sandbox.Sandbox, id string, started *program) error {
	terminal, err := box.Terminals.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = terminal.Close() }()
	restore, err := t.rawMode()
	if err != nil {
		return err
	}
	defer restore()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopResizing := t.followSize(func(rows, cols int) { _ = terminal.Resize(ctx, rows, cols) })
	defer stopResizing()
	detached := make(chan struct{})
	go t.typeInto(terminal, func() { close(detached); cancel() })
	code, err := t.showTerminal(ctx, terminal, started != nil)
	restore()
	select {
	case <-detached:
		_, _ = fmt.Fprintf(t.Stderr, "\ndetached; come back with: sandbox shell --attach=%s %s\n", id,
			t.Clean(label(box.Info())))
		return nil
	default:
	}
	if err != nil {
		return err
	}
	return t.outcome(code, started)
}

// outcome returns nil after exit code 0, and otherwise the error that the tool ends with. Whether
// there was a timeout is known only of a program that was started just now.
func (t *tool) outcome(code *int, started *program) error {
	switch {
	case code != nil && *code == 0:
		return nil
	case code != nil:
		return exitError{*code}
	case started == nil:
		return errors.New("the program's exit code is not known: a timeout may have ended it")
	case started.timeout > 0:
		t.warn("the program was ended by its timeout")
		return exitError{ExitTimeout}
	}
	return errors.New("the program's exit code is not known")
}

// showTerminal prints what the terminal shows, up to the exit code of its program. fresh says that
// nothing of it was shown before.
func (t *tool) showTerminal(ctx context.Context, terminal *sandbox.Terminal, fresh bool) (*int,
	error) {
	for {
		event, err := terminal.Next(ctx)
		if err != nil {
			return nil, err
		}
		if event.Replay && !fresh {
			// Home, and clear the screen.
			if _, err := io.WriteString(t.Stdout, "\x1b[H\x1b[2J"); err != nil {
				return nil, err
			}
		}
		fresh = false
		if _, err := t.Stdout.Write(event.Data); err != nil {
			return nil, err
		}
		if event.Exited {
			return event.ExitCode, nil
		}
	}
}

// typeInto sends what is typed, except for the keys that detach. It ends with the tool: a read
// from a terminal cannot be called off.
func (t *tool) typeInto(terminal *sandbox.Terminal, detach func()) {
	keys := detacher{}
	buffer := make([]byte, 4096)
	for {
		n, err := t.Stdin.Read(buffer)
		if n > 0 {
			typed, leave := keys.filter(buffer[:n])
			if len(typed) > 0 {
				// What is typed while the connection is cut is lost, as the person sees.
				_, _ = terminal.Write(typed)
			}
			if leave {
				detach()
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// detacher looks for the keys that detach in what is typed.
type detacher struct {
	half bool // the first key was the last one typed
}

// filter returns what is to be sent, and whether the person wants to leave.
func (d *detacher) filter(typed []byte) (send []byte, leave bool) {
	for _, b := range typed {
		switch {
		case d.half && b == detachKeys[1]:
			return send, true
		case d.half:
			// The first key was meant for the program.
			send = append(send, detachKeys[0])
			if d.half = b == detachKeys[0]; !d.half {
				send = append(send, b)
			}
		case b == detachKeys[0]:
			d.half = true
		default:
			send = append(send, b)
		}
	}
	return send, false
}

// rawMode hands every key of our terminal to the program. What it returns can be called twice.
func (t *tool) rawMode() (restore func(), err error) {
	fd, ok := terminalOf(t.Stdin)
	if !ok {
		return func() {}, nil
	}
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	return func() {
		if before != nil {
			_ = term.Restore(fd, before)
			before = nil
		}
	}, nil
}
