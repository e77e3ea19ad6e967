package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"sandbox.internal/clients/go/execd"
)

// maxTerminalMessage bounds a message of a terminal, in bytes. The daemon's have 32 KiB.
const maxTerminalMessage = 1 << 20

// Terminals runs programs on pseudo-terminals in a sandbox.
type Terminals struct{ box *Sandbox }

// TerminalOptions are what runs on a terminal. Nil means the image's shell.
type TerminalOptions struct {
	// Command is the program; empty means the image's shell.
	Command string
	Args    []string
	// Cwd is the directory; empty means the sandbox's working directory.
	Cwd string
	// Envs are environment variables on top of the sandbox's own.
	Envs map[string]string
	// UID and GID are who runs it; nil means the daemon's own user.
	UID, GID *int64
	// Timeout is after how long it is hung up; 0 means never.
	Timeout time.Duration
	// Rows and Cols are the size, in characters; 0 means the usual one.
	Rows, Cols int
}

// Create starts a program on a terminal and returns its id. It lives until the program ends or
// Delete; viewers come and go.
func (t Terminals) Create(ctx context.Context, o *TerminalOptions) (id string, err error) {
	var request execd.TerminalRequest
	if o != nil {
		request = execd.TerminalRequest{Command: optional(o.Command), Args: o.Args,
			Cwd: optional(o.Cwd), Envs: o.Envs, UID: o.UID, GID: o.GID, Rows: optional(o.Rows),
			Cols: optional(o.Cols)}
		if o.Timeout > 0 {
			request.Timeout = new(max(1, o.Timeout.Milliseconds()))
		}
	}
	var accepted execd.TerminalAccepted
	err = t.box.client.call(ctx, repeatable, &accepted, makeOnce(func(ctx context.Context,
		headers execd.RequestEditorFn) (*http.Response, error) {
		return t.box.daemon.StartTerminal(ctx, nil, request, headers)
	}).request)
	return accepted.ID, err
}

// List returns the terminals that run and the last that have ended, oldest first.
func (t Terminals) List(ctx context.Context) ([]TerminalInfo, error) {
	var list []TerminalInfo
	err := t.box.client.call(ctx, repeatable, &list,
		func(ctx context.Context) (*http.Response, error) { return t.box.daemon.ListTerminals(ctx) })
	return list, err
}

// Get returns how a terminal is doing.
func (t Terminals) Get(ctx context.Context, id string) (TerminalInfo, error) {
	var info TerminalInfo
	err := t.box.client.call(ctx, repeatable, &info,
		func(ctx context.Context) (*http.Response, error) { return t.box.daemon.GetTerminal(ctx, id) })
	return info, err
}

// Delete hangs a terminal up: its program gets SIGHUP and, two seconds later, SIGKILL.
func (t Terminals) Delete(ctx context.Context, id string) error {
	return t.box.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		return t.box.daemon.KillTerminal(ctx, id)
	})
}

// Attach makes the caller a viewer of a terminal.
func (t Terminals) Attach(ctx context.Context, id string) (*Terminal, error) {
	terminal := &Terminal{ID: id, box: t.box}
	var err error
	terminal.conn, err = terminal.dial(ctx)
	return terminal, err
}

// Terminal is a viewer's connection to a terminal. Next belongs to one goroutine; Write, Resize and
// Close can be called from others.
type Terminal struct {
	ID  string
	box *Sandbox

	mu     sync.Mutex
	conn   *websocket.Conn
	rows   int // that were last asked for, 0 before
	cols   int
	closed bool
}

// TerminalEvent is something that a viewer sees.
type TerminalEvent struct {
	// Replay says that what was shown before is void, and that Data is the past of the terminal, up
	// to 256 KiB: clear the screen. It is so at first, after the viewer fell behind, and after its
	// connection was cut; so nothing is missing on the screen.
	Replay bool
	Data   []byte
	// Exited is true for the last event; ExitCode is that of the program, nil after a timeout and
	// where it is not known.
	Exited   bool
	ExitCode *int
}

