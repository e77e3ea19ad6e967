package initd

// Backoff gives the tests of this package the restart delays without the wait.
type Backoff = backoff

// Next is next for the tests.
var Next = (*backoff).next
