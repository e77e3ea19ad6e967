package serve

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve/internal/problem"
	"sandbox.internal/openapi/serve/listen"
)

// DefaultMaxJSONBody is the limit of a JSON request body, in bytes, where
// [Options.MaxJSONBody] sets none.
const DefaultMaxJSONBody = 1 << 20

// Options configures a [Server]. Only Document is required.
type Options struct {
	// Rules are what the service's contract says about requests.
	Rules *rules.Contract

	// Logger receives one access line per request and the causes of failures.
	Logger zerolog.Logger

	// Authenticate returns the caller of a request; handlers read it with
	// [Principal]. An error refuses the request and is mapped like any other, so a
	// missing or wrong key is [Unauthorized]. It runs before anything of the body is
	// read. With nil every operation is open.
	Authenticate func(*http.Request) (principal any, err error)

	// Revocable says that what Authenticate let in may have to end before it has been
	// answered, see [EndWith].
	Revocable bool

	// RateLimits bounds how often operations may be called; the zero value does not.
	RateLimits RateLimits

	// MaxJSONBody limits JSON request bodies, in bytes; 0 means
	// [DefaultMaxJSONBody]. Other bodies stream to their handler without a limit.
	MaxJSONBody int64

	// Problem maps the service's own errors to what the client receives and reports whether it has
	// a mapping. An error that neither it nor this package maps is a 500 that shows no cause.
	Problem func(error) (problem.Problem, bool)

	// Body shapes the JSON of an error answer; nil means {"code", "message"}.
	Body func(problem.Problem) any

	// InternalCode is the code of a 500; empty means INTERNAL_ERROR.
	InternalCode string

	// Quiet names operations whose successes are logged at debug level, because
	// probes call them all the time.
	Quiet []string

	// WarnRefusals logs answers of the 4xx class at warning level instead of info.
	WarnRefusals bool

	// Observer, if not nil, gets every request, for measurements.
	Observer Observer

	// Tracer, if not nil, follows every request across services.
	Tracer Tracer

	// AuditLog, if not nil, records every admitted request that changes something: one
	// with a method that is not safe, one that asks for another protocol, and those of
	// the operations that Audited names.
	AuditLog AuditLog
	// Audited names further operations, which give out something worth a record.
	Audited []string
}

// Server answers HTTP requests for one service. Register handlers first; from then
// on it is safe for concurrent use.
type Server struct {
	options    Options
	echo       *echo.Echo
	only       echo.HandlerFunc // nil while requests go through the router, see HandleAll
	operations map[string]*rules.Operation
	challenge  string
	callers    *buckets // requests, by caller
	refused    *buckets // requests with a missing or wrong key, by remote address
}

// New builds a server without routes. It fails without rules, and when an option names
// an operation that they do not have.
func New(options Options) (*Server, error) {
	if options.Rules == nil {
		return nil, errors.New("serve: no rules")
	}
	if options.MaxJSONBody == 0 {
		options.MaxJSONBody = DefaultMaxJSONBody
	}
	if options.InternalCode == "" {
		options.InternalCode = "INTERNAL_ERROR"
	}
	if options.Problem == nil {
		options.Problem = func(error) (problem.Problem, bool) { return problem.Problem{}, false }
	}
	if options.Body == nil {
		options.Body = defaultBody
	}
	operations := make(map[string]*rules.Operation, len(options.Rules.Operations))
	for _, op := range options.Rules.Operations {
		operations[op.ID] = op
	}
	for _, id := range slices.Concat(options.Quiet, options.Audited) {
		if operations[id] == nil {
			return nil, fmt.Errorf("serve: operation %q is not in the document", id)
		}
	}

	s := &Server{
		options:    options,
		echo:       echo.New(),
		operations: operations,
		challenge:  challengeOf(options.Rules.KeyHeader),
		callers:    newBuckets(options.RateLimits.Clock),
		refused:    newBuckets(options.RateLimits.Clock),
	}
	s.echo.HideBanner, s.echo.HidePort = true, true
	s.echo.HTTPErrorHandler = s.writeError
	s.echo.Use(s.logAccess, recoverPanics, headAsGet)
	return s, nil
}

// Echo is the router to register handlers on.
func (s *Server) Echo() *echo.Echo { return s.echo }

// HandleAll sends every request to one handler under the name of an operation, past
// the router, and with the middleware of this package alone. It is for a service whose
// document has no paths and which takes many small requests: echo would look for a
// route and put the middleware around the handler again for each of them.
func (s *Server) HandleAll(operation string, handler echo.HandlerFunc) {
	s.only = s.logAccess(recoverPanics(s.Named(operation, false)(handler)))
}

// ServeHTTP makes the server an [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r, end, done := s.revocable(r)
	defer done()
	state := s.identify(w, r)
	state.end = end
	defer state.answered()
	if s.only == nil {
		s.echo.ServeHTTP(w, state.request)
	} else {
		c := s.echo.AcquireContext()
		c.Reset(state.request, w)
		_ = s.only(c) // logAccess has answered an error
		s.echo.ReleaseContext(c)
	}
	if state.rest != nil {
		s.proceed(state, w, r)
	}
}

// OperationMiddlewares guards every operation of the document. It is what the
// generated RegisterHandlersOptions takes under the same name: the keys are the
// operationIds as the document writes them.
func (s *Server) OperationMiddlewares() map[string][]echo.MiddlewareFunc {
	guards := make(map[string][]echo.MiddlewareFunc, len(s.operations))
	for id, op := range s.operations {
		guards[id] = []echo.MiddlewareFunc{s.guard(op)}
	}
	return guards
}

// Authenticated is the middleware for routes outside the document that need the
// same key as those inside. Unlike the guard it validates nothing.
func (s *Server) Authenticated(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := s.authenticate(c.Request()); err != nil {
			return err
		}
		return s.runAudited(c, next)
	}
}

// AuthenticatedAndCounted is [Server.Authenticated] for routes whose requests count
// towards [RateLimits], as those to the document's operations do.
func (s *Server) AuthenticatedAndCounted(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := s.authenticate(c.Request()); err != nil {
			return err
		}
		if err := s.checkRate(c.Request()); err != nil {
			return err
		}
		return s.runAudited(c, next)
	}
}

func (s *Server) authenticate(r *http.Request) error {
	if s.options.Authenticate == nil {
		listen.NoteAuthenticated(r.Context())
		return nil
	}
	return s.Attempt(r, func() error {
		principal, err := s.options.Authenticate(r)
		if state := stateOf(r.Context()); err == nil && state != nil {
			state.principal = principal
		}
		return err
	})
}

// Attempt runs a check of something that takes the place of a key. A check that returns
// [Unauthorized] counts as a wrong key does (see [RateLimits]), and an address that has used its
// attempts up is refused before the check.
func (s *Server) Attempt(r *http.Request, check func() error) error {
	if err := s.checkAttempts(r); err != nil {
		return err
	}
	err := check()
	if err != nil {
		s.noteRefusal(r, err)
	} else {
		listen.NoteAuthenticated(r.Context())
	}
	return err
}

func (s *Server) quiet(operation string) bool { return slices.Contains(s.options.Quiet, operation) }

// challengeOf is the value of WWW-Authenticate, which HTTP requires on every 401. It
// names the header for keys; "" when there is none.
func challengeOf(header string) string {
	if header == "" {
		return ""
	}
	return fmt.Sprintf("ApiKey header=%q", header)
}
