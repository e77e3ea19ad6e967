package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
)

// writeError answers a failed request. Once the response has begun nothing can be
// said any more: then the connection is cut, so that the client does not take the
// part it has for the whole.
func (s *Server) writeError(err error, c echo.Context) {
	r, response := c.Request(), c.Response()
	problem := s.problemOf(err, c)
	logFailure(r.Context(), err, problem.Status, response.Committed)
	if state := stateOf(r.Context()); state != nil {
		state.code = problem.Code
	}
	if response.Committed {
		panic(http.ErrAbortHandler)
	}

	body, err := json.Marshal(s.options.Body(problem))
	if err != nil {
		zerolog.Ctx(r.Context()).Error().Err(err).Msg("error body cannot be encoded")
	}
	header := response.Header()
	header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	header.Set(echo.HeaderContentLength, strconv.Itoa(len(body)))
	if problem.RetryAfter > 0 {
		seconds := (problem.RetryAfter + time.Second - 1) / time.Second
		header.Set(echo.HeaderRetryAfter, strconv.FormatInt(int64(seconds), 10))
	}
	if problem.Status == http.StatusUnauthorized && s.challenge != "" {
		header.Set(echo.HeaderWWWAuthenticate, s.challenge)
	}
	response.WriteHeader(problem.Status)
	if r.Method != http.MethodHead {
		// A client that is gone by now is no news.
		_, _ = response.Write(body)
	}
}

// problemOf decides what the client gets to see of err.
func (s *Server) problemOf(err error, c echo.Context) Problem {
	problem := s.classify(err, c)
	if problem.Code == "" {
		problem.Code = codeOf(problem.Status)
	}
	if problem.Status == http.StatusInternalServerError {
		if problem.Code == codeOf(problem.Status) {
			problem.Code = s.options.InternalCode
		}
		problem.Message = "internal error; see the service's log for request " +
			RequestID(c.Request().Context())
	}
	return problem
}

func (s *Server) classify(err error, c echo.Context) Problem {
	if problem, ok := cancelled(err, c.Request()); ok {
		return problem
	}
	// Before the handler's own error, which may be about what it made of half a body.
	if state := stateOf(c.Request().Context()); state != nil && state.body.failed() {
		return *state.body.problem()
	}
	if problem, ok := s.options.Problem(err); ok {
		return problem
	}
	var own *Problem
	if errors.As(err, &own) {
		return *own
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return *newProblem(http.StatusRequestEntityTooLarge, "body: must be at most %d bytes",
			tooLarge.Limit)
	}
	var routed *echo.HTTPError
	if errors.As(err, &routed) {
		return fromEcho(routed, c)
	}
	// What Request.MultipartReader says to a Content-Type without a boundary, or with an empty one.
	if errors.Is(err, http.ErrMissingBoundary) || errors.Is(err, http.ErrNotMultipart) {
		return *Invalid("header Content-Type: must name a boundary")
	}
	return Problem{Status: http.StatusInternalServerError}
}

// cancelled recognises the errors of a request that ended because its context did:
// the client left, or the service stops.
func cancelled(err error, r *http.Request) (Problem, bool) {
	stopping := Problem{Status: http.StatusServiceUnavailable, Message: errStopping.Error()}
	if errors.Is(err, errStopping) {
		return stopping, true
	}
	if r.Context().Err() == nil || !errors.Is(err, context.Canceled) {
		return Problem{}, false
	}
	if errors.Is(context.Cause(r.Context()), errStopping) {
		return stopping, true
	}
	return Problem{Status: statusClientGone, Message: "the client closed the request"}, true
}

// fromEcho translates the errors of the router, the binder and the generated code.
func fromEcho(err *echo.HTTPError, c echo.Context) Problem {
	r := c.Request()
	var misfit *json.UnmarshalTypeError
	switch {
	case err.Code == http.StatusNotFound && errors.Is(err, echo.ErrNotFound):
		return *newProblem(err.Code, "%s: no such path", shorten(r.URL.Path))
	case err.Code == http.StatusMethodNotAllowed:
		allowed := c.Response().Header().Get(echo.HeaderAllow)
		return *newProblem(err.Code, "%s: method %s is not allowed, only %s", shorten(r.URL.Path),
			r.Method, allowed)
	case errors.As(err, &misfit):
		return *Invalid("body/%s: must be %s, not %s", strings.ReplaceAll(misfit.Field, ".", "/"),
			misfit.Type, shorten(misfit.Value))
	}
	message, ok := err.Message.(string)
	if !ok {
		message = http.StatusText(err.Code)
	}
	return Problem{Status: err.Code, Message: message}
}

// logFailure writes down the causes that clients do not see. What clients did wrong
// is in the access line.
func logFailure(ctx context.Context, err error, status int, committed bool) {
	level, message := zerolog.DebugLevel, "request refused"
	switch {
	case status == statusClientGone, committed && ctx.Err() != nil:
		message = "client left"
	case committed && errors.Is(err, errStopping):
		message = "response cut short, as the service stops"
	case committed:
		level, message = zerolog.WarnLevel, "response cut short"
	case status >= http.StatusInternalServerError:
		level, message = zerolog.ErrorLevel, "request failed"
	}
	var panicked *panicError
	if errors.As(err, &panicked) {
		level, message = zerolog.ErrorLevel, "handler panicked"
	}
	line := zerolog.Ctx(ctx).WithLevel(level).Err(err)
	if !line.Enabled() {
		return
	}
	if panicked != nil {
		line = line.Str("stack", string(panicked.stack))
	}
	if state := stateOf(ctx); state != nil {
		line = state.annotate(line)
	}
	line.Msg(message)
}
