package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/internal/eventlog"
)

const (
	// inputPiece is how many bytes of a body are read before they are written, in bytes.
	inputPiece = 32 << 10
	// inputPatience is how long a write waits for a command that takes nothing.
	inputPatience = 5 * time.Second
	// inputLimit is how long a request writes to a command that takes bytes all the time, but
	// slowly: clients give up a request that is not answered, after a minute the earliest.
	inputLimit = 20 * time.Second
)

// ErrConflict: the bytes do not continue the command's standard input.
var ErrConflict = errors.New("conflict")

// conflictf returns an error that is ErrConflict and says nothing but its message.
func conflictf(format string, args ...any) error { return conflictError(fmt.Sprintf(format, args...)) }

type conflictError string

func (e conflictError) Error() string { return string(e) }

func (e conflictError) Is(target error) bool { return target == ErrConflict }

var errNoInput = conflictf("the command has no standard input: it was not started with stdin")

// InputState is how far the standard input of a command is.
type InputState struct {
	// Offset is how many bytes the pipe has taken.
	Offset int64
	// Closed: nothing can be written any more, because the client ended it, or the command closed
	// it or has ended.
	Closed bool
}

// input is the writing end of the pipe that is a command's standard input. What was written is in
// the pipe and nowhere else.
//
// Writers take turns, piece by piece. A piece has its place among all bytes, and what of it was
// written before is skipped, so it does not matter which of two requests with the same bytes writes
// them: the one whose connection was cut, or its repetition.
type input struct {
	lock   chan struct{} // has one element while a goroutine writes
	file   *os.File
	offset atomic.Int64
	closed atomic.Bool
	ended  bool // by a client, at the offset; whoever holds the lock may use it
}

// openInput makes the pipe for a process with that credential, and returns the end to read from.
func (c *Command) openInput(credential *syscall.Credential) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe for stdin: %w", err)
	}
	reader := os.NewFile(uintptr(ends[0]), "stdin")
	err := unix.SetNonblock(ends[1], true) // so that a write that waits costs no thread
	in := &input{lock: make(chan struct{}, 1), file: os.NewFile(uintptr(ends[1]), "stdin")}
	if err == nil {
		err = permitReopen(reader, inputMode, credential)
	}
	if err != nil {
		reader.Close()
		in.close()
		return nil, fmt.Errorf("prepare the pipe for stdin: %w", err)
	}
	c.input = in
	return reader, nil
}

func (in *input) state() InputState {
	return InputState{Offset: in.offset.Load(), Closed: in.closed.Load()}
}

// close lets the command read an end of file after what is in the pipe, and ends a write that
// waits.
func (in *input) close() {
	in.closed.Store(true)
	_ = in.file.Close() // the error of a second Close is ignored: written bytes cannot be lost by it
}

