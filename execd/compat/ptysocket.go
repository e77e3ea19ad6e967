package compat

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/api"
	"sandbox.internal/execd/terminal"
	"sandbox.internal/openapi/serve/respond"
)

// The first byte of a binary message says what it is.
const (
	frameInput  = 0 // from the client: what is typed
	frameOutput = 1
	frameReplay = 3 // its position, as eight bytes, and earlier output
)

const (
	// closeTakenOver and reasonTakenOver end the connection of a client whose place another one
	// takes.
	closeTakenOver  websocket.StatusCode = 4001
	reasonTakenOver                      = "TAKEN_OVER"
	// closeTime is how long such a client may take to take that.
	closeTime = 2 * time.Second
	// maxText bounds a text message, in bytes; input as text is in one.
	maxText = 64 << 10
	// inputSize is how much input is passed on at once, in bytes.
	inputSize = 32 << 10
	// maxSize is the most rows or columns of a terminal.
	maxSize = 10000
)

// A client that is connected is asked every pingInterval whether it is still there, and has
// pingTime to answer: a connection whose client is gone holds no session for longer.
var (
	pingInterval = 20 * time.Second
	pingTime     = 20 * time.Second
)

// errText is a text message that is too long.
var errText = fmt.Errorf("text messages have at most %d bytes", maxText)

// ptySignals are the signals that a client may send.
var ptySignals = map[string]syscall.Signal{
	"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL, "SIGQUIT": syscall.SIGQUIT, "SIGHUP": syscall.SIGHUP,
}

// ptyConnection is the WebSocket of a client that is connected.
type ptyConnection struct {
	*websocket.Conn
	ctx      context.Context // ends when the client has left or has to
	leave    context.CancelCauseFunc
	seen     int64 // how many bytes of the output the client has
	id       string
	terminal *terminal.Terminal
	before   int64        // how many bytes the session's terminals before have written
	free     func()       // has another client connect without a wait
	typing   *atomic.Bool // input waits for the program
}

// ptyFrame is a text message to the client.
type ptyFrame struct {
	Type     string `json:"type"`
	Session  string `json:"session_id,omitempty"`
	Mode     string `json:"mode,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty"`
	Code     string `json:"code,omitempty"`
}

// servePTY serves a client of the session until one of both has ended.
func (h *handler) servePTY(c echo.Context, p *pty, own *holder, to ptyConnection) error {
	socket, err := api.Upgrade(c.Response(), c.Request())
	if err != nil {
		return err
	}
	defer socket.CloseNow() // also of what is closed already
	to.Conn, to.id, to.typing = socket, p.id, &atomic.Bool{}
	to.free = func() { p.disconnect(own) }
	p.takeOver(own) // only now, so that a bad handshake ends no connection
	running := c.Request().Context()
	if to.terminal, to.before, err = h.start(c.Request(), p); err != nil {
		_ = to.write(running, ptyFrame{Type: "error", Code: "START_FAILED", Error: err.Error()})
		return socket.Close(websocket.StatusInternalError, "START_FAILED")
	}
	viewer, written := to.terminal.AttachAt(to.seen - to.before)
	defer viewer.Close()
	// A client that takes nothing must not hold its connection for longer.
	stop := context.AfterFunc(to.ctx, func() {
		if errors.Is(context.Cause(to.ctx), errTakenOver) {
			time.AfterFunc(closeTime, func() { socket.CloseNow() })
		}
	})
	defer stop()
	var helpers sync.WaitGroup
	helpers.Go(func() { to.leave(to.receive(running)) })
	helpers.Go(func() {
		if err := to.ping(); err != nil {
			to.leave(err)
		}
	})
	to.send(running, viewer, max(0, written-max(0, to.seen-to.before)))
	to.leave(nil)
	socket.CloseNow()
	helpers.Wait()
	return nil
}

// write sends a text message. It gives up on a client that takes nothing for a while.
func (to *ptyConnection) write(ctx context.Context, frame ptyFrame) error {
	data, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	return to.writeBytes(ctx, websocket.MessageText, data)
}

func (to *ptyConnection) writeBytes(ctx context.Context, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, respond.DefaultWriteTimeout)
	defer cancel()
	return to.Write(ctx, kind, data)
}

// send sends the output: first what the client has missed, as one replay, and that it is connected.
// What is being sent is not called off when the client has to leave, for a connection on which a
// write was called off cannot be closed with a code.
func (to *ptyConnection) send(running context.Context, viewer *terminal.Viewer, missed int64) {
	out := ptyOutput{to: to, running: running, missing: int(missed)}
	if missed == 0 && !out.connected() {
		return
	}
	for {
		output, err := viewer.Next(to.ctx)
		if to.ctx.Err() != nil {
			err = context.Cause(to.ctx) // however much output there is
		}
		switch {
		case errors.Is(err, io.EOF):
			to.free()
			code := -1
			if known := to.terminal.Status().ExitCode; known != nil {
				code = *known
			}
			if out.connected() && to.write(running, ptyFrame{Type: "exit", ExitCode: &code}) == nil {
				to.Close(websocket.StatusNormalClosure, "process exited")
			}
			return
		case errors.Is(err, errTakenOver):
			to.Close(closeTakenOver, reasonTakenOver)
			return
		case errors.Is(err, errText):
			to.Close(websocket.StatusPolicyViolation, err.Error())
			return
		case err != nil:
			to.Close(websocket.StatusGoingAway, "")
			return
		}
		if !out.take(output) {
			return
		}
	}
}

