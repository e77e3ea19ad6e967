package sshserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	sandbox "sandbox.internal/clients/go"
)

const (
	// loginShell is what runs for a session without a command and without a terminal.
	loginShell = `exec "${SHELL:-/bin/sh}" -l`
	// notKnown is the exit status where a program has none, or it is not known. ssh has it, too, for
	// a connection that is lost.
	notKnown = 255
	// maxVariables bounds the environment of one session, in variables.
	maxVariables = 1000
	// inputPiece is how many bytes of the standard input are passed on at once.
	inputPiece = 256 << 10
	// startTime bounds the start of a terminal.
	startTime = time.Minute
	// leaving bounds the request that ends what a client has left behind.
	leaving = 10 * time.Second
	// clearScreen moves to the first line and clears the screen.
	clearScreen = "\x1b[H\x1b[2J"
)

// signals are those that end a command. The daemon knows one way to do so.
var signals = []string{"HUP", "INT", "KILL", "QUIT", "TERM"}

// session is a channel in which one program runs: a command, a terminal, or SFTP.
type session struct {
	*server
	channel ssh.Channel
	env     map[string]string
	started bool // a program; env is its own then

	mu      sync.Mutex
	size    *size             // of the terminal; nil without one
	command *sandbox.Command  // that runs
	viewer  *sandbox.Terminal // that is shown
}

// size is the size of a terminal in characters; 0 is the usual one.
type size struct{ rows, cols int }

// program runs to its end and returns its exit status.
type program func(ctx context.Context) (status int, err error)

// session serves the channel of one session until its program has ended.
func (s *server) session(asked ssh.NewChannel) {
	channel, requests, err := asked.Accept()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	one := &session{server: s, channel: channel, env: map[string]string{}}
	ended := make(chan struct{})
	for requests != nil {
		select {
		case request, ok := <-requests:
			if !ok { // the client has closed the channel
				requests = nil
				break
			}
			run := one.program(request)
			ok = run != nil || one.answer(ctx, request)
			_ = request.Reply(ok, nil)
			if run != nil {
				one.started = true
				go func() {
					defer close(ended)
					one.exit(run(ctx))
				}()
			}
		case <-ended:
			_ = channel.Close()
			ended = nil
		}
	}
	cancel()
	if one.started && ended != nil {
		<-ended
	}
	_ = channel.Close()
}

// program returns the program that a request starts, nil when it starts none.
func (s *session) program(request *ssh.Request) program {
	if s.started {
		return nil
	}
	var payload struct{ Value string }
	switch request.Type {
	case "shell":
		return s.run("")
	case "exec":
		if ssh.Unmarshal(request.Payload, &payload) == nil {
			return s.run(payload.Value)
		}
	case "subsystem":
		if ssh.Unmarshal(request.Payload, &payload) == nil && payload.Value == "sftp" {
			return s.serveFiles
		}
	}
	return nil
}

// answer does what a request asks for that starts no program, and reports whether it could.
func (s *session) answer(ctx context.Context, request *ssh.Request) bool {
	switch request.Type {
	case "env":
		var variable struct{ Name, Value string }
		if s.started || ssh.Unmarshal(request.Payload, &variable) != nil || len(s.env) >= maxVariables {
			return false
		}
		s.env[variable.Name] = variable.Value
		return true
	case "pty-req":
		var terminal struct {
			Term                      string
			Cols, Rows, Width, Height uint32
			Modes                     string
		}
		if s.started || ssh.Unmarshal(request.Payload, &terminal) != nil {
			return false
		}
		s.env["TERM"] = terminal.Term
		s.size = newSize(terminal.Rows, terminal.Cols)
		return true
	case "window-change":
		var window struct{ Cols, Rows, Width, Height uint32 }
		return ssh.Unmarshal(request.Payload, &window) == nil && s.resize(ctx, newSize(window.Rows, window.Cols))
	case "signal":
		var signal struct{ Name string }
		if ssh.Unmarshal(request.Payload, &signal) != nil || !slices.Contains(signals, signal.Name) {
			return false
		}
		s.mu.Lock()
		command := s.command
		s.mu.Unlock()
		return command != nil && command.Interrupt(ctx) == nil
	}
	return false
}

// newSize keeps a size within what a terminal can have.
func newSize(rows, cols uint32) *size {
	const most = 10_000
	return &size{rows: int(min(rows, most)), cols: int(min(cols, most))}
}

// resize gives the terminal another size, now or as soon as it is there.
func (s *session) resize(ctx context.Context, to *size) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size == nil || to.rows == 0 || to.cols == 0 {
		return false
	}
	s.size = to
	return s.viewer == nil || s.viewer.Resize(ctx, to.rows, to.cols) == nil
}

// exit reports to the client how a program has ended.
func (s *session) exit(status int, err error) {
	if err != nil && s.ctx.Err() == nil {
		_, _ = fmt.Fprintf(s.channel.Stderr(), "sandbox: %v\r\n", err)
	}
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)})) //nolint:gosec // an exit code
}

// run returns the program that runs a command, or the shell.
func (s *session) run(command string) program {
	if s.size != nil {
		return func(ctx context.Context) (int, error) { return s.runOnTerminal(ctx, command) }
	}
	if command == "" {
		command = loginShell
	}
	return func(ctx context.Context) (int, error) { return s.runCommand(ctx, command) }
}

