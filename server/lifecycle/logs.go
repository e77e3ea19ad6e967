package lifecycle

import "time"

// LogOptions selects a part of what a sandbox's entrypoint printed.
type LogOptions struct {
	// Tail is how many of the last lines to begin with; nil means all that are kept.
	Tail *int
	// Since leaves out what was printed before; zero leaves out nothing. It says nothing to the log
	// that is kept of an ended sandbox.
	Since time.Time
	// Follow goes on with what is printed, until the sandbox's container ends.
	Follow bool
}

// LogFollows ends the first line of a status message that the end of the sandbox's log follows.
const LogFollows = "; the last lines of its log:"

// LogAfterMessage returns the end of a log as status messages carry it, empty when there is none.
func LogAfterMessage(log string) string {
	if log == "" {
		return ""
	}
	return LogFollows + "\n" + log
}
