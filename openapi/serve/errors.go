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

	"sandbox.internal/openapi/serve/internal/check"
	"sandbox.internal/openapi/serve/internal/problem"
	"sandbox.internal/openapi/serve/listen"
)

// writeError answers a failed request. Once the response has begun nothing can be
// said any more: then the connection is cut, so that the client does not take the
// part it has for the whole.
func (s *Server) writeError(err error, c echo.Context) {
	r, response := c.Request(), c.Response()
	answer := s.problemOf(err, c)
	logFailure(r.Context(), err, answer.Status, response.Committed)
	if state := stateOf(r.Context()); state != nil {
		state.code = answer.Code
	}
	if response.Committed {
		panic(http.ErrAbortHandler)
	}

	body, err := json.Marshal(s.options.Body(answer))
	if err != nil {
		zerolog.Ctx(r.Context()).Error().Err(err).Msg("error body cannot be encoded")
	}
	header := response.Header()
	header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	header.Set(echo.HeaderContentLength, strconv.Itoa(len(body)))
	if answer.RetryAfter > 0 {
		seconds := (answer.RetryAfter + time.Second - 1) / time.Second
		header.Set(echo.HeaderRetryAfter, strconv.FormatInt(int64(seconds), 10))
	}
	if answer.Status == http.StatusUnauthorized && s.challenge != "" {
		header.Set(echo.HeaderWWWAuthenticate, s.challenge)
	}
	response.WriteHeader(answer.Status)
	if r.Method != http.MethodHead {
		// A client that is gone by now is no news.
		_, _ = response.Write(body)
	}
}

// problemOf decides what the client gets to see of err.
func (s *Server) problemOf(err error, c echo.Context) problem.Problem {
	answer := s.classify(err, c)
	if answer.Code == "" {
		answer.Code = problem.CodeOf(answer.Status)
	}
	if answer.Status == http.StatusInternalServerError {
		if answer.Code == problem.CodeOf(answer.Status) {
			answer.Code = s.options.InternalCode
		}
		answer.Message = "internal error; see the service's log for request " +
			RequestID(c.Request().Context())
	}
	return answer
}

func (s *Server) classify(err error, c echo.Context) problem.Problem {
	if answer, ok := cancelled(err, c.Request()); ok {
		return answer
	}
	// Before the handler's own error, which may be about what it made of half a body.
	if state := stateOf(c.Request().Context()); state != nil && state.body.failed() {
		return *state.body.problem()
	}
	if answer, ok := s.options.Problem(err); ok {
		return answer
	}
	var own *problem.Problem
	if errors.As(err, &own) {
		return *own
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return *problem.New(http.StatusRequestEntityTooLarge, "body: must be at most %d bytes",
			tooLarge.Limit)
	}
	var routed *echo.HTTPError
	if errors.As(err, &routed) {
		return fromEcho(routed, c)
	}
	// What Request.MultipartReader says to a Content-Type without a boundary, or with an empty one.
	if errors.Is(err, http.ErrMissingBoundary) || errors.Is(err, http.ErrNotMultipart) {
		return *problem.Invalid("header Content-Type: must name a boundary")
	}
	return problem.Problem{Status: http.StatusInternalServerError}
}

// cancelled recognises the errors of a request that ended because its context did:
// the client left, or the service stops.
func cancelled(err error, r *http.Request) (problem.Problem, bool) {
	stopping := problem.Problem{Status: http.StatusServiceUnavailable, Message: listen.ErrStopping.Error()}
	if errors.Is(err, listen.ErrStopping) {
		return stopping, true
	}
	if r.Context().Err() == nil || !errors.Is(err, context.Canceled) {
		return problem.Problem{}, false
	}
	if errors.Is(context.Cause(r.Context()), listen.ErrStopping) {
		return stopping, true
	}
	return problem.Problem{Status: problem.StatusClientGone, Message: "the client closed the request"}, true
}

// fromEcho translates the errors of the router, the binder and the generated code.
func fromEcho(err *echo.HTTPError, c echo.Context) problem.Problem {
	r := c.Request()
	var misfit *json.UnmarshalTypeError
	switch {
	case err.Code == http.StatusNotFound && errors.Is(err, echo.ErrNotFound):
		return *problem.New(err.Code, "%s: no such path", check.Shorten(r.URL.Path))
	case err.Code == http.StatusMethodNotAllowed:
		allowed := c.Response().Header().Get(echo.HeaderAllow)
		return *problem.New(err.Code, "%s: method %s is not allowed, only %s", check.Shorten(r.URL.Path),
			r.Method, allowed)
	case errors.As(err, &misfit):
		return *problem.Invalid("body/%s: must be %s, not %s", strings.ReplaceAll(misfit.Field, ".", "/"),
			misfit.Type, check.Shorten(misfit.Value))
	}
	message, ok := err.Message.(string)
	if !ok {
		message = http.StatusText(err.Code)
	}
	return problem.Problem{Status: err.Code, Message: message}
}

// logFailure writes down the causes that clients do not see. What clients did wrong
// is in the access line.
func logFailure(ctx context.Context, err error, status int, committed bool) {
	level, message := zerolog.DebugLevel, "request refused"
	switch {
	case status == problem.StatusClientGone, committed && ctx.Err() != nil:
		message = "client left"
	case committed && errors.Is(err, listen.ErrStopping):
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

// defaultBody is the error body of a service that asks for no other.
func defaultBody(p problem.Problem) any {
	return struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{p.Code, p.Message}
}