// errOutputCut ends a command whose output the daemon keeps no longer: what its client got would
// look complete.
var errOutputCut = errors.New("the command was ended")

func (s *session) runCommand(ctx context.Context, line string) (int, error) {
	command, err := s.Sandbox.Commands.Start(ctx, line, &sandbox.RunOptions{Envs: s.env, UID: s.UID, GID: s.GID, OpenStdin: true})
	if err != nil {
		return notKnown, err
	}
	s.mu.Lock()
	s.command = command
	s.mu.Unlock()
	feeding, stop := context.WithCancel(ctx)
	defer stop()
	go s.feed(feeding, command)
	if err := s.print(ctx, command); err != nil {
		s.interrupt(command)
		return notKnown, err
	}
	status, err := command.Status(ctx)
	switch {
	case err != nil:
		return notKnown, err
	case status.ExitCode == nil && status.Error != nil:
		return notKnown, errors.New(*status.Error)
	case status.ExitCode == nil:
		return notKnown, errors.New("the exit code of the command is not known")
	case status.Reason != nil && *status.Reason == sandbox.OOMKilled:
		return *status.ExitCode, errors.New("the command was killed because memory ran out (" + sandbox.OOMKilled + ")")
	}
	return *status.ExitCode, nil
}

// print sends the output of a command to the client, up to the end of the command. A client that
// takes none delays it.
func (s *session) print(ctx context.Context, command *sandbox.Command) error {
	for output, err := range command.Outputs(ctx) {
		switch {
		case err != nil:
			return err
		case output.Stream == sandbox.Notice:
			return fmt.Errorf("%w: %s", errOutputCut, output.Data)
		}
		var to io.Writer = s.channel
		if output.Stream == sandbox.Stderr {
			to = s.channel.Stderr()
		}
		if _, err := to.Write(output.Data); err != nil {
			return err
		}
	}
	return nil
}

// interrupt ends a command whose client is gone.
func (s *session) interrupt(command *sandbox.Command) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), leaving)
	defer cancel()
	if err := command.Interrupt(ctx); err != nil && s.ctx.Err() != nil {
		s.Warn("end the command: %v", err)
	}
}

// feed gives a command what the client sends, up to its end.
func (s *session) feed(ctx context.Context, command *sandbox.Command) {
	stdin := command.Stdin(ctx)
	_, err := io.CopyBuffer(struct{ io.Writer }{stdin}, struct{ io.Reader }{s.channel}, make([]byte, inputPiece))
	if err == nil {
		err = stdin.Close()
	}
	over := errors.Is(err, io.ErrClosedPipe) || errors.Is(err, sandbox.ErrNotFound) || ctx.Err() != nil
	if err != nil && !over {
		_, _ = fmt.Fprintf(s.channel.Stderr(), "sandbox: pass the standard input on: %v\r\n", err)
		s.interrupt(command) // it would wait for the rest, or take a part for the whole
	}
}

func (s *session) runOnTerminal(ctx context.Context, line string) (int, error) {
	s.mu.Lock()
	first := *s.size
	s.mu.Unlock()
	options := &sandbox.TerminalOptions{Envs: s.env, UID: s.UID, GID: s.GID, Rows: first.rows, Cols: first.cols}
	if line != "" {
		options.Command, options.Args = "/bin/sh", []string{"-c", line}
	}
	// A client that leaves meanwhile does not leave a terminal whose id is not known.
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTime)
	defer cancel()
	id, err := s.Sandbox.Terminals.Create(starting, options)
	if err != nil {
		return notKnown, err
	}
	viewer, err := s.Sandbox.Terminals.Attach(ctx, id)
	if err != nil {
		s.hangUp(id)
		return notKnown, err
	}
	defer func() { _ = viewer.Close() }()
	s.mu.Lock()
	s.viewer = viewer
	if now := *s.size; now != first {
		_ = viewer.Resize(ctx, now.rows, now.cols) // when it fails, so does Next
	}
	s.mu.Unlock()
	go s.typeInto(viewer)
	for fresh := true; ; fresh = false {
		event, err := viewer.Next(ctx)
		if err == nil && event.Replay && !fresh {
			_, err = io.WriteString(s.channel, clearScreen)
		}
		if err == nil {
			_, err = s.channel.Write(event.Data)
		}
		switch {
		case err != nil:
			s.hangUp(id)
			return notKnown, err
		case event.Exited && event.ExitCode == nil:
			return notKnown, errors.New("the exit code of the program is not known")
		case event.Exited:
			return *event.ExitCode, nil
		}
	}
}

// typeInto sends what the client types. What is typed while the connection to the terminal is cut
// is lost, as the person sees.
func (s *session) typeInto(viewer *sandbox.Terminal) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := s.channel.Read(buffer)
		if n > 0 {
			_, _ = viewer.Write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

// hangUp ends a terminal whose client is gone, as a connection that is hung up does.
func (s *session) hangUp(id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), leaving)
	defer cancel()
	if err := s.Sandbox.Terminals.Delete(ctx, id); err != nil && s.ctx.Err() != nil {
		s.Warn("hang up the terminal: %v", err)
	}
}
