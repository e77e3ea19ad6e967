package api

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// Names in the log and in the audit log in place of an API key's name, for requests to ports that
// need no key. A key must not have them.
const (
	NameOfSignature = "signed endpoint"
	NameOfToken     = "token of the sandbox"
)

// visit is a request to a port, as read from its path.
type visit struct {
	id, segment string // segment is the port as written in the path
	prefix      string // the part of the path that leads to the port
	// the path is that of an endpoint in host mode, which accepts a token and no key
	token bool
	// key is the name of the API key that let the request in, empty for none
	key string
}

// enter forwards a request to a port that one of three authorises: an API key, a signature of the
// port, or the sandbox's token. On a path for keys a key takes precedence over a signature; on one
// for tokens a token does.
func (p *ports) enter(c echo.Context, v visit) error {
	signatures := signaturesOf(c.Request())
	switch {
	case v.token:
		return p.byToken(c, v, signatures)
	case len(signatures) == 0 || c.Request().Header.Get(reach.KeyHeader) != "":
		c.SetRequest(markToPort(c.Request()))
		return p.server.AuthenticatedAndCounted(
			func(c echo.Context) error { return p.byKey(c, v) })(
			c,
		)
	}
	return p.bySignature(c, v, signatures)
}

// byKey forwards a request of a caller that may use the sandbox: access to a port gives everything
// that the sandbox's user may do.
func (p *ports) byKey(c echo.Context, v visit) error {
	port, err := parsePort(v.segment)
	if err != nil {
		return err
	}
	sandbox, err := p.handlers.authorized(c.Request().Context(), v.id, lifecycle.Principal.CanUse)
	if err != nil {
		return err
	}
	location, err := p.handlers.locate(c.Request().Context(), sandbox, port)
	if err != nil {
		return err
	}
	v.key = caller(c.Request().Context()).Name
	return p.forward(c, sandbox, location, port, v)
}

// bySignature forwards a request that carries a signature of the port. Without a valid one the
// response does not reveal whether the sandbox exists.
func (p *ports) bySignature(c echo.Context, v visit, signatures []string) error {
	port, err := parsePort(v.segment)
	if err != nil {
		return err
	}
	r := c.Request()
	serve.LogField(r.Context(), "sandbox_id", v.id)
	holder, err := p.admit(r,
		reach.Visit{ID: v.id, Port: port, Signatures: reach.Signatures{Query: signatures}},
		func() (string, error) { return p.tokenOf(r, v.id, port) })
	if err != nil {
		return err
	}
	sandbox, location, err := p.find(r, v.id, port)
	if err != nil {
		return err
	}
	return p.server.Admitted(holder,
		func(c echo.Context) error { return p.forward(c, sandbox, location, port, v) })(
		c,
	)
}

// byToken forwards a request that carries the sandbox's token, or a signature of the port.
func (p *ports) byToken(c echo.Context, v visit, signatures []string) error {
	port, err := parsePort(v.segment)
	if err != nil {
		return err
	}
	r := c.Request()
	serve.LogField(r.Context(), "sandbox_id", v.id)
	sandbox, location, err := p.find(r, v.id, port)
	if err != nil {
		return err
	}
	holder, err := p.admit(r, reach.Visit{
		ID:         v.id,
		Port:       port,
		Sent:       r.Header.Get(lifecycle.TokenHeader),
		Signatures: reach.Signatures{Query: signatures},
	}, func() (string, error) { return location.Token, nil })
	if err != nil {
		return err
	}
	return p.server.Admitted(holder,
		func(c echo.Context) error { return p.forward(c, sandbox, location, port, v) })(
		c,
	)
}

// tokenOf returns the token of a sandbox, empty for one that has ended or does not exist. It does
// not wait for a Pending one, which no signature was made for.
func (p *ports) tokenOf(r *http.Request, id string, port int) (string, error) {
	backend := p.handlers.backend
	sandbox, err := backend.Get(r.Context(), id)
	if err != nil || sandbox.Status.State == lifecycle.StatePending {
		return "", unlessAbsent(err)
	}
	location, err := backend.Locate(r.Context(), id, port)
	return location.Token, unlessAbsent(err)
}

// unlessAbsent leaves out the errors that say that a sandbox has no endpoint.
func unlessAbsent(err error) error {
	var known *lifecycle.Error
	if errors.As(err, &known) && (known.Kind == lifecycle.KindNotFound ||
		known.Kind == lifecycle.KindConflict) {
		return nil
	}
	return err
}

// admit returns the caller of a request that a token or a signature authorises. A refusal counts
// like a wrong key, and an address with too many of them is refused before the token is looked up.
func (p *ports) admit(
	r *http.Request, v reach.Visit, token func() (string, error),
) (holder lifecycle.Principal, err error) {
	err = p.server.Attempt(r, func() error {
		if v.Token, err = token(); err != nil {
			return err
		}
		pass, err := p.signing.Admit(v, p.clock())
		if err != nil {
			return err
		}
		holder = lifecycle.Principal{Name: NameOfToken}
		if pass.By == reach.BySignature {
			holder = lifecycle.Principal{Name: NameOfSignature}
			serve.LogField(r.Context(), "key_name", holder.Name)
		}
		return nil
	})
	return holder, err
}

// signaturesOf returns the signatures in the query. Cookies do not count: all sandboxes share the
// service's origin, so a browser would send a cookie with the requests of another sandbox's page.
func signaturesOf(r *http.Request) []string {
	_, found := reach.TakeSignatures(r)
	return found.Query
}
