package e2b

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/code"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/invalid"
)

// headerWait is how long a cell may take to be queued before its response begins: clients wait for
// the headers for a limited time. A failure after that is an error line of the cell.
const headerWait = time.Second

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

// answerText responds with an error of the code interpreter, whose errors are plain text.
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

// readBody decodes the body of a request. An unknown member is an error, because a client would not
// notice that it was ignored.
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

type executeRequest struct {
	Code      string            `json:"code"`
	ContextID string            `json:"context_id"`
	Language  string            `json:"language"`
	Env       map[string]string `json:"env_vars"`
}

// execute runs a cell and responds with its output, one message per line.
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
			h.Logger.Error().Err(failed).Msg("cannot interrupt the cell of a client that disconnected")
		}
	}
	if r.Context().Err() != nil {
		return nil
	}
	return err // it breaks the connection off, so that the client notices that the response is incomplete
}

// cellOf returns the cell of a request, after every check that needs no kernel.
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
