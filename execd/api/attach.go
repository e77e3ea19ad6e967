package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"sandbox.internal/execd/terminal"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
)

const (
	// maxControl bounds a text message of a viewer, in bytes. Input, which is binary, may be of any
	// size: it streams.
	maxControl = 4 << 10
	// inputSize is how much input is passed on at once, in bytes.
	inputSize = 32 << 10
	// maxTerminalSize is the contract's TerminalSize.
	maxTerminalSize = 10000
	// pingInterval is how often a viewer whose input waits for the program is asked whether it is
	// still there.
	pingInterval = 3 * time.Second
	// pingTime bounds one such ping. The library allows a control frame no longer.
	pingTime = 5 * time.Second
)

// errBadMessage is what a viewer sent against the contract.
var errBadMessage = errors.New("bad message")

// attachment is the answer that becomes a viewer's WebSocket. Three goroutines serve it: the
// handler's sends, another one receives, and the third one looks after the connection while nothing
// is received.
type attachment struct {
	ctx      context.Context
	terminal *terminal.Terminal
}

// VisitAttachTerminalResponse implements the generated interface.
func (a attachment) VisitAttachTerminalResponse(w http.ResponseWriter) error {
	connection, err := Upgrade(w, serve.Request(a.ctx))
	if err != nil {
		return err
	}
	viewer := a.terminal.Attach()
	defer viewer.Close()
	ctx, leave := context.WithCancelCause(a.ctx)
	var typing atomic.Bool
	var helpers sync.WaitGroup
	helpers.Go(func() { leave(receive(ctx, connection, a.terminal, &typing)) })
	helpers.Go(func() {
		if err := ping(ctx, connection, &typing); err != nil {
			leave(err)
		}
	})
	send(a.ctx, ctx, connection, a.terminal, viewer)
	leave(nil)
	connection.CloseNow() // also of what is closed already
	helpers.Wait()
	return nil
}

// ping returns an error when the viewer has left while its input waits for the program. Nothing is
// read from the connection then, so only a write can fail.
func ping(ctx context.Context, connection *websocket.Conn, typing *atomic.Bool) error {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if !typing.Load() {
			continue
		}
		// The end of its context would close the connection while the ping is being written, so it
		// is not the viewer's. That time has run out says nothing by itself: the pong is not read,
		// and another write may be under way, which has a limit of its own. When it was the ping
		// that could not be written, the connection is closed, and the next one fails.
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTime)
		err := connection.Ping(limited)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// send sends what the viewer is to see until it has left, and returns when the connection is closed
// or of no use any more. What is being sent then is not called off with left: a connection on which
// a write was called off cannot be closed with a code.
func send(ctx, left context.Context, connection *websocket.Conn, t *terminal.Terminal, viewer *terminal.Viewer) {
	for {
		output, err := viewer.Next(left)
		if left.Err() != nil {
			err = context.Cause(left) // however much output there is
		}
		switch {
		case errors.Is(err, io.EOF):
			if sendNews(ctx, connection, exitNews{gen.TerminalNewsTypeExit, t.Status().ExitCode}) == nil {
				connection.Close(websocket.StatusNormalClosure, "")
			}
			return
		case errors.Is(err, errBadMessage):
			connection.Close(websocket.StatusPolicyViolation, err.Error())
			return
		case err != nil:
			connection.Close(websocket.StatusGoingAway, "")
			return
		}
		if output.Replay {
			if sendNews(ctx, connection, gen.TerminalNews{Type: gen.TerminalNewsTypeReplay, Bytes: &output.Replayed}) != nil {
				return
			}
		}
		if len(output.Data) > 0 && write(ctx, connection, websocket.MessageBinary, output.Data) != nil {
			return
		}
	}
}

// exitNews is the gen.TerminalNews of the end: the exit code is there when it is null, too.
type exitNews struct {
	Type     gen.TerminalNewsType `json:"type"`
	ExitCode *int                 `json:"exit_code"`
}