// acquire waits for the lock, as long as for a command that takes nothing.
func (in *input) acquire(ctx context.Context, until time.Time) bool {
	timer := time.NewTimer(min(inputPatience, time.Until(until)))
	defer timer.Stop()
	select {
	case in.lock <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// await waits for the lock as long as the client does. It returns the cause of ctx when that ends
// first.
func (in *input) await(ctx context.Context) error {
	select {
	case in.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// check refuses bytes up to a position that do not continue what was written. The caller holds the
// lock.
func (in *input) check(from, to int64) error {
	switch offset := in.offset.Load(); {
	case from > offset:
		return conflictf("query parameter offset: is %d, but the command has %d bytes of standard input", from, offset)
	case in.ended && to > offset:
		return conflictf("body: the standard input was ended at %d bytes", offset)
	}
	return nil
}

// write writes the piece that begins at a position, and reports whether all of it was taken before
// a time.
func (in *input) write(ctx context.Context, piece []byte, from int64, until time.Time) (taken bool, err error) {
	if !in.acquire(ctx, until) {
		return false, nil
	}
	defer func() { <-in.lock }()
	to := from + int64(len(piece))
	if err := in.check(from, to); err != nil {
		return false, err
	}
	return in.put(ctx, piece, from, until), nil
}

// put is write without a check. The caller holds the lock.
func (in *input) put(ctx context.Context, piece []byte, from int64, until time.Time) (taken bool) {
	to := from + int64(len(piece))
	for in.offset.Load() < to {
		if in.closed.Load() {
			return false
		}
		now := time.Now()
		_ = in.file.SetWriteDeadline(now.Add(min(inputPatience, until.Sub(now)))) // fails once closed, and so does the write
		n, err := in.file.Write(piece[in.offset.Load()-from:])
		in.offset.Add(int64(n))
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			if n == 0 || ctx.Err() != nil || !time.Now().Before(until) {
				return false
			}
		default: // the command has closed its end, or has ended
			in.close()
		}
	}
	return true
}

// end closes the standard input at a position, where the client's bytes end.
func (in *input) end(ctx context.Context, at int64, until time.Time) error {
	if !in.acquire(ctx, until) {
		return nil
	}
	defer func() { <-in.lock }()
	if err := in.check(at, at); err != nil || in.closed.Load() {
		return err
	}
	if offset := in.offset.Load(); at < offset {
		return conflictf("query parameter end: the body ends at %d bytes, but the command has %d bytes of standard input", at, offset)
	}
	in.ended = true
	in.close()
	return nil
}

// WriteInput writes what body has, the first byte of which is the one at offset of the command's
// standard input, and with end closes the standard input after it. Bytes that were written before
// are skipped. It returns when all of it is in the pipe, when the pipe has taken nothing for 5 s,
// after 20 s although the pipe takes more, when the standard input is closed, and when ctx ends;
// the state shows how far it came.
//
// It returns ErrConflict when the command has no standard input, when offset is beyond what was
// written, and for bytes behind the end; any other error is that of body, before which everything
// that came was written.
func (c *Command) WriteInput(ctx context.Context, body io.Reader, offset int64, end bool) (InputState, error) {
	return c.writeInput(ctx, body, offset, end, time.Now().Add(inputLimit))
}

// writeInput is WriteInput up to a time.
func (c *Command) writeInput(ctx context.Context, body io.Reader, offset int64, end bool, until time.Time) (InputState, error) {
	in := c.input
	if in == nil {
		return InputState{}, errNoInput
	}
	buffer := buffers.Get().(*[eventlog.MaxFragment]byte)
	defer buffers.Put(buffer)
	for at := offset; ; {
		n, readErr := body.Read(buffer[:inputPiece])
		taken, err := in.write(ctx, buffer[:n], at, until)
		if err != nil {
			return InputState{}, err
		}
		if !taken {
			return in.state(), nil
		}
		at += int64(n)
		switch {
		case readErr == nil && time.Now().Before(until):
			continue
		case readErr == nil:
		case !errors.Is(readErr, io.EOF):
			return InputState{}, readErr
		case end:
			err = in.end(ctx, at, until)
		}
		return in.state(), err
	}
}

// AppendInput writes all of data behind what was written to the command's standard input, and what
// concurrent calls append is not mixed. It waits for as long as the pipe takes nothing. It returns
// ErrConflict when the command has no standard input or it is closed, by the client, the command or
// its end, and the cause of ctx when that ends first; a part of data may have been written then.
func (c *Command) AppendInput(ctx context.Context, data []byte) error {
	in := c.input
	if in == nil {
		return errNoInput
	}
	if err := in.await(ctx); err != nil {
		return err
	}
	defer func() { <-in.lock }()
	if in.closed.Load() {
		return conflictf("the standard input of the command is closed")
	}
	offset := in.offset.Load()
	deadline, bounded := ctx.Deadline()
	for {
		until := time.Now().Add(inputPatience)
		if bounded && deadline.Before(until) {
			until = deadline
		}
		if in.put(ctx, data[in.offset.Load()-offset:], in.offset.Load(), until) {
			return nil
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case in.closed.Load():
			return conflictf("the standard input of the command is closed: %d of %d bytes were written",
				in.offset.Load()-offset, len(data))
		}
	}
}

// CloseInput closes the command's standard input behind what was written, once concurrent calls of
// AppendInput have returned. Closing it again succeeds. It returns ErrConflict when the command has
// no standard input, and the cause of ctx when that ends first.
func (c *Command) CloseInput(ctx context.Context) error {
	in := c.input
	if in == nil {
		return errNoInput
	}
	if err := in.await(ctx); err != nil {
		return err
	}
	defer func() { <-in.lock }()
	in.ended = true
	in.close()
	return nil
}
