package serve

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
)

// AuditLog records what clients do. Many goroutines call the methods concurrently.
type AuditLog interface {
	// Intend is called before an admitted request is acted on, and returns when the
	// intention would survive the end of this process. With an error the request is not
	// acted on: the client gets a 500. Durable, awaited before the answer leaves, returns
	// when the intention would survive a loss of power; with an error of that the client
	// gets no answer, because what the answer says may not last. The reference is not 0.
	Intend(Admission) (reference uint64, durable func() error, err error)
	// Conclude reports how a request ended. The reference is Intend's, or 0 for a request
	// that was admitted and refused before anything was done.
	Conclude(Admission, uint64, Outcome)
}

// Admission is a request whose sender is known.
type Admission struct {
	RequestID string
	Operation string
	Method    string
	// Route is the template of the path, with the router's names of parameters.
	Route string
	// Remote is the peer's address, without the port.
	Remote    string
	Principal any
	// Params are the parameters of the path, as the client wrote them.
	Params map[string]string
}

// Outcome is how a request ended.
type Outcome struct {
	// Status is the HTTP status, and Code that of the error body; empty after a success.
	Status int
	Code   string
	// Field returns the value that [LogField] recorded under a key, nil if there is none.
	Field func(key string) any
}

// admission is a request that the audit log records.
type admission struct {
	Admission
	reference uint64
}

// Admitted runs next as a request of the principal, who was recognised by other means
// than the key: a signed address, a token of the sandbox. It is for routes outside the
// document, and does what the guard does for those inside once the key was checked:
// handlers find the principal with [Principal], and the [AuditLog] records the request.
func (s *Server) Admitted(principal any, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if state := stateOf(c.Request().Context()); state != nil {
			state.principal = principal
		}
		return s.runAudited(c, next)
	}
}

// admit notes that the sender is known, if the audit log has to record the request.
func (s *Server) admit(c echo.Context) {
	r := c.Request()
	state := stateOf(r.Context())
	if s.options.AuditLog == nil || state == nil || state.admission != nil {
		return
	}
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead ||
		r.Method == http.MethodOptions
	if safe && !upgrades(r) && !slices.Contains(s.options.Audited, state.operation) {
		return
	}
	state.admission = &admission{Admission: Admission{
		RequestID: state.id,
		Operation: state.operation,
		Method:    r.Method,
		Route:     c.Path(),
		Remote:    remoteHost(r.RemoteAddr),
		Principal: state.principal,
		Params:    paramsOf(c),
	}}
}

// runAudited runs next once the audit log, if there is one, has recorded the request.
func (s *Server) runAudited(c echo.Context, next echo.HandlerFunc) error {
	s.admit(c)
	state := stateOf(c.Request().Context())
	if state == nil || state.admission == nil {
		return next(c)
	}
	reference, durable, err := s.options.AuditLog.Intend(state.admission.Admission)
	if err != nil {
		return fmt.Errorf("record the intention: %w", err)
	}
	state.admission.reference = reference
	if upgrades(c.Request()) {
		// A connection that is taken over does not pass the hook below.
		if err := durable(); err != nil {
			return fmt.Errorf("record the intention: %w", err)
		}
		return next(c)
	}
	// The disk works while the handler does.
	c.Response().Before(func() {
		if err := durable(); err != nil {
			zerolog.Ctx(c.Request().Context()).Error().Err(err).Msg(
				"the record of a request is not durable; its answer is withheld")
			panic(http.ErrAbortHandler)
		}
	})
	return next(c)
}

// paramsOf copies the parameters of the path: a stream outlives c.
func paramsOf(c echo.Context) map[string]string {
	params := make(map[string]string, len(c.ParamNames()))
	for i, name := range c.ParamNames() {
		params[name] = c.ParamValues()[i]
	}
	return params
}

// conclude records how the request ended.
func (s *Server) conclude(state *requestState) {
	if state.admission == nil {
		return
	}
	s.options.AuditLog.Conclude(state.admission.Admission, state.admission.reference, Outcome{
		Status: state.line.status, Code: state.code, Field: state.field,
	})
}
