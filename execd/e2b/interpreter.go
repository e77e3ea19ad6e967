package e2b

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/code"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/openapi/serve"
)

const (
	// homeDirectory is where E2B's contexts work, in images that have it.
	homeDirectory = "/home/user"
	// cellKeepAlive is how often a cell that says nothing sends a line that says so.
	cellKeepAlive = 5 * time.Second
	// headerWait is how long a cell may take to be queued before the answer begins without it, as
	// clients wait for the headers only for a while. What fails after that is an error of the cell.
	headerWait = time.Second
	// lineSize is how much output one line carries, about.
	lineSize = 32 << 10

	mediaLines = "application/x-ndjson"
)

// aliases are the other names of languages.
var aliases = map[string]string{"js": "javascript", "ts": "typescript"}

func languageOf(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	return cmp.Or(aliases[name], name)
}

func (h *handler) registerCode(add adder) {
	add(http.MethodPost, "/execute", h.execute)
	add(http.MethodPost, "/contexts", h.createContext)
	add(http.MethodGet, "/contexts", h.listContexts)
	add(http.MethodDelete, "/contexts/:id", h.deleteContext)
	add(http.MethodPost, "/contexts/:id/restart", h.restartContext)
}

// answerText answers with an error of the code interpreter, whose errors are plain text.
func (h *handler) answerText(c echo.Context, err error) error {
	status := http.StatusInternalServerError
	own := (*httpFailure)(nil)
	switch {
	case errors.As(err, &own):
		status = own.Code
	case invalid.Is(err):
		status = http.StatusBadRequest
	case errors.Is(err, code.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, code.ErrUnavailable), errors.Is(err, code.ErrFull), errors.Is(err, code.ErrClosed),
		errors.Is(err, freeze.ErrFrozen):
		status = http.StatusServiceUnavailable
	default:
		h.Logger.Error().Err(err).Msg("a request of a client of E2B's code interpreter failed")
	}
	return c.String(status, err.Error())
}

