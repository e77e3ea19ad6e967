package compat

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/terminal"
	"sandbox.internal/internal/process"
	"sandbox.internal/openapi/serve"
)

const (
	// maxPTYs is how many sessions with a terminal there may be at a time. One that has ended keeps
	// 256 KiB of output.
	maxPTYs = 200
	// maxPTYCommand bounds the command of one, in bytes, as the kernel does.
	maxPTYCommand = 128 << 10
	// leaveTime is how long a client waits for another one to leave: the connection of that may
	// have been closed just now.
	leaveTime = 500 * time.Millisecond
)

// codeConnected is the code of a request for a session that another client is connected to.
const codeConnected = "ALREADY_CONNECTED"

// ptys are sessions with a terminal, which is started for the first client that connects. One
// client at a time is connected; another one takes its place where it asks for that.
type ptys struct {
	mu   sync.Mutex
	byID map[string]*pty
}

type pty struct {
	id, cwd, command string
	starting         sync.Mutex // held while a terminal is started

	mu       sync.Mutex
	terminal *terminal.Terminal // the last that was started, nil before
	before   int64              // how many bytes the terminals before it have written
	tried    bool               // a start was tried
	failed   bool               // the last one failed
	deleted  bool
	holder   *holder // the client that is connected, nil for none
}

// holder is a client that is connected.
type holder struct {
	leave context.CancelCauseFunc
	gone  chan struct{} // closed when it is not connected any more
	left  bool          // it was connected and is not any more; guarded by the session's mu
}

// errTakenOver ends the connection of a client whose place another one takes.
var errTakenOver = errors.New("another client has taken the session over")

// isPTY reports whether a request is for a session with a terminal. Attaching is as for all
// clients.
func isPTY(method, path string) bool {
	if path == "/pty" {
		return method == http.MethodPost
	}
	id, ok := strings.CutPrefix(path, "/pty/")
	if rest, connects := strings.CutSuffix(id, "/ws"); connects {
		return ok && method == http.MethodGet && !strings.Contains(rest, "/")
	}
	return ok && !strings.Contains(id, "/") && (method == http.MethodGet || method == http.MethodDelete)
}

func (h *handler) createPTY(c echo.Context) error {
	var body struct {
		Cwd     string `json:"cwd"`
		Command string `json:"command"`
	}
	if err := readJSON(c, &body); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(body.Command) >= maxPTYCommand {
		return serve.Invalid("body/command: must have fewer than %d bytes", maxPTYCommand)
	}
	if body.Cwd != "" {
		if _, err := os.Stat(body.Cwd); errors.Is(err, fs.ErrNotExist) {
			directory := map[string]any{body.Cwd: map[string]any{"mode": 755}}
			if _, err := h.ask(c.Request(), http.MethodPost, "/directories", directory); err != nil {
				return err
			}
		}
	}
	p := &pty{id: uuid.NewString(), cwd: body.Cwd, command: body.Command}
	h.ptys.mu.Lock()
	defer h.ptys.mu.Unlock()
	if len(h.ptys.byID) >= maxPTYs {
		return &serve.Problem{Status: http.StatusServiceUnavailable, Message: "there are too many PTY sessions: delete some, and try again"}
	}
	if h.ptys.byID == nil {
		h.ptys.byID = map[string]*pty{}
	}
	h.ptys.byID[p.id] = p
	return c.JSON(http.StatusCreated, map[string]string{"session_id": p.id})
}

func (p *ptys) find(id string) (*pty, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.byID[id]; found != nil {
		return found, nil
	}
	return nil, &serve.Problem{Status: http.StatusNotFound, Message: "there is no PTY session " + quote(id)}
}

func (h *handler) getPTY(c echo.Context) error {
	p, err := h.ptys.find(c.Param("id"))
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	status := map[string]any{
		"session_id": p.id, "running": p.runs(), "output_offset": p.before, "launch_attempted": p.tried, "launch_failed": p.failed,
	}
	if p.terminal != nil {
		status["output_offset"] = p.before + p.terminal.Written()
	}
	return c.JSON(http.StatusOK, status)
}

// runs reports whether the session's program runs. The caller holds mu.
func (p *pty) runs() bool { return p.terminal != nil && p.terminal.Status().Running }

