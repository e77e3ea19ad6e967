package v1alpha1

import "errors"

// Why a batch gets no pods from its Pool, for errors.Is. Waiting helps against the first alone.
var (
	// ErrNoPool means that the Pool that the batch names does not exist, or is being deleted and
	// gives no more.
	ErrNoPool = errors.New("there is no such Pool")
	// ErrInvalidPool means that the Pool's template breaks a rule, so that it makes no pods, or that
	// it makes others by now than the batch requires (AnnotationRequires).
	ErrInvalidPool = errors.New("the Pool cannot be used")
	// ErrTooLarge means that the API server does not take the names of all pods that the batch asks
	// for, beside what its annotations hold already.
	ErrTooLarge = errors.New("the BatchSandbox has no room for the names of its pods")
)
