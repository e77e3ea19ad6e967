package ingress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// Headers in net/http's canonical form, which needs no conversion at a look-up.
var (
	tokenHeader = http.CanonicalHeaderKey(lifecycle.TokenHeader)
	routeHeader = http.CanonicalHeaderKey(reach.RouteHeader)
)

// hidden are the headers that programs in sandboxes do not see, in trailers neither.
var hidden = []string{http.CanonicalHeaderKey(reach.KeyHeader), tokenHeader, routeHeader,
	http.CanonicalHeaderKey(lifecycle.KeyNameHeader)}

const (
	// operation is the name of the operation in the access log.
	operation = "reachPort"
	// retryAfter is the Retry-After of answers that a change of state is about to make out of date.
	retryAfter = time.Second
	// endpointLifetime is how long the endpoint of a sandbox is used before a failure makes the
	// ingress look it up again.
	endpointLifetime = time.Second
)

// Codes of errors that only the ingress has.
const (
	codeNoRoute     = "ROUTE_NOT_FOUND"      // 404: the request names no sandbox
	codeNotRunning  = "SANDBOX_NOT_RUNNING"  // 503: the message names the state
	codeIncomplete  = "ROUTES_INCOMPLETE"    // 503: the table lacks sandboxes
	codeConnections = "TOO_MANY_CONNECTIONS" // 429: the sandbox is at its limit
	// 503: the lifecycle service did not say where the sandbox is
	codeNoEndpoint = "SANDBOX_NOT_LOCATED"
)

// locator looks endpoints of sandboxes up, and has those woken that sleep; nil when the table has
// the endpoints.
type locator interface {
	endpoint(ctx context.Context, id string, wake bool) (*Endpoint, error)
}

// handler forwards requests to sandboxes.
type handler struct {
	mode        Mode
	domain      string
	connections int64  // that one sandbox may have
	key         string // the ingress's own for the lifecycle service; empty for none
	signing     reach.Keys
	table       *table
	locator     locator
	proxy       *proxy.Proxy
	metrics     *metrics
	clock       func() time.Time
}

// server returns the handler inside the layers that every service has.
func (h *handler) server(logger zerolog.Logger) (*serve.Server, error) {
	server, err := serve.New(serve.Options{
		// The ingress has no contract of its own: the API behind a port is the sandbox's.
		Rules:  &rules.Contract{KeyHeader: lifecycle.TokenHeader},
		Logger: logger,
		Body: func(p serve.Problem) any {
			return gen.Error{Code: p.Code, Message: p.Message, Detail: p.Message}
		},
		WarnRefusals: true,
		Observer:     h.metrics,
	})
	if err != nil {
		return nil, err
	}
	server.HandleAll(operation, h.serve)
	return server, nil
}

// serve authorises one request and forwards it.
func (h *handler) serve(c echo.Context) error {
	c.SetPath(string(h.mode))
	to, err := h.destination(c.Request())
	switch {
	case errors.Is(err, errNoRoute):
		return h.refuse("no_route", http.StatusNotFound, codeNoRoute, 0, "%v", err)
	case err != nil:
		h.metrics.refused("no_route")
		return serve.Invalid("%v", err)
	}
	ctx := c.Request().Context()
	serve.LogField(ctx, "sandbox_id", to.Sandbox)
	serve.LogField(ctx, "port", to.Port)
	found, err := h.find(to.Sandbox)
	if err != nil {
		return err
	}
	endpoint, err := h.locate(ctx, found.sandbox)
	if err != nil {
		return err
	}
	r, signatures := reach.TakeSignatures(c.Request())
	pass, err := h.admit(r, signatures, to, endpoint)
	if err != nil {
		h.metrics.refused("access")
		return err
	}
	listen.NoteAuthenticated(ctx)
	serve.LogField(ctx, "access", string(pass.By))
	if found.sandbox.inFlight.Add(1) > h.connections {
		found.sandbox.inFlight.Add(-1)
		return h.refuse("connections", http.StatusTooManyRequests, codeConnections, retryAfter,
			"sandbox %s has %d requests and connections open, which is its limit", to.Sandbox,
			h.connections)
	}
	defer found.sandbox.inFlight.Add(-1)
	if found.asleep {
		if endpoint, err = h.wake(ctx, found); err != nil {
			return err
		}
	}
	return h.forward(c, r, to, found.sandbox, endpoint, pass)
}

