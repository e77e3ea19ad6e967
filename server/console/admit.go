package console

import (
	"net/http"
	"net/url"
	"strings"

	"sandbox.internal/openapi/serve"
)

// ticketName is the query parameter of a WebSocket's ticket.
const ticketName = "console-ticket"

// daemonPort is the port of the execution API, which alone of a sandbox's ports the console
// reaches.
const daemonPort = "44772"

// below returns the request to the API that a request below /console/api stands for, nil for every
// other request.
func below(r *http.Request) *http.Request {
	inner, ok := strings.CutPrefix(r.URL.Path, apiPath)
	if !ok || !strings.HasPrefix(inner, "/v1/") {
		return nil
	}
	raw := r.URL.RawPath
	if raw != "" {
		if raw, ok = strings.CutPrefix(raw, apiPath); !ok || !strings.HasPrefix(raw, "/v1/") {
			return nil
		}
	}
	u := *r.URL
	u.Path, u.RawPath = inner, raw
	to := *r
	to.URL = &u
	return &to
}

// admit returns the session of a request to the API, and takes a ticket out of its query.
func (c *Console) admit(r, inner *http.Request) (*session, error) {
	if err := fromOwnPage(r); err != nil {
		return nil, err
	}
	if !withinReach(inner.URL.Path) {
		return nil, serve.Forbidden(
			"path: the console reaches port %s of a sandbox alone; others have signed endpoints",
			daemonPort,
		)
	}
	if r.Header.Get("Upgrade") == "" {
		return c.sessions.of(r)
	}
	// Every browser names the page's origin in the handshake of a WebSocket.
	if r.Header.Get("Origin") == "" {
		return nil, serve.Forbidden("header Origin: is required")
	}
	query := inner.URL.Query()
	secret := query.Get(ticketName)
	query.Del(ticketName)
	inner.URL.RawQuery = query.Encode()
	for _, candidate := range c.sessions.byCookie(r) {
		good, err := c.sessions.redeem(r, candidate, secret, inner.URL.Path)
		if err != nil {
			return nil, err
		}
		if good {
			return candidate, nil
		}
	}
	return nil, serve.Unauthorized(
		"query parameter %s: is not a ticket of this session for this path, or was used",
		ticketName,
	)
}

// fromOwnPage refuses requests that a browser sends for a page of another origin.
func fromOwnPage(r *http.Request) error {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return serve.Forbidden(
			"header Sec-Fetch-Site: %.20q: the request is not from a page of this origin",
			site,
		)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || u.Host != r.Host || u.Scheme == "http" && overTLS(r) {
			return serve.Forbidden("header Origin: %.100q is not this service's origin", origin)
		}
	}
	return nil
}

// overTLS reports whether the browser is known to have sent a request over TLS.
func overTLS(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}

// withinReach reports whether a path of the API is not one that leads to a port other than the
// execution API's.
func withinReach(path string) bool {
	parts := strings.Split(path, "/") // "", v1, sandboxes, id, proxy, port, ...
	if len(parts) < 5 || parts[4] != "proxy" {
		return true
	}
	return len(parts) > 5 && parts[5] == daemonPort && (len(parts) == 6 || parts[6] != "proxy")
}
