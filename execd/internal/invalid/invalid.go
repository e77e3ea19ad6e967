// Package invalid is the error for a request that breaks a rule.
package invalid

import (
	"errors"
	"fmt"
)

// Error is what a request breaks: its text names the field and the rule.
type Error string

// Error returns the text.
func (e Error) Error() string { return string(e) }

// Errorf returns an Error. It wraps nothing, so of an error among args only the text is left.
func Errorf(format string, args ...any) error { return Error(fmt.Sprintf(format, args...)) }

// Is reports whether an error is an Error, or wraps one.
func Is(err error) bool {
	var e Error
	return errors.As(err, &e)
}