// destination reads the sandbox and the port that a request is for.
func (h *handler) destination(r *http.Request) (Destination, error) {
	switch h.mode {
	case ModeWildcard:
		return ParseHost(r.Host, h.domain)
	case ModeURI:
		return ParsePath(echo.GetPath(r))
	}
	switch values := r.Header.Values(reach.RouteHeader); len(values) {
	case 0:
		return Destination{}, fmt.Errorf("header %s: is required", reach.RouteHeader)
	case 1:
		return ParseHeader(values[0])
	}
	return Destination{}, fmt.Errorf("header %s: must be given only once", reach.RouteHeader)
}

// find returns a sandbox that is Running, or may be woken.
func (h *handler) find(id string) (row, error) {
	found, complete := h.table.find(id)
	switch {
	case found.sandbox == nil && !complete:
		return found, h.refuse("incomplete", http.StatusServiceUnavailable, codeIncomplete,
			retryAfter,
			"sandbox %q has no route, and the ingress does not have the routes of all sandboxes "+
				"now",
			id)
	case found.sandbox == nil:
		h.metrics.refused("unknown")
		return found, &serve.Problem{
			Status:  http.StatusNotFound,
			Code:    "SANDBOX_NOT_FOUND",
			Message: lifecycle.NotFound(id).Message,
		}
	case found.state != lifecycle.StateRunning && (!found.asleep || h.locator == nil):
		return found, h.notRunning(found.state)
	}
	return found, nil
}

// wake has a sandbox woken for a request that is let in, and returns where it is.
func (h *handler) wake(ctx context.Context, found row) (*Endpoint, error) {
	endpoint, err := h.look(ctx, found.sandbox, true)
	if errors.Is(err, errNotWoken) {
		return nil, h.notRunning(found.state)
	}
	return endpoint, err
}

func (h *handler) notRunning(state lifecycle.State) error {
	var wait time.Duration
	if state.Transient() && state != lifecycle.StateStopping {
		wait = retryAfter
	}
	return h.refuse("not_running", http.StatusServiceUnavailable, codeNotRunning, wait, "%s",
		state.Conflict("reach a port", lifecycle.StateRunning).Message)
}

func (h *handler) refuse(
	reason string, status int, code string, wait time.Duration, format string, args ...any,
) error {
	h.metrics.refused(reason)
	return &serve.Problem{
		Status:     status,
		Code:       code,
		Message:    fmt.Sprintf(format, args...),
		RetryAfter: wait,
	}
}

// locate returns the endpoint of a sandbox. It is looked up once per sandbox.
func (h *handler) locate(ctx context.Context, s *sandbox) (*Endpoint, error) {
	if endpoint := s.endpoint.Load(); endpoint != nil {
		return endpoint, nil
	}
	if h.locator == nil {
		return nil, h.refuse("not_located", http.StatusServiceUnavailable, codeNoEndpoint, 0,
			"there is no route to sandbox %s", s.id)
	}
	return h.look(ctx, s, false)
}

