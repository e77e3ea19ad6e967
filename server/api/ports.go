package api

import (
	"context"
	"crypto/subtle"
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
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// Reacher tells where the service itself reaches sandboxes.
type Reacher interface {
	// Reach returns the host and port of the sandbox's execd, which passes on what is asked for below /proxy/{port}, and the token that
	// execd demands. It returns KindNotFound, KindInvalid for a port outside 1..65535, and KindConflict for a sandbox that cannot be
	// reached in its state.
	Reach(ctx context.Context, id string, port int) (address, token string, err error)
}

// ports forwards requests to the ports of sandboxes. Two kinds of path lead there, and neither can be said in OpenAPI, because what
// follows the port is the sandbox's: /v1/sandboxes/{sandboxId}/proxy/{port}/... for the service's keys, and /{sandboxId}/{port}/... for
// the endpoints of sandboxes on the host's network (lifecycle document, "Networking rules", 1). On both, the signature of a signed
// endpoint takes the place of the key or the token.
type ports struct {
	server   *serve.Server
	handlers *handlers
	reacher  Reacher
	proxy    *proxy.Proxy
	signing  reach.Keys
	clock    func() time.Time
	keys     []Key
}

// register puts the routes on the server. They are for every method there is, so they are registered as what answers when no other does.
func (p *ports) register() {
	const path = "/v1/sandboxes/:sandboxId/proxy/:port"
	for _, route := range []string{path, path + "/*"} {
		p.server.Echo().RouteNotFound(route, p.byKey, p.server.Named(reachPort, false), p.keyOrSignature)
	}
	p.server.Echo().Use(p.byToken)
}

// reachPort is the name of these requests in the log, the metrics and the audit log.
const reachPort = "reachPort"

// byKey serves /v1/sandboxes/{sandboxId}/proxy/{port}/... for whoever may use the sandbox.
func (p *ports) byKey(c echo.Context) error {
	id, segment := c.Param("sandboxId"), c.Param("port")
	port, err := parsePort(segment)
	if err != nil {
		return err
	}
	// A port comes with all that the sandbox's own user may do there.
	sandbox, err := p.handlers.reach(c.Request().Context(), id, lifecycle.Principal.CanUse)
	if err != nil {
		return err
	}
	address, token, err := p.find(c.Request().Context(), sandbox, port)
	if err != nil {
		return err
	}
	return p.forward(c, address, token, port, id, "/v1/sandboxes/"+id+"/proxy/"+segment)
}

// hostPath is the path of an endpoint of a sandbox on the host's network. Ids are UUIDs, so no other path of the service looks like it.
var hostPath = regexp.MustCompile(`^/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([^/]*)(?:/|$)`)

// byToken serves /{sandboxId}/{port}/... for whoever has the sandbox's token, and leaves every other path alone. It looks before the
// router does, which would otherwise answer unknown paths of two parts in another way than those of one.
func (p *ports) byToken(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		match := hostPath.FindStringSubmatch(echo.GetPath(r))
		if match == nil {
			return next(c)
		}
		id, segment := match[1], match[2]
		c.SetPath("/:sandboxId/:port/*")
		c.SetParamNames("sandboxId", "port")
		c.SetParamValues(id, segment)
		return p.server.Named(reachPort, false)(func(c echo.Context) error { return p.withToken(c, id, segment) })(c)
	}
}

