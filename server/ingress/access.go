package ingress

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandbox.internal/server/reach"
)

// admit authorises a request by the sandbox's token or by a signature for the port.
func (h *handler) admit(
	r *http.Request, found reach.Signatures, to Destination, endpoint *Endpoint,
) (reach.Pass, error) {
	// Only in this mode has each port a host of its own, so that a cookie of one is not sent to
	// another.
	if h.mode != ModeWildcard || !fromOwnPage(r) {
		found.Cookies = nil
	}
	return h.signing.Admit(reach.Visit{
		ID:         to.Sandbox,
		Port:       to.Port,
		Token:      endpoint.Token,
		Sent:       r.Header.Get(tokenHeader),
		Signatures: found,
	}, h.clock())
}

// fromOwnPage reports whether a request with a cookie may be the user's intent: sent by a page of
// the same host, or a navigation of the window. Pages of other sandboxes belong to the same site,
// so the browser adds the cookie to their requests too, and to those of frames in them.
func fromOwnPage(r *http.Request) bool {
	navigation := r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" &&
		(r.Method == http.MethodGet || r.Method == http.MethodHead)
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-site", "cross-site":
		return navigation
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// cookieOf holds the signature of a navigation, for the page's further requests. It is valid for
// the called host alone.
func cookieOf(pass reach.Pass, r *http.Request, now time.Time) *http.Cookie {
	return &http.Cookie{
		Name:     reach.SignatureName,
		Value:    pass.Signature,
		Path:     "/",
		HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
		Expires:  pass.Until,
		MaxAge:   max(1, int(pass.Until.Sub(now)/time.Second)),
		Secure:   r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
	}
}
