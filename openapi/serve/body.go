package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve/internal/check"
	"sandbox.internal/openapi/serve/internal/problem"
	"sandbox.internal/openapi/serve/listen"
)

// checkBody validates a JSON body and leaves every other one to its handler,
// unread: uploads are larger than memory.
func checkBody(body *rules.Body, c echo.Context, limit int64) error {
	if body == nil {
		return nil
	}
	r := c.Request()
	if r.ContentLength == 0 {
		return emptyBody(body)
	}
	contentType := r.Header.Get(echo.HeaderContentType)
	media := body.Find(contentType)
	if media == nil {
		return problem.Invalid("header Content-Type: must be %s", body.Accepts())
	}
	// By the accepted type, not by what was sent: the generated code reads a body as JSON although
	// the parameters of its type are malformed. It distinguishes the types of an operation that has
	// several by their exact letters, while a client may write them in capitals (RFC 9110, 8.3.1).
	if len(contentType) >= len(media.Type) && strings.EqualFold(contentType[:len(media.Type)], media.Type) {
		r.Header.Set(echo.HeaderContentType, media.Type+contentType[len(media.Type):])
	}
	if !check.IsJSON(media.Type) {
		listen.DeadlinePerPart(r)
		watched := &watchedBody{ReadCloser: r.Body}
		r.Body = watched
		if state := stateOf(r.Context()); state != nil {
			state.body = watched
		}
		return nil
	}

	// MaxBytesReader marks the connection for closing only through net/http's own
	// writer; behind echo's the unread rest would be taken for the next request.
	writer := c.Response().Writer
	if layer, ok := writer.(*takeover); ok {
		writer = layer.ResponseWriter
	}
	data, err := io.ReadAll(http.MaxBytesReader(writer, r.Body, limit))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return err
	}
	if err != nil {
		return undelivered(err)
	}
	if len(data) == 0 {
		r.Body, r.ContentLength = http.NoBody, 0
		return emptyBody(body)
	}
	value, err := check.JSON(data)
	if err != nil {
		return err
	}
	if media.Schema != nil {
		if broken := media.Schema.Check(value); broken != nil {
			return check.Explain("body", broken)
		}
	}
	if state := stateOf(r.Context()); state != nil {
		state.json = data
	}
	r.Body = validatedBody{io.NopCloser(bytes.NewReader(data)), value}
	r.ContentLength = int64(len(data))
	return nil
}

func emptyBody(body *rules.Body) error {
	if body.Required {
		return problem.Invalid("body: is required")
	}
	return nil
}

// validatedBody is a request body that was decoded and validated. The generated
// code binds ValidatedValue where it finds one, by exact member names. A second
// decoding by encoding/json would ignore case, and a member "Timeout", which no rule
// has seen, would overwrite the validated "timeout".
type validatedBody struct {
	io.ReadCloser
	value any
}

// ValidatedValue is found by oapi-codegen's runtime through an interface.
func (b validatedBody) ValidatedValue() any { return b.value }

// watchedBody records that the client failed to deliver, which the errors of inner handlers do not
// show.
type watchedBody struct {
	io.ReadCloser
	err error
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

func (b *watchedBody) failed() bool { return b != nil && b.err != nil }

// problem is what the client gets to see of a body that failed.
func (b *watchedBody) problem() *problem.Problem { return undelivered(b.err) }

func undelivered(err error) *problem.Problem {
	if listen.Late(err) {
		return problem.Invalid("body: did not arrive in time")
	}
	return problem.Invalid("body: ended before its announced end")
}

// SetBodyTime sets how long each part of a body that is not JSON may take to arrive. It is for
// handlers that have checked who sends it.
func SetBodyTime(ctx context.Context, limit time.Duration) {
	if state := stateOf(ctx); state != nil && state.body != nil {
		listen.SetBodyTime(state.body.ReadCloser, limit)
	}
}
