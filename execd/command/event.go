package command

import "time"

// Type is the type of an event (execd document, "Events").
type Type string

// The event types of a command's stream. Keep-alive pings are the transport's; they are no part of the log.
const (
	TypeInit     Type = "init"               // Text is the command's id
	TypeStatus   Type = "status"             // Text says what happened to the stream itself
	TypeStdout   Type = "stdout"             // Text is output
	TypeStderr   Type = "stderr"             // Text is output
	TypeComplete Type = "execution_complete" // the command ended with exit code 0; the last event
	TypeError    Type = "error"              // the command ended in any other way; the last event
)

// Event is one event of a command's stream.
type Event struct {
	ID   int64 // 1 for the first event of the command, then without gaps
	Type Type
	Time int64 // Unix milliseconds
	// Text is a line of output without its newline, or a fragment of one when Partial is set. It is valid until the next call of Next.
	Text    []byte
	Partial bool
	// Exit tells how the command ended; only in the last event.
	Exit *Exit
}

// Exit is how a command ended.
type Exit struct {
	// Code is the exit code, 128+N after signal N, and nil after a timeout.
	Code *int
	// Reason says in words why the command failed; empty for exit code 0.
	Reason string
	// TimedOut tells that the command ran into its timeout.
	TimedOut bool
	// Duration is from start to end; At is the end.
	Duration time.Duration
	At       time.Time
}

// Type returns the type of the terminal event: a stream has exactly one.
func (e Exit) Type() Type {
	if e.Code != nil && *e.Code == 0 {
		return TypeComplete
	}
	return TypeError
}