// look asks where a sandbox is.
func (h *handler) look(ctx context.Context, s *sandbox, wake bool) (*Endpoint, error) {
	endpoint, err := h.locator.endpoint(ctx, s.id, wake)
	switch {
	case errors.Is(err, errNotKnown):
		h.metrics.refused("unknown")
		return nil, &serve.Problem{
			Status:  http.StatusNotFound,
			Code:    "SANDBOX_NOT_FOUND",
			Message: lifecycle.NotFound(s.id).Message,
		}
	case errors.Is(err, errNoEndpoint):
		zerolog.Ctx(ctx).
			Warn().
			Err(err).
			Str("sandbox_id", s.id).
			Msg("the endpoint of a sandbox is unknown")
		// It may have ended meanwhile; its event has not arrived yet.
		return nil, h.refuse("not_located", http.StatusServiceUnavailable, codeNoEndpoint, retryAfter,
			"the lifecycle service does not say where sandbox %s is", s.id)
	case err != nil:
		return nil, err
	}
	s.endpoint.Store(endpoint)
	s.located.Store(h.clock().UnixNano())
	return endpoint, nil
}

// forward forwards the request to the sandbox and the response to the client.
func (h *handler) forward(
	c echo.Context, r *http.Request, to Destination, s *sandbox, endpoint *Endpoint, pass reach.Pass,
) error {
	port := strconv.Itoa(to.Port)
	listen.ForwardBody(r)
	// The ingress's own key for the service, which gives access to every sandbox, must not reach
	// one.
	r = reach.WithoutKeys(r,
		func(value string) bool { return h.key != "" && reach.Equal(value, h.key) })
	target := proxy.Target{
		Prefix:       to.Prefix,
		Strip:        hidden,
		Names:        []string{"127.0.0.1:" + port, "localhost:" + port},
		SharedOrigin: h.mode != ModeWildcard,
		SiblingHosts: h.mode == ModeWildcard,
	}
	if endpoint.Path == "" {
		target.Address = net.JoinHostPort(endpoint.Address, port)
	} else {
		target.Address, target.Path = endpoint.Address, endpoint.Path+port
		target.Set = map[string]string{tokenHeader: endpoint.Token}
	}
	target.Inspect = func(response *http.Response) error {
		if endpoint.Path != "" {
			if err := reach.Inspect(response); err != nil {
				return err
			}
		}
		if h.mode == ModeWildcard && pass.By == reach.BySignature {
			response.Header.Add("Set-Cookie", cookieOf(pass, r, h.clock()).String())
		}
		return nil
	}
	err := h.proxy.Forward(c.Response(), r, target)
	switch {
	case err == nil && !c.Response().Committed:
		// the connection was hijacked, which echo does not see
		c.Response().Status = http.StatusSwitchingProtocols
	case errors.Is(err, proxy.ErrRequestBody):
		return serve.Invalid("body: ended before its announced end, or is malformed")
	case errors.Is(err, proxy.ErrNotConnected) && endpoint.Path == "":
		return h.refuse("unanswered", http.StatusBadGateway, "PORT_NOT_LISTENING", 0,
			"no process listens on port %d of sandbox %s", to.Port, to.Sandbox)
	case errors.Is(err, proxy.ErrNotConnected),
		errors.Is(err, proxy.ErrNoAnswer),
		errors.Is(err, reach.ErrTokenRefused):
		return h.unanswered(r.Context(), to, s, endpoint, err)
	}
	return err
}

// unanswered returns the error for a sandbox that should have answered, and has its endpoint looked
// up again.
func (h *handler) unanswered(
	ctx context.Context, to Destination, s *sandbox, endpoint *Endpoint, err error,
) error {
	zerolog.Ctx(ctx).
		Warn().
		Err(err).
		Str("sandbox_id", to.Sandbox).
		Int("port", to.Port).
		Msg("the sandbox did not answer")
	if h.locator != nil && h.clock().UnixNano()-s.located.Load() > int64(endpointLifetime) {
		s.endpoint.CompareAndSwap(endpoint, nil)
	}
	if now, _ := h.table.find(to.Sandbox); now.sandbox != nil &&
		now.state != lifecycle.StateRunning {
		return h.notRunning(now.state)
	}
	return h.refuse("unanswered", http.StatusBadGateway, reach.CodeNotAnswering, 0,
		"sandbox %s did not answer a request for port %d", to.Sandbox, to.Port)
}
