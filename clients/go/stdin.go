package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sandbox.internal/clients/go/execd"
)

// stdinPiece is how many bytes of standard input one request has at most.
const stdinPiece = 256 << 10

// Stdin writes to the standard input of a command that was started with RunOptions.OpenStdin. It
// belongs to one goroutine.
//
// Write returns when the command's pipe has taken the bytes, so a slow command slows its writer
// down. A request whose connection was cut is sent again, and its bytes arrive once. A request that
// fails for [Options].ResumeLimit is a [*StreamError]; it is not known then which of its bytes the
// command has, so Write counts them, and the next Write or Close sends them to their end first.
type Stdin struct {
	ctx     context.Context
	command *Command
	offset  int64 // of the next byte
	closed  bool
	// pending is what was sent last, from offset on, when there was no answer that says how much of
	// it was taken.
	pending []byte
}

// Stdin returns what writes to the command's standard input until ctx ends, behind what was written
// before Connect, or from the beginning.
func (c *Command) Stdin(ctx context.Context) *Stdin {
	return &Stdin{ctx: ctx, command: c, offset: c.input}
}

// Write implements io.Writer. It returns io.ErrClosedPipe when the command has closed its standard
// input or has ended.
func (s *Stdin) Write(p []byte) (n int, err error) {
	if err := s.settle(); err != nil {
		return 0, err
	}
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	for n < len(p) && err == nil {
		var taken int
		taken, err = s.send(p[n:min(n+stdinPiece, len(p))], false)
		n += taken
	}
	return n + len(s.pending), err
}

// settle sends what is pending to its end: other bytes at the same offset would be taken for it.
func (s *Stdin) settle() error {
	if len(s.pending) == 0 {
		return nil
	}
	if s.closed {
		return io.ErrClosedPipe
	}
	_, err := s.send(s.pending, false)
	return err
}

// Close implements io.Closer: the command reads an end of file. For a command that has closed its
// standard input or has ended, it does nothing.
func (s *Stdin) Close() error {
	if s.closed {
		return nil
	}
	err := s.settle()
	if err == nil && !s.closed {
		_, err = s.send(nil, true)
	}
	if errors.Is(err, io.ErrClosedPipe) {
		err = nil
	}
	return err
}

// send sends bytes until all of them are taken, and returns how many were.
func (s *Stdin) send(data []byte, end bool) (taken int, err error) {
	for {
		state, err := s.request(data[taken:], end)
		if err != nil {
			return taken, err
		}
		further := state.Offset - s.offset
		if further < 0 || further > int64(len(data)-taken) {
			return taken, fmt.Errorf("command %s: its standard input is at %d bytes, not between %d and %d: another client writes, too",
				s.command.ID, state.Offset, s.offset, s.offset+int64(len(data)-taken))
		}
		taken += int(further)
		s.pending = s.pending[min(int(further), len(s.pending)):]
		s.offset = state.Offset
		switch {
		case state.Closed:
			s.closed = true
			if taken < len(data) {
				return taken, io.ErrClosedPipe
			}
			return taken, nil
		case taken == len(data) && !end:
			return taken, nil
		}
	}
}

// request sends one request, and again while the connection is cut, for as long as a stream would
// be resumed.
func (s *Stdin) request(data []byte, end bool) (state execd.CommandStdin, err error) {
	client := s.command.box.client
	params := &execd.WriteCommandStdinParams{Offset: s.offset, End: optional(end)}
	retry := resumption{what: "standard input of command " + s.command.ID, limit: client.resumeLimit}
	for {
		// Each attempt that may have arrived ends here, so that it is noted.
		err = client.call(s.ctx, once, &state, func(ctx context.Context) (*http.Response, error) {
			return s.command.box.daemon.WriteCommandStdinWithBody(ctx, s.command.ID, params,
				"application/octet-stream", bytes.NewReader(data))
		})
		if err == nil {
			return state, nil
		}
		var refusal *Error
		refused := errors.As(err, &refusal) && refusal.Status < http.StatusInternalServerError
		if !refused && !notConnected(err) {
			s.pending = bytes.Clone(data)
		}
		if s.ctx.Err() != nil || !mayRepeat(err, repeatable) {
			return state, err
		}
		if err := retry.wait(s.ctx, err); err != nil {
			return state, err
		}
	}
}

// feed writes everything that source has to the command's standard input and ends it. It succeeds
// when the command reads no further.
func (c *Command) feed(ctx context.Context, source io.Reader) error {
	stdin := c.Stdin(ctx)
	_, err := io.CopyBuffer(struct{ io.Writer }{stdin}, struct{ io.Reader }{source}, make([]byte, stdinPiece))
	if err == nil {
		err = stdin.Close()
	}
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the standard input: %w", err)
	}
	return nil
}
