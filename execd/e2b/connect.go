package e2b

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/execd/terminal"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

// The Connect protocol with JSON, as E2B's clients for JavaScript and Python speak it
// (connectrpc.com/docs/protocol): a unary call is a JSON body and a JSON answer; a stream is a
// sequence of envelopes, of which the last carries the error or nothing. Its library with Protocol
// Buffers would take 4 MB of every sandbox, so messages in binary form are refused.
const (
	mediaUnary  = "application/json"
	mediaStream = "application/connect+json"

	// maxMessage bounds a message of a client, in bytes.
	maxMessage = 8 << 20

	flagCompressed = 1
	flagEnd        = 2
	envelopeHeader = 5
)

// errorCode is an error code of Connect.
type errorCode string

const (
	codeCanceled           errorCode = "canceled"
	codeInvalidArgument    errorCode = "invalid_argument"
	codeUnauthenticated    errorCode = "unauthenticated"
	codePermissionDenied   errorCode = "permission_denied"
	codeNotFound           errorCode = "not_found"
	codeAlreadyExists      errorCode = "already_exists"
	codeFailedPrecondition errorCode = "failed_precondition"
	codeResourceExhausted  errorCode = "resource_exhausted"
	codeDeadlineExceeded   errorCode = "deadline_exceeded"
	codeUnimplemented      errorCode = "unimplemented"
	codeUnavailable        errorCode = "unavailable"
	codeInternal           errorCode = "internal"
)

// statuses are the HTTP status codes of unary errors.
var statuses = map[errorCode]int{
	codeCanceled:        499,
	codeInvalidArgument: http.StatusBadRequest, codeUnauthenticated: http.StatusUnauthorized,
	codePermissionDenied: http.StatusForbidden, codeNotFound: http.StatusNotFound,
	codeAlreadyExists: http.StatusConflict, codeFailedPrecondition: http.StatusBadRequest,
	codeResourceExhausted: http.StatusTooManyRequests, codeDeadlineExceeded: http.StatusGatewayTimeout,
	codeUnimplemented: http.StatusNotImplemented, codeUnavailable: http.StatusServiceUnavailable,
	codeInternal: http.StatusInternalServerError,
}

// failure is an error of Connect.
type failure struct {
	Code    errorCode `json:"code"`
	Message string    `json:"message"`

	status int // of HTTP where the code's does not fit; 0 otherwise
}

// Error implements error.
func (f *failure) Error() string { return string(f.Code) + ": " + f.Message }

func failf(code errorCode, format string, args ...any) *failure {
	return &failure{Code: code, Message: fmt.Sprintf(format, args...)}
}

// toFailure returns the form that an error has for clients. Handlers return a *failure for what a
// client can act on.
func (h *handler) toFailure(err error) *failure {
	var known *failure
	switch {
	case errors.As(err, &known):
		return known
	case invalid.Is(err):
		return failf(codeInvalidArgument, "%v", err)
	case errors.Is(err, freeze.ErrFrozen):
		return failf(codeUnavailable, "the sandbox is paused")
	case errors.Is(err, command.ErrClosed), errors.Is(err, terminal.ErrClosed):
		return failf(codeUnavailable, "the sandbox is stopping")
	case errors.Is(err, syscall.EAGAIN): // of fork(2)
		return failf(codeResourceExhausted, "the sandbox has as many processes as it may have: end some and try again")
	case errors.Is(err, context.DeadlineExceeded):
		return failf(codeDeadlineExceeded, "the request has exceeded its Connect-Timeout-Ms")
	case errors.Is(err, context.Canceled):
		return failf(codeCanceled, "the client has ended the request")
	}
	h.Logger.Error().Err(err).Msg("a request of a client of E2B failed")
	return failf(codeInternal, "%v", err)
}

// empty is a message without fields.
type empty struct{}

// unary returns the handler of a call with one answer.
func unary[In, Out any](h *handler, call func(c echo.Context, in *In) (*Out, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		in, failed := readUnary[In](c)
		var limit time.Duration
		if failed == nil {
			limit, failed = timeout(c.Request())
		}
		if failed != nil {
			return sendFailure(c, failed)
		}
		if limit > 0 {
			ctx, cancel := context.WithTimeout(c.Request().Context(), limit)
			defer cancel()
			c.SetRequest(c.Request().WithContext(ctx))
		}
		out, err := call(c, in)
		if err != nil {
			return sendFailure(c, h.toFailure(err))
		}
		return c.JSON(http.StatusOK, out)
	}
}

// sendFailure answers with an error that is no stream.
func sendFailure(c echo.Context, failed *failure) error {
	return c.JSON(cmp.Or(failed.status, statuses[failed.Code]), failed)
}

func readUnary[In any](c echo.Context) (*In, *failure) {
	if failed := checkMedia(c.Request(), mediaUnary, "Content-Encoding"); failed != nil {
		return nil, failed
	}
	body, err := io.ReadAll(io.LimitReader(c.Request().Body, maxMessage+1))
	if err != nil {
		return nil, failf(codeInvalidArgument, "body: did not arrive completely")
	}
	return decode[In](body)
}

// decode reads a message. Fields that are not known are ignored, as Protocol Buffers do.
func decode[In any](body []byte) (*In, *failure) {
	if len(body) > maxMessage {
		return nil, failf(codeResourceExhausted, "body: is longer than %d bytes", maxMessage)
	}
	in := new(In)
	if len(body) > 0 {
		if err := json.Unmarshal(body, in); err != nil {
			return nil, failf(codeInvalidArgument, "body: %v", err)
		}
	}
	return in, nil
}

