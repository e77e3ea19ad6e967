package serve

import (
	"net/http"
	"strings"
)

// Tracer follows requests across services. Many goroutines call the method concurrently, which must
// be quick.
type Tracer interface {
	// Trace is called when a request arrives. It may change the headers of the request that carry
	// the trace, which what the request is forwarded to gets. The returned function is called once,
	// when the answer is complete or given up.
	Trace(r *http.Request) (end func(Traced))
}

// Traced is a request with its answer.
type Traced struct {
	Exchange
	RequestID string
	Route     string // as it is registered; empty for none
	Field     func(key string) any
}

// headerTraceparent carries a trace (W3C Trace Context), in net/http's own spelling.
const headerTraceparent = "Traceparent"

// traceID returns the id of the trace that a request belongs to, empty when its header has none
// that is valid.
func traceID(r *http.Request) string {
	value := r.Header.Get(headerTraceparent)
	const versioned, id, parent, flags = 2, 32, 16, 2
	parts := strings.Split(value[:min(len(value), versioned+id+parent+flags+3)], "-")
	if len(parts) != 4 || len(parts[0]) != versioned || parts[0] == "ff" || !isHex(parts[0]) ||
		len(parts[1]) != id || !isHex(parts[1]) || strings.Trim(parts[1], "0") == "" ||
		len(parts[2]) != parent || !isHex(parts[2]) || strings.Trim(parts[2], "0") == "" ||
		len(parts[3]) != flags || !isHex(parts[3]) {
		return ""
	}
	return parts[1]
}

// isHex reports whether a text has lower-case hexadecimal digits alone.
func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

// trace begins the span of a request, whose id is known.
func (s *Server) trace(state *requestState, r *http.Request) {
	if s.options.Tracer != nil {
		state.traced = s.options.Tracer.Trace(r)
	}
	state.trace = traceID(r)
}

// traceEnd ends the span of a request.
func (s *Server) traceEnd(state *requestState, exchange Exchange) {
	if state.traced != nil {
		state.traced(Traced{Exchange: exchange, RequestID: state.id, Route: state.line.route, Field: state.field})
	}
}
