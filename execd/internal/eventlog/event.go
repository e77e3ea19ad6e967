package eventlog

// Type is the type of an event (execd document, "Events").
type Type string

// The event types of a stream. Keep-alive pings are the transport's; they are no part of a log.
const (
	TypeInit     Type = "init"               // Text is the id of what is run
	TypeStatus   Type = "status"             // Text says what happened to the stream itself
	TypeStdout   Type = "stdout"             // Text is output
	TypeStderr   Type = "stderr"             // Text is output
	TypeResult   Type = "result"             // Text is a detail that the writer defines
	TypeDisplay  Type = "display"            // likewise; something to show beside the result
	TypeCount    Type = "execution_count"    // likewise
	TypeComplete Type = "execution_complete" // likewise; it ended well, the last event
	TypeError    Type = "error"              // likewise; it ended in any other way, the last event
)

// Event is one event of a log.
type Event struct {
	ID   int64 // 1 for the first event, then without gaps
	Type Type
	Time int64 // Unix milliseconds
	// Text is a line of output without its newline, a fragment of one when Partial is set, or what
	// the type says. It is valid until the next call of Next.
	Text    []byte
	Partial bool
}
