package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// ports forwards requests to the ports of sandboxes. It has two kinds of paths, neither of which
// OpenAPI can express, because the part after the port is the sandbox's:
// /v1/sandboxes/{sandboxId}/proxy/{port}/... for the service's keys, and /{sandboxId}/{port}/...
// for the endpoints of sandboxes on the host's network (lifecycle document, "Networking rules", 1).
// On both, the signature of a signed endpoint takes the place of the key or the token.
type ports struct {
	server   *serve.Server
	handlers *handlers
	proxy    *proxy.Proxy
	signing  reach.Keys
	clock    func() time.Time
	keys     *keys.Ring
}

// register adds the routes to the server. They are for every method, so they are registered as the
// fallback after all other routes.
func (p *ports) register() {
	const path = "/v1/sandboxes/:sandboxId/proxy/:port"
	for _, route := range []string{path, path + "/*"} {
		p.server.Echo().RouteNotFound(route, func(c echo.Context) error {
			id, segment := c.Param("sandboxId"), c.Param("port")
			return p.enter(
				c,
				visit{
					id:      id,
					segment: segment,
					prefix:  "/v1/sandboxes/" + id + "/proxy/" + segment,
				},
			)
		}, p.server.Named(reachPort, false))
	}
	p.server.Echo().Use(p.hostRoute)
}

// reachPort is the name of these requests in the log, the metrics and the audit log.
const reachPort = "reachPort"

// hostPath is the path of an endpoint of a sandbox on the host's network. Ids are UUIDs, so no
// other path of the service looks like it.
var hostPath = regexp.MustCompile(`^/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([^/]*)(?:/|$)`)

// hostRoute serves /{sandboxId}/{port}/... and leaves every other path alone. It runs before the
// router, which would otherwise answer unknown paths of two segments differently from those of one.
func (p *ports) hostRoute(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		match := hostPath.FindStringSubmatch(echo.GetPath(c.Request()))
		if match == nil {
			return next(c)
		}
		id, segment := match[1], match[2]
		c.SetPath("/:sandboxId/:port/*")
		c.SetParamNames("sandboxId", "port")
		c.SetParamValues(id, segment)
		return p.server.Named(reachPort, false)(func(c echo.Context) error {
			return p.enter(c,
				visit{id: id, segment: segment, prefix: "/" + id + "/" + segment, token: true})
		})(c)
	}
}

// find returns a sandbox and the location of a port of it.
func (p *ports) find(r *http.Request, id string, port int) (lifecycle.Sandbox, lifecycle.Location, error) {
	sandbox, err := p.handlers.backend.Get(r.Context(), id)
	if err != nil {
		return sandbox, lifecycle.Location{}, err
	}
	location, err := p.handlers.locate(r.Context(), sandbox, port)
	return sandbox, location, err
}

// locate returns where to send a request for a port of the sandbox. Only a Running sandbox answers
// requests, and one that sleeps once it is woken.
func (h *handlers) locate(
	ctx context.Context, sandbox lifecycle.Sandbox, port int,
) (lifecycle.Location, error) {
	serve.LogField(ctx, "port", port)
	if state := sandbox.Status.State; state != lifecycle.StateRunning && !h.sleeps(sandbox) {
		return lifecycle.Location{}, notRunning(state)
	}
	location, err := h.backend.Locate(ctx, sandbox.ID, port)
	switch {
	case err == nil && location.Stopped != nil && h.sleeps(sandbox): // it is somewhere once it is woken
	case err == nil && location.Stopped != nil:
		err = location.Stopped
	case err == nil && location.Daemon == "":
		err = sidecars(port)
	}
	return location, err
}

// sidecars is the error for a port that the service forwards nothing to.
func sidecars(port int) error {
	return lifecycle.Conflictf(
		"port %d is the egress sidecar's: use its endpoint, or the operations for the network policy", port)
}

