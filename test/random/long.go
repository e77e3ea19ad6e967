package random

import "os"

// LongVariable is the environment variable that has tests of random schedules, and tests of what
// shows after many repetitions, go on for as long as in `make test-all`, which sets it.
const LongVariable = "TEST_LONG"

// Long returns how long, or how often, such a test goes on: the first value in `make test`, and the
// second one where [LongVariable] has a value. A test calls it while it runs: the go command knows
// then that the result depends on the variable.
func Long[T any](short, long T) T {
	if os.Getenv(LongVariable) != "" {
		return long
	}
	return short
}
