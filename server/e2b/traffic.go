package e2b

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/proxy"
	"sandbox.internal/server/reach"
)

// trafficHeader carries the token that lets into the ports of a private sandbox.
const trafficHeader = "E2b-Traffic-Access-Token"

// visit is a request to a port of a program in a sandbox.
type visit struct {
	id   string
	port int
}

// needsTraffic is the refusal of a request to a private sandbox.
const needsTraffic = "header e2b-traffic-access-token: is not the sandbox's traffic token, which it needs"

type visitKey struct{}

func withVisit(r *http.Request, v visit) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), visitKey{}, v))
}

// trafficServer returns what answers requests to the ports of programs. They need no key, as with
// E2B: the id of a sandbox cannot be guessed, and a private one needs its traffic token.
func (e *Edge) trafficServer() (*serve.Server, error) {
	server, err := serve.New(serve.Options{
		// It has no contract of its own: the API behind a port is the sandbox's.
		Rules:  &rules.Contract{KeyHeader: lifecycle.TokenHeader},
		Logger: e.Logger,
	})
	if err != nil {
		return nil, err
	}
	server.HandleAll("reachPort", e.visit)
	return server, nil
}

// visit forwards a request to a port of a program.
func (e *Edge) visit(c echo.Context) error {
	r := c.Request()
	v := r.Context().Value(visitKey{}).(visit)
	serve.LogField(r.Context(), "sandbox_id", v.id)
	serve.LogField(r.Context(), "port", v.port)
	denied := false
	target, unreachable := e.ready(r.Context(), v.id, true, func(target reachable) bool {
		denied = target.private && !reach.Equal(r.Header.Get(trafficHeader), trafficToken(target.token))
		return !denied && !isDaemon(v.port, target.daemon)
	})
	switch {
	case denied:
		sendProblem(c.Response(), http.StatusForbidden, needsTraffic)
		return nil
	case unreachable != "":
		sendUnreachable(c.Response(), externalID(v.id), unreachable)
		return nil
	}
	// The id of the sandbox let the request in. Among the connections without a key, whose number
	// and bytes are bounded, an upload of more than 4 MiB would be cut, and the oldest WebSocket.
	listen.NoteAuthenticated(r.Context())
	listen.ForwardBody(r)
	name := strconv.Itoa(v.port)
	err := e.proxy.Forward(c.Response(), reach.WithoutKeys(r, e.IsKey), proxy.Target{
		Address:      target.daemon,
		Path:         "/proxy/" + name,
		Set:          map[string]string{lifecycle.TokenHeader: target.token},
		Strip:        []string{reach.KeyHeader, lifecycle.KeyNameHeader, trafficHeader, idHeader, portHeader, tokenHeader},
		Names:        []string{"127.0.0.1:" + name, "localhost:" + name},
		SiblingHosts: true,
		Inspect:      reach.Inspect,
	})
	var refused *serve.Problem
	switch {
	case err == nil && !c.Response().Committed:
		// the connection was hijacked, which echo does not see
		c.Response().Status = http.StatusSwitchingProtocols
	case errors.Is(err, proxy.ErrRequestBody):
		return serve.Invalid("body: ended before its announced end, or is malformed")
	case errors.As(err, &refused):
		sendUnreachable(c.Response(), externalID(v.id), refused.Message)
		return nil
	case errors.Is(err, proxy.ErrNotConnected), errors.Is(err, proxy.ErrNoAnswer), errors.Is(err, reach.ErrTokenRefused):
		sendUnreachable(c.Response(), externalID(v.id), "the sandbox did not answer")
		return nil
	}
	return err
}

// isDaemon reports whether a port may be execd's, to which the request would go with its token:
// the one that it has in a network of its own, or the one that the service reaches it by, which it
// has in the host's network. The egress sidecar's is not for programs either.
func isDaemon(port int, daemon string) bool {
	_, published, _ := net.SplitHostPort(daemon)
	return port == lifecycle.DaemonPort || port == lifecycle.SidecarPort || strconv.Itoa(port) == published
}