// ptyOutput makes binary messages of output.
type ptyOutput struct {
	to      *ptyConnection
	running context.Context
	missing int    // how many bytes the replay still lacks
	frame   []byte // of the replay, when there is one
	greeted bool
}

// connected sends, once, that the client is connected. It reports whether that was sent.
func (o *ptyOutput) connected() bool {
	if !o.greeted {
		o.greeted = o.to.write(o.running, ptyFrame{Type: "connected", Session: o.to.id, Mode: "pty"}) == nil
	}
	return o.greeted
}

// take sends a piece of output, or keeps it until the replay is complete. It reports false when
// the connection is of no use any more.
func (o *ptyOutput) take(output terminal.Output) bool {
	if output.Replay {
		o.missing, o.frame = output.Replayed, nil
		if o.missing == 0 {
			return o.connected()
		}
	}
	if o.missing == 0 {
		return o.to.writeBytes(o.running, websocket.MessageBinary, append([]byte{frameOutput}, output.Data...)) == nil
	}
	if o.frame == nil {
		o.frame = binary.BigEndian.AppendUint64([]byte{frameReplay}, uint64(o.to.before+output.At))
	}
	o.frame = append(o.frame, output.Data...)
	if o.missing -= min(o.missing, len(output.Data)); o.missing > 0 {
		return true
	}
	err := o.to.writeBytes(o.running, websocket.MessageBinary, o.frame)
	o.frame = nil
	return err == nil && o.connected()
}

// ping returns an error when the client does not answer. While input waits for the program nothing
// is read, also no answer.
func (to *ptyConnection) ping() error {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-to.ctx.Done():
			return nil
		case <-ticker.C:
		}
		waited := to.typing.Load()
		limited, cancel := context.WithTimeout(context.WithoutCancel(to.ctx), pingTime)
		err := to.Ping(limited)
		cancel()
		if err != nil && !(waited || to.typing.Load()) {
			return err
		}
	}
}

// receive passes on what the client types, until it leaves or has to. A connection cannot be closed
// with a code once a read was called off, so it ends with the connection.
func (to *ptyConnection) receive(running context.Context) error {
	to.SetReadLimit(-1)
	for {
		kind, message, err := to.Reader(context.WithoutCancel(to.ctx))
		if err != nil {
			return err
		}
		if to.ctx.Err() != nil { // another client may be connected
			_, err = io.Copy(io.Discard, message)
		} else if kind == websocket.MessageText {
			err = to.control(running, message)
		} else {
			err = to.input(message)
		}
		if err != nil {
			return err
		}
	}
}

// input types a binary message. One that is no input is left out.
func (to *ptyConnection) input(message io.Reader) error {
	buffer := make([]byte, inputSize)
	n, err := io.ReadFull(message, buffer[:1])
	if n == 0 || buffer[0] != frameInput {
		_, err = io.Copy(io.Discard, message)
		return err
	}
	for err == nil {
		n, err = message.Read(buffer)
		if typed := to.enter(buffer[:n]); typed != nil {
			return typed
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// enter types input.
func (to *ptyConnection) enter(input []byte) error {
	to.typing.Store(true)
	defer to.typing.Store(false)
	return to.terminal.Type(to.ctx, input)
}

// control does what a text message asks for. One that is no JSON is left out.
func (to *ptyConnection) control(running context.Context, message io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(message, maxText+1))
	if err != nil {
		return err
	}
	if len(data) > maxText {
		return errText
	}
	var asked struct {
		Type   string `json:"type"`
		Data   string `json:"data"`
		Cols   int    `json:"cols"`
		Rows   int    `json:"rows"`
		Signal string `json:"signal"`
	}
	if json.Unmarshal(data, &asked) != nil {
		return nil
	}
	switch asked.Type {
	case "stdin":
		return to.enter([]byte(asked.Data))
	case "signal":
		if signal, known := ptySignals[asked.Signal]; known {
			to.terminal.SignalForeground(signal)
		}
	case "resize":
		if rows, cols := asked.Rows, asked.Cols; rows > 0 && cols > 0 && rows <= maxSize && cols <= maxSize {
			return to.terminal.Resize(uint16(rows), uint16(cols))
		}
	case "ping":
		return to.write(running, ptyFrame{Type: "pong"})
	default:
		return to.write(running, ptyFrame{Type: "error", Code: "INVALID_FRAME", Error: fmt.Sprintf("unknown frame type %.40q", asked.Type)})
	}
	return nil
}