// checkMedia refuses messages that are not JSON, or that are compressed according to a header.
func checkMedia(r *http.Request, want, encodings string) *failure {
	given := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(given); err != nil || media != want {
		failed := failf(codeUnimplemented, "Content-Type %.64q: must be %s; binary messages are not supported", given, want)
		failed.status = http.StatusUnsupportedMediaType
		return failed
	}
	if encoding := r.Header.Get(encodings); encoding != "" && encoding != "identity" {
		failed := failf(codeUnimplemented, "%s %.64q: compressed messages are not supported", encodings, encoding)
		failed.status = http.StatusUnsupportedMediaType
		return failed
	}
	return nil
}

// stream is the answer to a call with many messages. It is safe for concurrent use.
type stream struct {
	mu     sync.Mutex
	writer io.Writer
	flush  func() error
	failed bool // something could not be written
}

// writeTime is how long a client may take to accept one message before its stream is given up.
const writeTime = 30 * time.Second

// streaming returns the handler of a call with a stream of answers. The call's context ends when
// the client goes away or execd stops; that of the request does not end when execd stops.
func streaming[In any](h *handler, call func(ctx context.Context, c echo.Context, in *In, out *stream) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if failed := checkMedia(r, mediaStream, "Connect-Content-Encoding"); failed != nil {
			return sendFailure(c, failed)
		}
		out := newStream(c)
		in, failed := readEnvelope[In](r.Body)
		if failed != nil {
			return out.end(failed)
		}
		ctx, cancel := listen.UntilDraining(r.Context())
		defer cancel()
		err := call(ctx, c, in, out)
		if r.Context().Err() != nil || out.failed {
			panic(http.ErrAbortHandler) // the client is gone, or must not take what it has for the whole
		}
		switch {
		case err == nil:
			return out.end(nil)
		case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
			return out.end(failf(codeUnavailable, "the sandbox is stopping"))
		}
		return out.end(h.toFailure(err))
	}
}

// newStream begins the answer.
func newStream(c echo.Context) *stream {
	header := c.Response().Header()
	header.Set("Content-Type", mediaStream)
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Accel-Buffering", "no")
	return &stream{
		writer: respond.BoundedWriter(c.Response(), writeTime),
		flush:  http.NewResponseController(c.Response()).Flush,
	}
}

// readEnvelope reads the only message of a body, to the body's end: from there on net/http notices
// when the client goes away.
func readEnvelope[In any](body io.Reader) (*In, *failure) {
	var header [envelopeHeader]byte
	if _, err := io.ReadFull(body, header[:]); err != nil {
		return nil, failf(codeInvalidArgument, "body: has no message")
	}
	length := binary.BigEndian.Uint32(header[1:])
	if header[0]&flagCompressed != 0 {
		return nil, failf(codeUnimplemented, "body: compressed messages are not supported")
	}
	if length > maxMessage {
		return nil, failf(codeResourceExhausted, "body: is longer than %d bytes", maxMessage)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(body, message); err != nil {
		return nil, failf(codeInvalidArgument, "body: did not arrive completely")
	}
	switch _, err := io.ReadFull(body, header[:1]); {
	case err == nil:
		return nil, failf(codeInvalidArgument, "body: has more than one message")
	case !errors.Is(err, io.EOF):
		return nil, failf(codeInvalidArgument, "body: did not arrive completely")
	}
	return decode[In](message)
}

// send sends one message at once.
func (s *stream) send(message any) error { return s.envelope(0, message) }

// end sends the last message of the stream.
func (s *stream) end(failed *failure) error {
	var last struct {
		Error *failure `json:"error,omitempty"`
	}
	last.Error = failed
	return s.envelope(flagEnd, last)
}

func (s *stream) envelope(flags byte, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return s.write(flags, append(make([]byte, envelopeHeader, envelopeHeader+len(body)), body...))
}

// write sends a message that has room for its header before it.
func (s *stream) write(flags byte, framed []byte) error {
	framed[0] = flags
	binary.BigEndian.PutUint32(framed[1:], uint32(len(framed)-envelopeHeader))
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.writer.Write(framed)
	if err == nil {
		err = s.flush()
	}
	if err != nil {
		s.failed = true
	}
	return err
}

// keepAlive returns how often a stream without news sends a message that says so: what the client
// asks for, 90 s otherwise.
func keepAlive(r *http.Request) time.Duration {
	if seconds, err := time.ParseDuration(strings.TrimSpace(r.Header.Get("Keepalive-Ping-Interval")) + "s"); err == nil && seconds >= time.Second {
		return seconds
	}
	return 90 * time.Second
}

// timeout returns the client's Connect-Timeout-Ms; 0 means none.
func timeout(r *http.Request) (time.Duration, *failure) {
	value := r.Header.Get("Connect-Timeout-Ms")
	if value == "" {
		return 0, nil
	}
	limit, err := time.ParseDuration(value + "ms")
	if err != nil || limit <= 0 || limit > 365*24*time.Hour {
		return 0, failf(codeInvalidArgument, "Connect-Timeout-Ms %.32q: must be milliseconds, above 0", value)
	}
	return limit, nil
}
