package api

// The rendering of events, for tests of what no stream can be made to say.
var (
	AppendEvent  = appendEvent
	AppendExit   = appendExit
	AppendPing   = appendPing
	AppendString = appendString
)
