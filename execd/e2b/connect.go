package e2b

import (
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
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/openapi/serve"
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
	case errors.Is(err, freeze.ErrFrozen):
		return failf(codeUnavailable, "the sandbox is paused")
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
		if failed == nil {
			out, err := call(c, in)
			if err == nil {
				return c.JSON(http.StatusOK, out)
			}
			failed = h.toFailure(err)
		}
		return c.JSON(statuses[failed.Code], failed)
	}
}

func readUnary[In any](c echo.Context) (*In, *failure) {
	if failed := checkMedia(c.Request(), mediaUnary); failed != nil {
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

// checkMedia refuses a message that is not JSON. A client sees 415 as an unknown error with this
// text.
func checkMedia(r *http.Request, want string) *failure {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != want {
		return failf(codeUnimplemented, "Content-Type %.64q: must be %s; messages in binary form are not supported",
			r.Header.Get("Content-Type"), want)
	}
	if encoding := r.Header.Get("Connect-Content-Encoding"); encoding != "" && encoding != "identity" {
		return failf(codeUnimplemented, "Connect-Content-Encoding %.64q: compressed messages are not supported", encoding)
	}
	return nil
}

// stream is the answer to a call with many messages. It is safe for concurrent use.
type stream struct {
	mu     sync.Mutex
	writer io.Writer
	flush  func() error
}

// writeTime is how long a client may take to accept one message before its stream is given up.
const writeTime = 30 * time.Second

// streaming returns the handler of a call with a stream of answers. The call's context ends when
// the client goes away or execd stops.
func streaming[In any](h *handler, call func(ctx context.Context, c echo.Context, in *In, out *stream) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if failed := checkMedia(r, mediaStream); failed != nil {
			return c.JSON(http.StatusUnsupportedMediaType, failed)
		}
		c.Response().Header().Set("Content-Type", mediaStream)
		out := &stream{
			writer: serve.BoundedWriter(c.Response(), writeTime),
			flush:  http.NewResponseController(c.Response()).Flush,
		}
		in, failed := readEnvelope[In](r.Body)
		if failed != nil {
			return out.end(failed)
		}
		serve.WithoutDeadline(r)
		ctx, cancel := serve.UntilDraining(r.Context())
		defer cancel()
		if err := call(ctx, c, in, out); err != nil {
			if ctx.Err() != nil && r.Context().Err() != nil { // the client is gone
				return nil
			}
			return out.end(h.toFailure(err))
		}
		return out.end(nil)
	}
}

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
	framed := make([]byte, envelopeHeader, envelopeHeader+len(body))
	framed[0] = flags
	binary.BigEndian.PutUint32(framed[1:], uint32(len(body)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.writer.Write(append(framed, body...)); err != nil {
		return err
	}
	return s.flush()
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
