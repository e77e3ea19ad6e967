package box

import (
	"errors"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// kinds has the kinds of errors, the first that applies to joined ones first: while the engine does
// not answer, what else is known of the box may be out of date.
var kinds = []struct{ from, to error }{
	{engine.ErrUnavailable, lifecycle.ErrBoxUnavailable},
	{engine.ErrNotFound, lifecycle.ErrNoBox},
	{engine.ErrNotRunning, lifecycle.ErrBoxNotAlive},
}

// translated returns an engine's error as one of lifecycle, with its text.
func translated(err error) error {
	for _, kind := range kinds {
		if errors.Is(err, kind.from) {
			return boxError{kind: kind.to, cause: err}
		}
	}
	return err
}

// boxError is an engine's error of a kind that the rules of sandboxes distinguish.
type boxError struct{ kind, cause error }

func (e boxError) Error() string { return e.cause.Error() }

func (e boxError) Unwrap() []error { return []error{e.kind, e.cause} }

// failure returns why a launch failed, for good, in the terms of a sandbox's status.
func failure(err error) *lifecycle.BoxFailure {
	var known *lifecycle.BoxFailure
	if errors.As(err, &known) {
		return known
	}
	reason := lifecycle.ReasonContainerError
	switch {
	case errors.Is(err, engine.ErrImage):
		reason = lifecycle.ReasonImagePullError
	case errors.Is(err, engine.ErrNetwork):
		reason = lifecycle.ReasonNetworkError
	case errors.Is(err, engine.ErrNotFound):
		reason = lifecycle.ReasonRemovedExternally
	}
	return &lifecycle.BoxFailure{Reason: reason, Message: err.Error()}
}
