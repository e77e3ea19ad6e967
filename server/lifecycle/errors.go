package lifecycle

import "fmt"

// Kind is the closed set of ways in which a request can fail. The API layer has one table from
// kinds to status codes.
type Kind string

// The kinds of failure.
const (
	KindInvalid     Kind = "invalid"     // the request breaks a rule
	KindForbidden   Kind = "forbidden"   // the key's scope does not allow it
	KindNotFound    Kind = "not found"   // no such sandbox
	KindConflict    Kind = "conflict"    // the sandbox's state does not allow it
	KindUnavailable Kind = "unavailable" // not now; the same request may work later
	KindUnsupported Kind = "unsupported" // the backend does not have the ability
	KindNoImage     Kind = "no image"    // no such image
	KindNoKey       Kind = "no key"      // no such API key
	KindImagePull   Kind = "image pull"  // the image cannot be had from its registry
	KindNoSnapshot  Kind = "no snapshot" // no such snapshot
)

// Error is a failure that the client may see. Every other error is internal and appears in the log
// only.
type Error struct {
	Kind    Kind
	Message string // names the field and the rule
	// RetryAfter is how many seconds to wait before the same request may work; 0 means that waiting
	// will not help.
	RetryAfter int
}

// Error implements the error interface.
func (e *Error) Error() string { return e.Message }

// Invalidf returns an Error of KindInvalid.
func Invalidf(format string, args ...any) *Error {
	return &Error{Kind: KindInvalid, Message: fmt.Sprintf(format, args...)}
}

// Forbiddenf returns an Error of KindForbidden.
func Forbiddenf(format string, args ...any) *Error {
	return &Error{Kind: KindForbidden, Message: fmt.Sprintf(format, args...)}
}

// Unsupportedf returns an Error of KindUnsupported. The text is a sentence that says what it would
// take.
func Unsupportedf(format string, args ...any) *Error {
	return &Error{Kind: KindUnsupported, Message: fmt.Sprintf(format, args...)}
}

// Conflictf returns an Error of KindConflict.
func Conflictf(format string, args ...any) *Error {
	return &Error{Kind: KindConflict, Message: fmt.Sprintf(format, args...)}
}

// NotFound returns an Error of KindNotFound for the sandbox's id.
func NotFound(id string) *Error {
	return &Error{Kind: KindNotFound, Message: fmt.Sprintf("sandbox %q does not exist", id)}
}

// Unavailable returns the Error of KindUnavailable for a part of the service that does not answer,
// such as "the container engine". A caller with a cause wraps both: the client gets the Error
// alone.
func Unavailable(part string) *Error {
	return &Error{Kind: KindUnavailable, Message: part + " does not answer", RetryAfter: 1}
}

// Stopping returns the Error of KindUnavailable for a call that the end of the service interrupts.
func Stopping() *Error {
	return &Error{Kind: KindUnavailable, Message: "the service is stopping", RetryAfter: 1}
}

// Conflict returns the Error of KindConflict for a transition that the table does not have. It
// names the states that allow the action, if any do.
func (s State) Conflict(action string, allowed ...State) *Error {
	if len(allowed) == 0 {
		return Conflictf("cannot %s: the sandbox is %s", action, s)
	}
	return Conflictf("cannot %s: the sandbox is %s; it must be %s", action, s, join(allowed))
}

func join(states []State) string {
	text := ""
	for i, s := range states {
		switch {
		case i == 0:
		case i == len(states)-1:
			text += " or "
		default:
			text += ", "
		}
		text += string(s)
	}
	return text
}
