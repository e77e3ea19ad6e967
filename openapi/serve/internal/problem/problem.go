// Package problem has the errors that clients receive.
package problem

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// StatusClientGone is the log's status for a request whose client left before the
// answer. No client receives it.
const StatusClientGone = 499

// Problem is an error as the client receives it. It is an error itself, so that code
// close to HTTP returns one instead of inventing a kind.
type Problem struct {
	// Status is the HTTP status.
	Status int
	// Code is what programs branch on, UPPER_SNAKE; empty means the usual one of
	// Status.
	Code string
	// Message is for people: one line that names the field or path and the rule.
	Message string
	// RetryAfter, when positive, is sent as Retry-After, rounded up to seconds.
	RetryAfter time.Duration
}

func (p *Problem) Error() string { return p.Message }

// Invalid is a request that breaks the contract: 400. The message names the place
// and the rule, such as "body/timeout: number must be at least 60".
func Invalid(format string, args ...any) *Problem {
	return New(http.StatusBadRequest, format, args...)
}

// Unauthorized is a missing or wrong key: 401.
func Unauthorized(format string, args ...any) *Problem {
	return New(http.StatusUnauthorized, format, args...)
}

// Forbidden is a valid key whose scope does not allow the request: 403.
func Forbidden(format string, args ...any) *Problem {
	return New(http.StatusForbidden, format, args...)
}

// New is a problem with the usual code of its status.
func New(status int, format string, args ...any) *Problem {
	return &Problem{Status: status, Code: CodeOf(status), Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the usual code of a status.
func CodeOf(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "INVALID_REQUEST_BODY"
	case http.StatusRequestEntityTooLarge:
		return "REQUEST_TOO_LARGE"
	case http.StatusRequestedRangeNotSatisfiable:
		return "RANGE_NOT_SATISFIABLE"
	case StatusClientGone:
		return "CLIENT_CLOSED_REQUEST"
	}
	letters := strings.NewReplacer(" ", "_", "-", "_", "'", "")
	return strings.ToUpper(letters.Replace(http.StatusText(status)))
}