// sendNews sends a gen.TerminalNews or an exitNews.
func sendNews(ctx context.Context, connection *websocket.Conn, news any) error {
	data, err := json.Marshal(news)
	if err != nil {
		return err
	}
	return write(ctx, connection, websocket.MessageText, data)
}

// write gives up on a viewer that takes nothing for a while: nothing else would ever end its
// connection.
func write(ctx context.Context, connection *websocket.Conn, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, respond.DefaultWriteTimeout)
	defer cancel()
	return connection.Write(ctx, kind, data)
}

// receive passes on what the viewer types, until it leaves. A connection cannot be closed with a
// code once a read was called off, so it does not end with ctx but with the connection.
func receive(ctx context.Context, connection *websocket.Conn, t *terminal.Terminal, typing *atomic.Bool) error {
	connection.SetReadLimit(-1)
	buffer := make([]byte, inputSize)
	for {
		kind, message, err := connection.Reader(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		if kind == websocket.MessageText {
			if err := control(message, t); err != nil {
				return err
			}
			continue
		}
		for err == nil {
			var n int
			n, err = message.Read(buffer)
			typing.Store(true)
			typed := t.Type(ctx, buffer[:n])
			typing.Store(false)
			if typed != nil {
				return typed
			}
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// control does what a text message of a viewer asks for.
func control(message io.Reader, t *terminal.Terminal) error {
	data, err := io.ReadAll(io.LimitReader(message, maxControl+1))
	if err != nil {
		return err
	}
	var wanted struct {
		Type gen.TerminalControlType `json:"type"`
		Rows *int                    `json:"rows"` // as in gen.TerminalControl, but one can see that it is missing
		Cols *int                    `json:"cols"`
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	size := func(n *int) bool { return n != nil && *n >= 1 && *n <= maxTerminalSize }
	nothing := func(n *int) bool { return n != nil && *n == 0 }
	switch {
	case len(data) > maxControl:
		return fmt.Errorf("%w: more than %d bytes of text; input is binary", errBadMessage, maxControl)
	case decoder.Decode(&wanted) != nil, !wanted.Type.Valid():
		return fmt.Errorf("%w: text must be a TerminalControl; input is binary", errBadMessage)
	case nothing(wanted.Rows) && nothing(wanted.Cols):
		return nil // what an emulator that is not shown has
	case !size(wanted.Rows), !size(wanted.Cols):
		return fmt.Errorf("%w: rows and cols must be 1 to %d", errBadMessage, maxTerminalSize)
	}
	return t.Resize(uint16(*wanted.Rows), uint16(*wanted.Cols))
}

// Upgrade makes the connection of a request for a terminal a WebSocket. It returns the error to
// answer with, in the service's own form.
func Upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	answer := &handshake{ResponseWriter: w}
	// Terminal output is small pieces in which compression saves little, and it costs memory for
	// every viewer.
	connection, err := websocket.Accept(answer, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	switch {
	case err == nil:
		return connection, nil
	case answer.refusal == 0:
		return nil, err
	}
	for _, name := range []string{"Connection", "Upgrade", "X-Content-Type-Options"} {
		w.Header().Del(name)
	}
	if answer.refusal == http.StatusForbidden {
		return nil, serve.Forbidden("header Origin: %q is not the origin of this daemon", r.Header.Get("Origin"))
	}
	return nil, serve.Invalid("a terminal is attached to with a WebSocket: %v", err)
}

// handshake keeps back the refusal of a handshake, which is plain text.
type handshake struct {
	http.ResponseWriter
	refusal int
}

// Unwrap lets the connection be taken over.
func (h *handshake) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h *handshake) WriteHeader(status int) {
	if status != http.StatusSwitchingProtocols {
		h.refusal = status
		return
	}
	h.ResponseWriter.WriteHeader(status)
}

func (h *handshake) Write(p []byte) (int, error) {
	if h.refusal != 0 {
		return len(p), nil
	}
	return h.ResponseWriter.Write(p)
}
