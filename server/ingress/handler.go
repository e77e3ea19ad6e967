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
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// Headers in net/http's own spelling, which costs nothing to look up.
const (
	tokenHeader = "X-Execd-Access-Token"
	routeHeader = "Service-Ingress-To"
)

// hidden are the headers that programs in sandboxes do not see, in trailers neither.
var hidden = []string{"Service-Api-Key", tokenHeader, routeHeader}

const (
	// operation is the name of what the gateway does, in the log.
	operation = "reachPort"
	// soon is what clients are told to wait where a state is about to change.
	soon = time.Second
	// askAgain is how long the place of a sandbox is believed at least.
	askAgain = time.Second
)

// Codes of errors that only the gateway has.
const (
	codeNoRoute     = "ROUTE_NOT_FOUND"      // 404: the request names no sandbox
	codeNotRunning  = "SANDBOX_NOT_RUNNING"  // 503: the message names the state
	codeIncomplete  = "ROUTES_INCOMPLETE"    // 503: the gateway does not know all sandboxes yet
	codeConnections = "TOO_MANY_CONNECTIONS" // 429: the sandbox has as many as it may have
	codeNoPlace     = "SANDBOX_NOT_LOCATED"  // 503: the lifecycle service did not tell where the sandbox is
)

// locator tells where sandboxes are; nil when the table knows.
type locator interface {
	place(ctx context.Context, id string) (*Place, error)
}

// Gateway is the handler that takes requests to sandboxes.
type Gateway struct {
	mode        Mode
	domain      string
	connections int64  // that one sandbox may have
	key         string // the gateway's own of the lifecycle service; empty for none
	signing     reach.Keys
	table       *table
	locator     locator
	proxy       *proxy.Proxy
	metrics     *metrics
	clock       func() time.Time
}

// handler returns what serves clients: the gateway inside of the layers that the services have too.
func (g *Gateway) handler(logger zerolog.Logger) (*serve.Server, error) {
	server, err := serve.New(serve.Options{
		// The gateway has no contract of its own: what is behind a port is the sandbox's.
		Rules:        &rules.Contract{KeyHeader: lifecycle.TokenHeader},
		Logger:       logger,
		Body:         func(p serve.Problem) any { return gen.Error{Code: p.Code, Message: p.Message, Detail: p.Message} },
		WarnRefusals: true,
		Observer:     g.metrics,
	})
	if err != nil {
		return nil, err
	}
	server.HandleAll(operation, g.serve)
	return server, nil
}

// serve sends one request on.
func (g *Gateway) serve(c echo.Context) error {
	c.SetPath(string(g.mode))
	return g.pass(c)
}

func (g *Gateway) pass(c echo.Context) error {
	to, err := g.destination(c.Request())
	switch {
	case errors.Is(err, errNoRoute):
		return g.refuse("no_route", http.StatusNotFound, codeNoRoute, 0, "%v", err)
	case err != nil:
		g.metrics.refused("no_route")
		return serve.Invalid("%v", err)
	}
	ctx := c.Request().Context()
	serve.LogField(ctx, "sandbox_id", to.Sandbox)
	serve.LogField(ctx, "port", to.Port)
	found, err := g.find(to.Sandbox)
	if err != nil {
		return err
	}
	place, err := g.locate(ctx, found)
	if err != nil {
		return err
	}
	r, signatures := reach.TakeSignatures(c.Request())
	pass, err := g.admit(r, signatures, to, place)
	if err != nil {
		g.metrics.refused("access")
		return err
	}
	serve.LogField(ctx, "access", string(pass.By))
	if found.inFlight.Add(1) > g.connections {
		found.inFlight.Add(-1)
		return g.refuse("connections", http.StatusTooManyRequests, codeConnections, soon,
			"sandbox %s has %d requests and connections open, as many as it may have", to.Sandbox, g.connections)
	}
	defer found.inFlight.Add(-1)
	return g.forward(c, r, to, found, place, pass)
}

