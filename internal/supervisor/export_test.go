package supervisor

import "time"

// NewBackoff gives the tests of this package the pauses between restarts without the wait.
func NewBackoff(longest time.Duration) *backoff { return &backoff{longest: longest} }

// Next is next for the tests.
var Next = (*backoff).next
