package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/wire/sandboxhttp"
	"sandbox.internal/wire/sse"
)

// The kinds of an [Error]: test for them with errors.Is.
var (
	ErrBadRequest   = errors.New("bad request")      // 400, 413, 416
	ErrUnauthorized = errors.New("unauthorized")     // 401
	ErrForbidden    = errors.New("forbidden")        // 403
	ErrNotFound     = errors.New("not found")        // 404
	ErrConflict     = errors.New("conflict")         // 409
	ErrRateLimited  = errors.New("rate limited")     // 429
	ErrUnavailable  = errors.New("unavailable")      // 502, 503, 504
	ErrNoSpace      = errors.New("no space is left") // 507
)

// kinds are the sentinels by status.
var kinds = map[int]error{
	http.StatusBadRequest:                   ErrBadRequest,
	http.StatusRequestEntityTooLarge:        ErrBadRequest,
	http.StatusRequestedRangeNotSatisfiable: ErrBadRequest,
	http.StatusUnauthorized:                 ErrUnauthorized,
	http.StatusForbidden:                    ErrForbidden,
	http.StatusNotFound:                     ErrNotFound,
	http.StatusConflict:                     ErrConflict,
	http.StatusTooManyRequests:              ErrRateLimited,
	http.StatusBadGateway:                   ErrUnavailable,
	http.StatusServiceUnavailable:           ErrUnavailable,
	http.StatusGatewayTimeout:               ErrUnavailable,
	http.StatusInsufficientStorage:          ErrNoSpace,
}

// Error is an answer that is no success.
type Error struct {
	Status    int    // of HTTP
	Code      string // for programs: SANDBOX_NOT_FOUND; empty when the answer is not the service's
	Message   string // for people
	RequestID string // finds the request in the service's log; may be empty
	// RetryAfter is how long the service asks to wait; 0 when it does not.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "status %d", e.Status)
	if e.Code != "" {
		text.WriteString(" " + e.Code)
	}
	if e.Message != "" {
		text.WriteString(": " + e.Message)
	}
	if e.RequestID != "" {
		text.WriteString(" (X-Request-ID " + e.RequestID + ")")
	}
	return text.String()
}

// Is reports whether the error is of a kind.
func (e *Error) Is(kind error) bool { return kinds[e.Status] == kind && kind != nil }

// StateError says that a sandbox will not reach the state that was waited for.
type StateError struct {
	ID      string
	State   string // state of the sandbox
	Want    string // state that the caller waited for
	Reason  string // the cause for programs, such as IMAGE_PULL_ERROR
	Message string // the cause for people
}

// Error implements error.
func (e *StateError) Error() string {
	return fmt.Sprintf("sandbox %s is %s, not %s: %s: %s", e.ID, e.State, e.Want, e.Reason, e.Message)
}

// StreamError says that a stream ended before what it shows did. The data delivered before is right
// and complete up to there.
type StreamError struct {
	What string // subject of the stream
	Err  error  // why it could not go on
}

// Error implements error.
func (e *StreamError) Error() string {
	if errors.Is(e.Err, sse.ErrTooLarge) {
		return fmt.Sprintf("%s: it cannot be followed: %v", e.What, e.Err)
	}
	return fmt.Sprintf("%s: the stream was cut and could not be resumed: %v", e.What, e.Err)
}

// Unwrap returns why the stream could not go on.
func (e *StreamError) Unwrap() error { return e.Err }

// errTooLarge is an answer beyond its bound.
var errTooLarge = errors.New("the answer is too large")

// errorOf reads an answer that is no success.
func errorOf(response *http.Response) *Error {
	failure := &Error{
		Status:    response.StatusCode,
		RequestID: clean(response.Header.Get("X-Request-Id"), 128),
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		failure.RetryAfter = time.Duration(seconds) * time.Second
	}
	data, err := readBounded(response.Body, maxError)
	var body struct{ Code, Message string }
	switch {
	case err != nil && len(data) == 0:
		failure.Message = http.StatusText(response.StatusCode)
	case json.Unmarshal(data, &body) == nil && body.Message != "":
		failure.Code, failure.Message = clean(body.Code, 64), clean(body.Message, maxMessage)
	case plainToTLS(response.StatusCode, data):
		failure.Message = sandboxhttp.ErrNeedsTLS.Error()
	default:
		failure.Message = clean(strings.TrimSpace(string(data)), 200)
	}
	return failure
}

// plainToTLS reports whether an answer is that of a server that expects TLS: of Go, nginx or
// Apache.
func plainToTLS(status int, body []byte) bool {
	return status == http.StatusBadRequest && (bytes.Contains(body, []byte("HTTP request to an HTTPS server")) ||
		bytes.Contains(body, []byte("HTTP request was sent to HTTPS port")) || bytes.Contains(body, []byte("speaking plain HTTP to an SSL-enabled server")))
}

// clean takes out of a foreign text what moves the cursor of a terminal, and bounds it in bytes.
func clean(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text
}