// destination reads from a request which port of which sandbox it is for.
func (g *Gateway) destination(r *http.Request) (Destination, error) {
	switch g.mode {
	case ModeWildcard:
		return ParseHost(r.Host, g.domain)
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

// find returns a sandbox that runs.
func (g *Gateway) find(id string) (*sandbox, error) {
	found, complete := g.table.find(id)
	switch {
	case found.sandbox == nil && !complete:
		return nil, g.refuse("incomplete", http.StatusServiceUnavailable, codeIncomplete, soon, "sandbox %q is not known, but the gateway does not know all sandboxes now", id)
	case found.sandbox == nil:
		g.metrics.refused("unknown")
		return nil, &serve.Problem{Status: http.StatusNotFound, Code: "SANDBOX_NOT_FOUND", Message: lifecycle.NotFound(id).Message}
	case found.state != lifecycle.StateRunning:
		return nil, g.notRunning(found.state)
	}
	return found.sandbox, nil
}

func (g *Gateway) notRunning(state lifecycle.State) error {
	var wait time.Duration
	if state.Transient() && state != lifecycle.StateStopping {
		wait = soon
	}
	return g.refuse("not_running", http.StatusServiceUnavailable, codeNotRunning, wait, "%s", state.Forbidden("reach a port", lifecycle.StateRunning).Message)
}

func (g *Gateway) refuse(reason string, status int, code string, wait time.Duration, format string, args ...any) error {
	g.metrics.refused(reason)
	return &serve.Problem{Status: status, Code: code, Message: fmt.Sprintf(format, args...), RetryAfter: wait}
}

// locate returns where a sandbox is. The service is asked once per sandbox.
func (g *Gateway) locate(ctx context.Context, s *sandbox) (*Place, error) {
	if place := s.place.Load(); place != nil {
		return place, nil
	}
	if g.locator == nil {
		return nil, g.refuse("not_located", http.StatusServiceUnavailable, codeNoPlace, 0, "there is no route to sandbox %s", s.id)
	}
	place, err := g.locator.place(ctx, s.id)
	switch {
	case errors.Is(err, errNotKnown):
		g.metrics.refused("unknown")
		return nil, &serve.Problem{Status: http.StatusNotFound, Code: "SANDBOX_NOT_FOUND", Message: lifecycle.NotFound(s.id).Message}
	case errors.Is(err, errNoPlace):
		zerolog.Ctx(ctx).Warn().Err(err).Str("sandbox_id", s.id).Msg("the place of a sandbox is not known")
		// It may have ended meanwhile, which the events tell in a moment.
		return nil, g.refuse("not_located", http.StatusServiceUnavailable, codeNoPlace, soon, "the lifecycle service does not tell where sandbox %s is", s.id)
	case err != nil:
		return nil, err
	}
	s.place.Store(place)
	s.located.Store(g.clock().UnixNano())
	return place, nil
}

// forward sends the request on and the answer back.
func (g *Gateway) forward(c echo.Context, r *http.Request, to Destination, s *sandbox, place *Place, pass reach.Pass) error {
	port := strconv.Itoa(to.Port)
	serve.WithoutDeadline(r)
	// Of the service's keys the gateway knows its own, which opens every sandbox.
	r = reach.WithoutKeys(r, func(value string) bool { return g.key != "" && reach.Equal(value, g.key) })
	target := proxy.Target{
		Prefix:       to.Prefix,
		Strip:        hidden,
		Names:        []string{"127.0.0.1:" + port, "localhost:" + port},
		SharedOrigin: g.mode != ModeWildcard,
		SiblingHosts: g.mode == ModeWildcard,
	}
	if place.Path == "" {
		target.Address = net.JoinHostPort(place.Address, port)
	} else {
		target.Address, target.Path = place.Address, place.Path+port
		target.Set = map[string]string{tokenHeader: place.Token}
	}
	target.Inspect = func(response *http.Response) error {
		if place.Path != "" {
			if err := reach.Inspect(response); err != nil {
				return err
			}
		}
		if g.mode == ModeWildcard && pass.By == reach.BySignature {
			response.Header.Add("Set-Cookie", cookieOf(pass, r, g.clock()).String())
		}
		return nil
	}
	err := g.proxy.Forward(c.Response(), r, target)
	switch {
	case err == nil && !c.Response().Committed: // the connection was taken over, which echo does not notice
		c.Response().Status = http.StatusSwitchingProtocols
	case errors.Is(err, proxy.ErrRequestBody):
		return serve.Invalid("body: ended before its announced end, or is malformed")
	case errors.Is(err, proxy.ErrNotConnected) && place.Path == "":
		return g.refuse("unanswered", http.StatusBadGateway, "PORT_NOT_LISTENING", 0, "nothing listens on port %d of sandbox %s", to.Port, to.Sandbox)
	case errors.Is(err, proxy.ErrNotConnected), errors.Is(err, proxy.ErrNoAnswer), errors.Is(err, reach.ErrTokenRefused):
		return g.unanswered(r.Context(), to, s, place, err)
	}
	return err
}

// unanswered tells of a sandbox that should have answered. Its place is asked for again.
func (g *Gateway) unanswered(ctx context.Context, to Destination, s *sandbox, place *Place, err error) error {
	zerolog.Ctx(ctx).Warn().Err(err).Str("sandbox_id", to.Sandbox).Int("port", to.Port).Msg("the sandbox did not answer")
	if g.locator != nil && g.clock().UnixNano()-s.located.Load() > int64(askAgain) {
		s.place.CompareAndSwap(place, nil)
	}
	if now, _ := g.table.find(to.Sandbox); now.sandbox != nil && now.state != lifecycle.StateRunning {
		return g.notRunning(now.state)
	}
	return g.refuse("unanswered", http.StatusBadGateway, reach.CodeNotAnswering, 0, "sandbox %s did not answer a request for port %d", to.Sandbox, to.Port)
}