// withToken serves a request whose path is that of an endpoint in host mode.
func (p *ports) withToken(c echo.Context, id, segment string) error {
	r := c.Request()
	port, err := parsePort(segment)
	if err != nil {
		return err
	}
	serve.LogField(r.Context(), "sandbox_id", id)
	sandbox, err := p.handlers.backend.Get(r.Context(), id)
	if err != nil {
		return err
	}
	address, token, err := p.find(r.Context(), sandbox, port)
	if err != nil {
		return err
	}
	var holder lifecycle.Principal
	err = p.server.Attempt(r, func() error {
		sent, signatures := r.Header.Get(lifecycle.TokenHeader), signaturesOf(r)
		switch {
		case sent == "" && len(signatures) > 0:
			holder = signer
			return p.verify(r.Context(), signatures, id, port)
		case sent == "":
			return serve.Unauthorized("header %s: is required; the endpoint of the port tells it", lifecycle.TokenHeader)
		case token == "" || subtle.ConstantTimeCompare([]byte(sent), []byte(token)) != 1:
			return serve.Unauthorized("header %s: is not this sandbox's token", lifecycle.TokenHeader)
		}
		holder = lifecycle.Principal{Name: NameOfToken}
		return nil
	})
	if err != nil {
		return err
	}
	return p.server.Admitted(holder, func(c echo.Context) error {
		return p.forward(c, address, token, port, id, "/"+id+"/"+segment)
	})(c)
}

// find returns where to send a request for a port of the sandbox. Only a Running sandbox answers requests.
func (p *ports) find(ctx context.Context, sandbox lifecycle.Sandbox, port int) (address, token string, err error) {
	serve.LogField(ctx, "port", port)
	if state := sandbox.Status.State; state != lifecycle.StateRunning {
		return "", "", notRunning(state)
	}
	return p.reacher.Reach(ctx, sandbox.ID, port)
}

func notRunning(state lifecycle.State) *lifecycle.Error {
	conflict := state.Forbidden("reach a port", lifecycle.StateRunning)
	if state == lifecycle.StatePending || state == lifecycle.StateResuming {
		conflict.RetryAfter = 1
	}
	return conflict
}

// forward sends the request on. Prefix is the part of the path that leads to the port.
func (p *ports) forward(c echo.Context, address, token string, port int, id, prefix string) error {
	name := strconv.Itoa(port)
	serve.WithoutDeadline(c.Request())
	r, _ := reach.TakeSignatures(c.Request())
	r = reach.WithoutKeys(r, func(value string) bool { return find(p.keys, value) != nil })
	err := p.proxy.Forward(c.Response(), r, proxy.Target{
		Address: address,
		Path:    "/proxy/" + name,
		Prefix:  prefix,
		Set:     map[string]string{lifecycle.TokenHeader: token},
		Strip:   []string{reach.KeyHeader}, // in trailers
		Names:   []string{"127.0.0.1:" + name, "localhost:" + name},
		// People type keys into the pages of /docs, which are of this origin.
		SharedOrigin: true,
		Inspect:      reach.Inspect,
	})
	switch {
	case err == nil && !c.Response().Committed: // the connection was taken over, which echo does not notice
		c.Response().Status = http.StatusSwitchingProtocols
	case errors.Is(err, proxy.ErrRequestBody):
		return serve.Invalid("body: ended before its announced end, or is malformed")
	case errors.Is(err, proxy.ErrNotConnected), errors.Is(err, proxy.ErrNoAnswer), errors.Is(err, reach.ErrTokenRefused):
		zerolog.Ctx(r.Context()).Warn().Err(err).Str("sandbox_id", id).Int("port", port).Msg("the sandbox did not answer")
		// The sandbox may have ended meanwhile, which explains more.
		sandbox, err := p.handlers.backend.Get(r.Context(), id)
		if err != nil {
			return err
		}
		if state := sandbox.Status.State; state != lifecycle.StateRunning {
			return notRunning(state)
		}
		return &serve.Problem{Status: http.StatusBadGateway, Code: reach.CodeNotAnswering,
			Message: fmt.Sprintf("the daemon of sandbox %s did not answer a request for port %d; if it happens again, the sandbox is of no use any more", id, port)}
	}
	return err
}

// parsePort reads a port of a path. A second way to write the same port is refused, because links are made for the first.
func parsePort(segment string) (int, error) {
	port, err := strconv.ParseUint(segment, 10, 16)
	if err != nil || port == 0 || segment[0] == '0' {
		if decoded, err := url.PathUnescape(segment); err == nil {
			segment = decoded
		}
		return 0, lifecycle.Invalidf("path parameter port: must be a decimal number from 1 to 65535 without leading zeros, not %.40q", segment)
	}
	return int(port), nil
}