func notRunning(state lifecycle.State) *lifecycle.Error {
	conflict := state.Conflict("reach a port", lifecycle.StateRunning)
	if state == lifecycle.StatePending || state == lifecycle.StateResuming {
		conflict.RetryAfter = 1
	}
	return conflict
}

// forward forwards the request, which is let in, and wakes the sandbox first where it sleeps.
func (p *ports) forward(c echo.Context, sandbox lifecycle.Sandbox, location lifecycle.Location, port int, v visit) error {
	if p.handlers.sleeps(sandbox) {
		ctx := c.Request().Context()
		err := p.handlers.wake(ctx, sandbox)
		if err == nil {
			location, err = p.handlers.backend.Locate(ctx, sandbox.ID, port)
		}
		switch err = cmp.Or(err, location.Stopped); {
		case err != nil:
			return err
		case location.Daemon == "":
			return sidecars(port)
		}
	}
	name := strconv.Itoa(port)
	listen.ForwardBody(c.Request())
	r, _ := reach.TakeSignatures(c.Request())
	r = reach.WithoutKeys(r, p.keys.Holds)
	set := map[string]string{lifecycle.TokenHeader: location.Token}
	if v.key != "" && port == lifecycle.DaemonPort {
		set[lifecycle.KeyNameHeader] = url.PathEscape(v.key)
	}
	err := p.proxy.Forward(c.Response(), r, proxy.Target{
		Address: location.Daemon,
		Path:    "/proxy/" + name,
		Prefix:  v.prefix,
		Set:     set,
		Strip:   []string{reach.KeyHeader, lifecycle.KeyNameHeader}, // in trailers, too
		Names:   []string{"127.0.0.1:" + name, "localhost:" + name},
		// People type keys into the pages of /docs, which are of this origin.
		SharedOrigin: true,
		Inspect:      reach.Inspect,
	})
	switch {
	case err == nil && !c.Response().Committed:
		// the connection was hijacked, which echo does not see
		c.Response().Status = http.StatusSwitchingProtocols
	case errors.Is(err, proxy.ErrRequestBody):
		return serve.Invalid("body: ended before its announced end, or is malformed")
	case isNoAnswer(err):
		return p.handlers.notAnswering(r.Context(), v.id, port, err)
	}
	return err
}

// isNoAnswer reports whether a daemon did not answer.
func isNoAnswer(err error) bool {
	return errors.Is(err, proxy.ErrNotConnected) || errors.Is(err, proxy.ErrNoAnswer) ||
		errors.Is(err, reach.ErrTokenRefused)
}

// notAnswering returns the error for a request that the daemon of a sandbox did not answer. The
// sandbox may have ended meanwhile: then that is the error.
func (h *handlers) notAnswering(ctx context.Context, id string, port int, failure error) error {
	zerolog.Ctx(ctx).
		Warn().
		Err(failure).
		Str("sandbox_id", id).
		Int("port", port).
		Msg("the sandbox did not answer")
	sandbox, err := h.backend.Get(ctx, id)
	if err != nil {
		return err
	}
	if state := sandbox.Status.State; state != lifecycle.StateRunning {
		return notRunning(state)
	}
	return &serve.Problem{
		Status: http.StatusBadGateway,
		Code:   reach.CodeNotAnswering,
		Message: fmt.Sprintf(
			"the daemon of sandbox %s did not answer a request for port %d; if it happens "+
				"again, the sandbox is of no use any more",
			id, port),
	}
}

// parsePort reads a port of a path. A second way to write the same port is refused, because links
// are made for the first.
func parsePort(segment string) (int, error) {
	port, err := strconv.ParseUint(segment, 10, 16)
	if err != nil || port == 0 || segment[0] == '0' {
		if decoded, err := url.PathUnescape(segment); err == nil {
			segment = decoded
		}
		return 0, lifecycle.Invalidf(
			"path parameter port: must be a decimal number from 1 to 65535 without leading zeros, "+
				"not %.40q",
			segment)
	}
	return int(port), nil
}
