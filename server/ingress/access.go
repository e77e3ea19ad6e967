package ingress

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/reach"
)

// pass is how a request was let in.
type pass struct {
	by    string    // "token" or "signature", for the log
	until time.Time // of a signature in the query
	query string    // that signature
}

// admit lets a request in that carries the sandbox's token or a signature for the port.
func (g *Gateway) admit(r *http.Request, found reach.Signatures, to Destination, place *Place) (pass, error) {
	if sent := r.Header.Get(tokenHeader); sent != "" {
		if place.Token == "" || !equal(sent, place.Token) {
			return pass{}, serve.Unauthorized("header %s: is not this sandbox's token", lifecycle.TokenHeader)
		}
		return pass{by: "token"}, nil
	}
	var failure error
	for _, signature := range found.Query {
		until, err := g.signing.Verify(signature, to.Sandbox, to.Port, g.clock())
		if err == nil {
			return pass{by: "signature", until: until, query: signature}, nil
		}
		failure = serve.Unauthorized("query parameter %s: %v", reach.SignatureName, err)
	}
	// Only here has each port a host of its own, so that a cookie of one is not sent to another.
	if g.mode == ModeWildcard && fromOwnPage(r) {
		for _, signature := range found.Cookies {
			_, err := g.signing.Verify(signature, to.Sandbox, to.Port, g.clock())
			if err == nil {
				return pass{by: "cookie"}, nil
			}
			failure = serve.Unauthorized("cookie %s: %v", reach.SignatureName, err)
		}
	}
	if failure == nil {
		failure = serve.Unauthorized("header %s, or query parameter %s: is required", lifecycle.TokenHeader, reach.SignatureName)
	}
	return pass{}, failure
}

// equal takes the same time whatever was sent.
func equal(sent, token string) bool {
	a, b := sha256.Sum256([]byte(sent)), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// fromOwnPage reports whether a request with a cookie may be what the user wants: one that a page of the same host makes, or a visit.
// Pages of other sandboxes belong to the same site, so the browser sends them the cookie's requests too.
func fromOwnPage(r *http.Request) bool {
	visit := r.Header.Get("Sec-Fetch-Mode") == "navigate" && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-site", "cross-site":
		return visit
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// cookie keeps the signature of a visit, for what the page asks for next. It is for the host that was called, and for no other.
func (p pass) cookie(r *http.Request, now time.Time) *http.Cookie {
	return &http.Cookie{
		Name: reach.SignatureName, Value: p.query, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Expires: p.until, MaxAge: max(1, int(p.until.Sub(now)/time.Second)),
		Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
	}
}
