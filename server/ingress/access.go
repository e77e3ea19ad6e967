package ingress

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandbox.internal/server/reach"
)

// admit lets a request in that carries the sandbox's token or a signature for the port.
func (g *Gateway) admit(r *http.Request, found reach.Signatures, to Destination, place *Place) (reach.Pass, error) {
	// Only in this mode has each port a host of its own, so that a cookie of one is not sent to another.
	if g.mode != ModeWildcard || !fromOwnPage(r) {
		found.Cookies = nil
	}
	return g.signing.Admit(reach.Visit{
		ID: to.Sandbox, Port: to.Port, Token: place.Token, Sent: r.Header.Get(tokenHeader), Signatures: found,
	}, g.clock())
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

// cookieOf keeps the signature of a visit, for what the page asks for next. It is for the host that was called, and for no other.
func cookieOf(pass reach.Pass, r *http.Request, now time.Time) *http.Cookie {
	return &http.Cookie{
		Name: reach.SignatureName, Value: pass.Signature, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Expires: pass.Until, MaxAge: max(1, int(pass.Until.Sub(now)/time.Second)),
		Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
	}
}