// dial makes a connection.
func (t *Terminal) dial(ctx context.Context) (*websocket.Conn, error) {
	conn, response, err := websocket.Dial(ctx, t.box.base+"/pty/"+t.ID+"/attach",
		&websocket.DialOptions{
			HTTPClient:      t.box.client.http,
			HTTPHeader:      t.box.client.headers.Clone(),
			CompressionMode: websocket.CompressionDisabled,
		})
	if err != nil {
		if response != nil && response.StatusCode >= 400 && response.Body != nil {
			return nil, errorOf(response)
		}
		return nil, err
	}
	conn.SetReadLimit(maxTerminalMessage)
	return conn, nil
}

// Next returns what comes next and waits for it. After the event with Exited it returns io.EOF. It
// connects again when the connection is cut.
func (t *Terminal) Next(ctx context.Context) (TerminalEvent, error) {
	retry := resumption{what: "terminal " + t.ID, limit: t.box.client.resumeLimit}
	for {
		conn, closed := t.connection()
		if closed {
			return TerminalEvent{}, io.EOF
		}
		event, err := t.receive(ctx, conn)
		if err == nil {
			return event, nil
		}
		if ctx.Err() != nil {
			return TerminalEvent{}, context.Cause(ctx)
		}
		if _, closed := t.connection(); closed || errors.Is(err, errProtocol) {
			return TerminalEvent{}, err
		}
		if err := retry.wait(ctx, err); err != nil {
			return TerminalEvent{}, err
		}
		if err := t.reattach(ctx); err != nil && !mayRepeat(err, repeatable) {
			return TerminalEvent{}, err
		}
	}
}

func (t *Terminal) connection() (*websocket.Conn, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn, t.closed
}

// errProtocol is a message that is none of the contract's.
var errProtocol = errors.New("the terminal sent what is not in the contract")

// receive reads one event.
func (t *Terminal) receive(ctx context.Context, conn *websocket.Conn) (TerminalEvent, error) {
	kind, data, err := conn.Read(ctx)
	if err != nil || kind == websocket.MessageBinary {
		return TerminalEvent{Data: data}, err
	}
	var news execd.TerminalNews
	if err := json.Unmarshal(data, &news); err != nil {
		return TerminalEvent{}, fmt.Errorf("%w: %w", errProtocol, err)
	}
	if news.Type == execd.TerminalNewsTypeExit {
		_ = t.Close()
		return TerminalEvent{Exited: true, ExitCode: news.ExitCode}, nil
	}
	// The past follows in messages of its own.
	event := TerminalEvent{Replay: true}
	for len(event.Data) < min(deref(news.Bytes), maxTerminalMessage) {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return TerminalEvent{}, err
		}
		if kind != websocket.MessageBinary {
			return TerminalEvent{}, errProtocol
		}
		event.Data = append(event.Data, data...)
	}
	return event, nil
}

// reattach makes another connection after one was cut.
func (t *Terminal) reattach(ctx context.Context) error {
	conn, err := t.dial(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	closed, rows, cols := t.closed, t.rows, t.cols
	if !closed {
		t.conn = conn
	}
	t.mu.Unlock()
	if closed {
		return conn.CloseNow()
	}
	if rows > 0 {
		_ = t.Resize(ctx, rows, cols) // when it fails, so does the next read
	}
	return nil
}

// Write types into the terminal. Write fails while the connection is cut: the bytes may or may not
// have arrived.
func (t *Terminal) Write(p []byte) (int, error) {
	conn, closed := t.connection()
	if closed {
		return 0, io.ErrClosedPipe
	}
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Resize gives the terminal another size, for all viewers.
func (t *Terminal) Resize(ctx context.Context, rows, cols int) error {
	t.mu.Lock()
	t.rows, t.cols = rows, cols
	conn := t.conn
	t.mu.Unlock()
	data, err := json.Marshal(execd.TerminalControl{
		Type: execd.TerminalControlTypeResize, Rows: rows, Cols: cols,
	})
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, data)
}

// Close detaches from the terminal, which goes on.
func (t *Terminal) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	return t.conn.CloseNow()
}