// deletePTY ends a session and its program, of which a client that is connected gets the exit.
func (h *handler) deletePTY(c echo.Context) error {
	p, err := h.ptys.find(c.Param("id"))
	if err != nil {
		return err
	}
	p.starting.Lock()
	defer p.starting.Unlock()
	p.mu.Lock()
	runs, t := p.runs(), p.terminal
	p.mu.Unlock()
	if runs {
		if _, err := h.ask(c.Request(), http.MethodDelete, "/pty/"+t.ID(), nil); err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.deleted = true
	p.mu.Unlock()
	h.ptys.mu.Lock()
	delete(h.ptys.byID, p.id)
	h.ptys.mu.Unlock()
	return c.JSON(http.StatusOK, struct{}{})
}

// connectPTY makes the client the one that is connected.
func (h *handler) connectPTY(c echo.Context) error {
	p, err := h.ptys.find(c.Param("id"))
	if err != nil {
		return err
	}
	if c.QueryParam("pty") == "0" {
		return serve.Invalid("query parameter pty: a session without a terminal is not supported")
	}
	var seen int64
	if text := c.QueryParam("since"); text != "" {
		if seen, err = strconv.ParseInt(text, 10, 64); err != nil {
			return serve.Invalid("query parameter since: must be a number of bytes, not %.40q", text)
		}
	}
	ctx, leave := context.WithCancelCause(c.Request().Context())
	defer leave(nil)
	own := &holder{leave: leave, gone: make(chan struct{})}
	if c.QueryParam("takeover") != "1" && !p.connect(ctx, own) {
		return &serve.Problem{Status: http.StatusConflict, Code: codeConnected, Message: "another client is already connected to PTY session " + quote(p.id)}
	}
	defer p.disconnect(own)
	return h.servePTY(c, p, own, ptyConnection{ctx: ctx, leave: leave, seen: seen})
}

// connect makes a client the one that is connected, unless there is one that does not leave.
func (p *pty) connect(ctx context.Context, own *holder) bool {
	other := p.tryConnect(own)
	if other == nil {
		return true
	}
	timer := time.NewTimer(leaveTime)
	defer timer.Stop()
	select {
	case <-other.gone:
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.tryConnect(own) == nil
}

// tryConnect makes a client the one that is connected, or returns the one that is.
func (p *pty) tryConnect(own *holder) (other *holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder != nil {
		return p.holder
	}
	p.holder = own
	return nil
}

// takeOver makes a client the one that is connected, and has another one leave. Only the client
// that is connected types from then on. A client whose place another one has taken meanwhile does
// not get it back.
func (p *pty) takeOver(own *holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own.left || p.holder == own {
		return
	}
	if other := p.holder; other != nil {
		other.leave(errTakenOver)
		p.release()
	}
	p.holder = own
}

// disconnect takes a client away that was connected. Another one may have its place.
func (p *pty) disconnect(own *holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder == own {
		p.release()
	}
}

// release takes the client away that is connected. The caller holds mu.
func (p *pty) release() {
	own := p.holder
	p.holder, own.left = nil, true
	close(own.gone)
}

// start returns the session's terminal, which it starts unless it runs, and how many bytes those
// before it have written.
func (h *handler) start(r *http.Request, p *pty) (*terminal.Terminal, int64, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	if running, before, err := p.current(); running != nil || err != nil {
		return running, before, err
	}
	request := map[string]any{}
	if p.cwd != "" {
		request["cwd"] = p.cwd
	}
	if p.command != "" {
		request["command"], request["args"] = cmp.Or(process.Shell(os.Environ()), "sh"), []string{"-c", p.command}
	}
	answer, err := h.ask(r, http.MethodPost, "/pty", request)
	if err != nil {
		return nil, 0, err
	}
	var started struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(answer, &started); err != nil {
		return nil, 0, err
	}
	t, err := h.Terminals.Get(started.ID)
	if err != nil {
		return nil, 0, err
	}
	return t, p.started(t), nil
}

// current returns the session's terminal while that runs. Otherwise a start is tried.
func (p *pty) current() (t *terminal.Terminal, before int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.deleted:
		return nil, 0, errors.New("the session was deleted")
	case p.runs():
		return p.terminal, p.before, nil
	}
	p.tried, p.failed = true, true
	return nil, 0, nil
}

// started notes the session's terminal, and returns how many bytes those before have written.
func (p *pty) started(t *terminal.Terminal) (before int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal != nil {
		p.before += p.terminal.Written()
	}
	p.terminal, p.failed = t, false
	return p.before
}

// ask sends the contract's own operation a request in the client's name, and returns the body of
// the answer, or the error that it is.
func (h *handler) ask(r *http.Request, method, path string, body any) ([]byte, error) {
	nested := moved(r, path, nil)
	nested.Method = method
	nested.Header = r.Header.Clone()
	for name := range nested.Header {
		if strings.HasPrefix(name, "Sec-Websocket-") {
			nested.Header.Del(name)
		}
	}
	for _, name := range []string{"Connection", "Upgrade", "Content-Length", "Content-Type"} {
		nested.Header.Del(name)
	}
	nested.Body, nested.ContentLength = http.NoBody, 0
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		nested.Header.Set("Content-Type", echo.MIMEApplicationJSON)
		nested.Body, nested.ContentLength = io.NopCloser(bytes.NewReader(encoded)), int64(len(encoded))
	}
	answer := &kept{header: http.Header{}}
	h.server.ServeHTTP(answer, nested)
	if answer.status < http.StatusBadRequest {
		return answer.body.Bytes(), nil
	}
	var problem struct{ Code, Message string }
	if json.Unmarshal(answer.body.Bytes(), &problem) != nil {
		problem.Message = http.StatusText(answer.status)
	}
	return nil, &serve.Problem{Status: answer.status, Code: problem.Code, Message: problem.Message}
}

// kept is an answer of an operation whose answers are short.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header { return k.header }

func (k *kept) WriteHeader(status int) {
	if k.status == 0 {
		k.status = status
	}
}

func (k *kept) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}
