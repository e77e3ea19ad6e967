package serve

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve/respond"
)

// Observer gets the requests, for measurements. Many goroutines call the methods concurrently,
// which must be quick.
type Observer interface {
	// RequestBegan is called when a request arrives. RequestEnded follows in any case.
	RequestBegan()
	// StreamOpened is called when the answer turns out to be a stream: events that may
	// never end, or a connection that uses another protocol from now on.
	StreamOpened()
	// RequestEnded is called when the answer is complete or given up.
	RequestEnded(Exchange)
}

// Exchange is a request with its answer.
type Exchange struct {
	// Operation is the operationId, or the name that [Server.Named] gave; empty when
	// the request was for no route, or for one without a name.
	Operation string
	// Status is the HTTP status that was sent.
	Status int
	// Took is the time from the request's header to the end of the answer.
	Took time.Duration
	// Stream reports that StreamOpened was called for it.
	Stream bool
}

// Named is the middleware that gives a route outside the document the name under
// which it is logged, measured and audited. It comes before [Server.Authenticated].
// The successes of a quiet one are logged at debug level.
func (s *Server) Named(operation string, quiet bool) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if state := stateOf(c.Request().Context()); state != nil {
				state.operation, state.quiet = operation, quiet
			}
			return next(c)
		}
	}
}

func (s *Server) observeBegin(c echo.Context) {
	state, observer := stateOf(c.Request().Context()), s.options.Observer
	if observer != nil {
		observer.RequestBegan()
	}
	opened := func() {
		if !state.stream {
			state.stream = true
			if observer != nil {
				observer.StreamOpened()
			}
		}
	}
	response := c.Response()
	if upgrades(c.Request()) {
		// A connection that is taken over has no moment at which its header is written, and
		// one that is not, because the upgrade was refused or not understood, is no stream.
		response.Writer = &takeover{response.Writer, opened}
	}
	response.Before(func() {
		if strings.HasPrefix(response.Header().Get(echo.HeaderContentType), respond.MIMEEventStream) {
			opened()
		}
	})
}

func (s *Server) observeEnd(state *requestState, took time.Duration) {
	exchange := Exchange{
		Operation: state.operation, Status: state.line.status, Took: took, Stream: state.stream,
	}
	s.traceEnd(state, exchange)
	if s.options.Observer != nil {
		s.options.Observer.RequestEnded(exchange)
	}
}

// takeover notices that a connection is taken over.
type takeover struct {
	http.ResponseWriter
	opened func()
}

// Hijack implements [http.Hijacker].
func (t *takeover) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err == nil {
		t.opened()
	}
	return conn, buffered, err
}

// Unwrap gives [http.ResponseController] access to the wrapped writer.
func (t *takeover) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// upgrades reports whether a request asks for another protocol on its connection.
func upgrades(r *http.Request) bool { return r.Header.Get(echo.HeaderUpgrade) != "" }