// readBody decodes the body of a request. A member that is not known would be ignored otherwise,
// and the client not know.
func readBody[In any](c echo.Context) (*In, error) {
	body, err := io.ReadAll(io.LimitReader(c.Request().Body, maxMessage+1))
	if err != nil {
		return nil, broken(err)
	}
	if len(body) > maxMessage {
		return nil, refuse(http.StatusRequestEntityTooLarge, "body: is longer than %d bytes", maxMessage)
	}
	in := new(In)
	if len(bytes.TrimSpace(body)) == 0 {
		return in, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(in); err != nil {
		return nil, refuse(http.StatusBadRequest, "body: %v", err)
	}
	return in, nil
}

func (h *handler) requireThawed() error {
	if h.Freezer.Frozen() {
		return freeze.ErrFrozen
	}
	return nil
}

// codeDirectory returns the working directory of contexts that name none: where relative paths of
// files start, or else that of E2B's images. Empty is the engine's.
func codeDirectory(r *http.Request) string {
	candidates := []string{homeDirectory}
	if user, failed := accountOf(r, ""); failed == nil {
		candidates = []string{user.directory, homeDirectory}
	}
	for _, dir := range candidates {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// codeContext is a context as clients see it.
type codeContext struct {
	ID        string `json:"id"`
	Language  string `json:"language"`
	Directory string `json:"cwd"`
}

func toCodeContext(c code.Context) codeContext { return codeContext{c.ID, c.Language, c.Dir} }

func (h *handler) createContext(c echo.Context) error {
	in, err := readBody[struct {
		Language  string `json:"language"`
		Directory string `json:"cwd"`
	}](c)
	if err == nil {
		err = h.requireThawed()
	}
	dir := codeDirectory(c.Request())
	if err == nil && in.Directory != "" {
		user, failed := accountOf(c.Request(), "")
		if failed != nil {
			return h.answerText(c, refuse(http.StatusUnauthorized, "%s", failed.Message))
		}
		if dir != "" {
			user.directory = dir
		}
		dir = user.path(in.Directory)
	}
	var created code.Context
	if err == nil {
		created, err = h.Code.CreateContextIn(c.Request().Context(), languageOf(in.Language), dir)
	}
	if err != nil {
		return h.answerText(c, err)
	}
	return c.JSON(http.StatusOK, toCodeContext(created))
}

func (h *handler) listContexts(c echo.Context) error {
	out := []codeContext{}
	for _, known := range h.Code.Contexts("") {
		out = append(out, toCodeContext(known))
	}
	return c.JSON(http.StatusOK, out)
}

func (h *handler) deleteContext(c echo.Context) error { return h.onContext(c, h.Code.DeleteContext) }

func (h *handler) restartContext(c echo.Context) error { return h.onContext(c, h.Code.RestartContext) }

// onContext does something to the context that the path names.
func (h *handler) onContext(c echo.Context, do func(ctx context.Context, id string) error) error {
	err := h.requireThawed()
	if err == nil {
		err = do(c.Request().Context(), c.Param("id"))
	}
	if err != nil {
		return h.answerText(c, err)
	}
	return c.JSON(http.StatusOK, nil)
}

type executeRequest struct {
	Code      string            `json:"code"`
	ContextID string            `json:"context_id"`
	Language  string            `json:"language"`
	Env       map[string]string `json:"env_vars"`
}

// execute runs a cell, and answers with what it says, one message per line.
func (h *handler) execute(c echo.Context) error {
	r := c.Request()
	spec, err := h.cellOf(c)
	if err != nil {
		return h.answerText(c, err)
	}
	record := h.record(r, activity.Code)
	spec.Ended = func(o code.Outcome) { record.End(resultOfCell(o)) }
	cell := &cell{ctx: r.Context(), response: c.Response(), stopping: h.Stopping, queued: make(chan struct{})}
	go func() {
		defer close(cell.queued)
		if cell.execution, cell.failed = h.Code.Execute(r.Context(), spec); cell.failed == nil {
			record.Begin(cell.execution.ID(), spec.Code)
		}
	}()
	timer := time.NewTimer(headerWait)
	defer timer.Stop()
	select {
	case <-cell.queued:
		if cell.failed != nil {
			return h.answerText(c, cell.failed)
		}
	case <-timer.C:
	}
	err = cell.answer()
	<-cell.queued
	if err != nil && cell.failed == nil { // the client does not get the rest
		failed := h.Code.Interrupt(context.WithoutCancel(r.Context()), cell.execution.ID())
		if failed != nil && !errors.Is(failed, code.ErrNotFound) {
			h.Logger.Error().Err(failed).Msg("cannot interrupt the cell of a client that left")
		}
	}
	if r.Context().Err() != nil {
		return nil
	}
	return err // the answer is cut: its client must not take a part for the whole
}

// cellOf returns the cell that a request asks for, of which everything is checked that takes no
// kernel.
func (h *handler) cellOf(c echo.Context) (code.Spec, error) {
	in, err := readBody[executeRequest](c)
	if err != nil {
		return code.Spec{}, err
	}
	if in.ContextID != "" && in.Language != "" {
		return code.Spec{}, refuse(http.StatusBadRequest, "body: only one of context_id and language may be given")
	}
	if err := h.requireThawed(); err != nil {
		return code.Spec{}, err
	}
	spec := code.Spec{Code: in.Code, ContextID: in.ContextID, Env: in.Env}
	if in.ContextID != "" {
		_, err = h.Code.Context(in.ContextID)
		return spec, err
	}
	spec.Default, spec.Language, spec.Dir = true, languageOf(in.Language), codeDirectory(c.Request())
	return spec, h.Code.CheckLanguage(c.Request().Context(), spec.Language)
}

func resultOfCell(o code.Outcome) activity.Result {
	if o.Error == nil {
		return activity.Result{}
	}
	return activity.Result{Failed: true, Error: o.Error.Name + ": " + o.Error.Value}
}

// errStopping cuts the answer of a cell that the end of the sandbox has ended. Clients must not
// take that for an error of the code.
var errStopping = errors.New("the sandbox is ending")

// cell is a cell on its way to its client.
type cell struct {
	ctx      context.Context
	response *echo.Response
	stopping func() bool // see [Options.Stopping]
	out      io.Writer
	line     []byte

	queued    chan struct{} // closed when the rest is known
	execution *code.Execution
	failed    error
}

// answer sends the lines of the cell until its end. An error means that the client did not get all
// of them.
func (l *cell) answer() error {
	header := l.response.Header()
	header.Set("Content-Type", mediaLines)
	header.Set("Cache-Control", "no-store")
	l.response.WriteHeader(http.StatusOK)
	l.out = serve.BoundedWriter(l.response, writeTime)
	if err := l.flush(); err != nil {
		return err
	}
	silence := time.NewTimer(cellKeepAlive)
	defer silence.Stop()
	if err := l.wait(l.queued, silence); err != nil {
		return err
	}
	if l.failed != nil {
		if l.ctx.Err() != nil {
			return l.ctx.Err()
		}
		l.say(errorLine{Type: "error", Name: "ExecutionError", Value: l.failed.Error()})
		l.say(typeLine{"end_of_execution"})
		return l.flush()
	}
	reader, err := l.execution.Log().Reader(0)
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		ended, err := l.catchUp(reader)
		if err == nil {
			err = l.flush()
		}
		if err != nil || ended {
			return err
		}
		if err := l.wait(reader.Wait(), silence); err != nil {
			return err
		}
	}
}

// wait waits for the channel to be closed, and sends a line now and then while nothing comes.
func (l *cell) wait(until <-chan struct{}, silence *time.Timer) error {
	silence.Reset(cellKeepAlive)
	for {
		select {
		case <-until:
			return nil
		case <-silence.C:
			l.say(typeLine{"keepalive"})
			if err := l.flush(); err != nil {
				return err
			}
			silence.Reset(cellKeepAlive)
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
}

// The lines of an answer.
type (
	typeLine struct {
		Type string `json:"type"`
	}
	textLine struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	errorLine struct {
		Type      string `json:"type"`
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
	}
	countLine struct {
		Type  string `json:"type"`
		Count int    `json:"execution_count"`
	}
)

// catchUp adds what the cell has said, or as much as is worth a flush, and reports whether that is
// all. Text of the same stream goes into one line.
func (l *cell) catchUp(reader *eventlog.Reader) (ended bool, err error) {
	var stream eventlog.Type
	var text []byte
	sayText := func() {
		if len(text) > 0 {
			l.say(textLine{string(stream), string(text)})
		}
		text = text[:0]
	}
	for len(l.line) < lineSize {
		event, ok, err := reader.Next()
		if errors.Is(err, io.EOF) {
			sayText()
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if !ok {
			break
		}
		if event.Type != stream || len(text) > lineSize {
			sayText()
			stream = event.Type
		}
		switch event.Type {
		case eventlog.TypeStdout, eventlog.TypeStderr:
			text = append(text, event.Text...)
			if !event.Partial {
				text = append(text, '\n')
			}
		case eventlog.TypeStatus: // clients have nothing for it
			l.say(textLine{string(eventlog.TypeStderr), string(event.Text) + "\n"})
		case eventlog.TypeResult, eventlog.TypeDisplay:
			result, err := resultOf(event.Text, event.Type == eventlog.TypeResult)
			if err != nil {
				return false, err
			}
			l.say(result)
		case eventlog.TypeCount:
			count, err := strconv.Atoi(string(event.Text))
			if err != nil {
				return false, err
			}
			l.say(countLine{"number_of_executions", count})
		case eventlog.TypeComplete:
			l.say(typeLine{"end_of_execution"})
		case eventlog.TypeError:
			outcome, err := code.ParseOutcome(event.Text)
			if err != nil {
				return false, err
			}
			if outcome.Error != nil && l.stopping() {
				return false, errStopping
			}
			if raised := outcome.Error; raised != nil {
				l.say(errorLine{"error", raised.Name, raised.Value, strings.Join(raised.Traceback, "\n")})
			}
			l.say(typeLine{"end_of_execution"})
		}
	}
	sayText()
	return false, nil
}

// resultKeys are the members of a result for types of content. All others are in extra.
var resultKeys = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
	"image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
	"application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}

// resultOf converts a result. A member without content is absent.
func resultOf(detail []byte, main bool) (map[string]any, error) {
	var content map[string]json.RawMessage
	if err := json.Unmarshal(detail, &content); err != nil {
		return nil, fmt.Errorf("read a result: %w", err)
	}
	out := map[string]any{"type": "result", "is_main_result": main}
	extra := make(map[string]json.RawMessage)
	for media, value := range content {
		key, known := resultKeys[media]
		switch text := ""; {
		case !known:
			extra[media] = value
		case string(value) == "null":
		case media == "text/plain" && json.Unmarshal(value, &text) == nil:
			out[key] = unquote(text)
		default:
			out[key] = value
		}
	}
	if len(extra) > 0 {
		out["extra"] = extra
	}
	return out, nil
}

// unquote drops the quotes around what shows a string.
func unquote(text string) string {
	if len(text) >= 2 && (text[0] == '\'' || text[0] == '"') && text[len(text)-1] == text[0] {
		return text[1 : len(text)-1]
	}
	return text
}

// say adds a line. Clients decode each part that arrives by itself and would break a character that
// is cut, so the line is ASCII.
func (l *cell) say(message any) {
	data, err := json.Marshal(message)
	if err != nil {
		panic(err) // strings, numbers and what has been JSON already can be encoded
	}
	l.line = append(appendASCII(l.line, data), '\n')
}

// appendASCII appends JSON with every character escaped that is not ASCII: it is in a string.
func appendASCII(b, data []byte) []byte {
	start := 0
	for i := 0; i < len(data); {
		if data[i] < utf8.RuneSelf {
			i++
			continue
		}
		b = append(b, data[start:i]...)
		char, size := utf8.DecodeRune(data[i:])
		if high, low := utf16.EncodeRune(char); high != utf8.RuneError {
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		} else {
			b = fmt.Appendf(b, `\u%04x`, char)
		}
		i += size
		start = i
	}
	return append(b, data[start:]...)
}

// flush sends the lines.
func (l *cell) flush() error {
	if len(l.line) > 0 {
		if _, err := l.out.Write(l.line); err != nil {
			return err
		}
		l.line = l.line[:0]
		if cap(l.line) > 4*lineSize { // of a large result
			l.line = nil
		}
	}
	return http.NewResponseController(l.response).Flush()
}
