package ingress_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/ingress"
	"sandbox.internal/test/wait"
)

func TestTokenIsAsked(t *testing.T) {
	for _, mode := range modes {
		in := static(t, mode, http.HandlerFunc(showRequest))
		for _, wrong := range []string{"", "guess", token + "x", token[:5]} {
			got := in.get(t, "/", "X-EXECD-ACCESS-TOKEN", wrong)
			got.wantProblem(t, http.StatusUnauthorized, "UNAUTHORIZED", "X-EXECD-ACCESS-TOKEN")
			if !strings.Contains(got.Header.Get("WWW-Authenticate"), "X-EXECD-ACCESS-TOKEN") {
				t.Errorf("%s: WWW-Authenticate %q", mode, got.Header.Get("WWW-Authenticate"))
			}
		}
	}
}

func TestSignatureLetsIn(t *testing.T) {
	for _, mode := range modes {
		in := static(t, mode, http.HandlerFunc(showRequest))
		until := time.Now().Add(time.Hour)
		signature := in.signing.Sign(box, token, 8000, until)
		query := "sandbox-signature=" + url.QueryEscape(signature)
		open := func(path string, headers ...string) answer {
			return in.get(t, path, append([]string{"X-EXECD-ACCESS-TOKEN", ""}, headers...)...)
		}
		got := open("/x?a=%31&"+query, "Referer", in.url+"/?"+query, "Cookie", "b=2; "+query)
		if got.StatusCode != 200 || !strings.HasPrefix(got.body, "GET /proxy/8000/x?a=%31\n") || strings.Contains(got.body, "ignature") || !strings.Contains(got.body, "Cookie: b=2\r") {
			t.Errorf("%s: %d %s", mode, got.StatusCode, got.body)
		}
		cookies := got.Cookies()
		if mode != ingress.ModeWildcard {
			if len(cookies) > 0 || !strings.Contains(got.Header.Get("Content-Security-Policy"), "sandbox allow-scripts") {
				t.Errorf("%s: cookies %v, headers %v: sandboxes share this origin", mode, cookies, got.Header)
			}
			open("/", "Cookie", query).wantProblem(t, 401, "UNAUTHORIZED", "is required")
		} else {
			if len(cookies) != 1 || cookies[0].Value != signature || !cookies[0].HttpOnly || cookies[0].Domain != "" || cookies[0].Path != "/" ||
				cookies[0].Secure || cookies[0].SameSite != http.SameSiteLaxMode || cookies[0].Expires.Unix() != until.Unix() {
				t.Fatalf("cookies %+v", cookies)
			}
			if secure := open("/?"+query, "X-Forwarded-Proto", "https").Cookies(); len(secure) != 1 || !secure[0].Secure {
				t.Errorf("behind TLS: %+v", secure)
			}
			next := open("/style.css", "Cookie", "sandbox-signature=of-another; "+query+"; b=2", "Sec-Fetch-Site", "same-origin")
			if next.StatusCode != 200 || len(next.Cookies()) != 0 || strings.Contains(next.body, "ignature") || !strings.Contains(next.body, "Cookie: b=2\r") {
				t.Errorf("with the cookie: %d %s", next.StatusCode, next.body)
			}
			open("/", "Cookie", query, "Origin", "http://evil-8000."+domain).wantProblem(t, 401, "UNAUTHORIZED")
			open("/", "Cookie", "sandbox-signature=x").wantProblem(t, 401, "UNAUTHORIZED", "cookie")
		}
		// It is for one port of one sandbox, and for a while: not for another one that has the id
		// later.
		for _, wrong := range []string{
			in.signing.Sign(box, token, 8001, until), in.signing.Sign("other", token, 8000, until), signature + "x", "x",
			in.signing.Sign(box, "of an earlier sandbox", 8000, until),
		} {
			open("/?sandbox-signature="+wrong).wantProblem(t, 401, "UNAUTHORIZED", "sandbox-signature", "not valid")
		}
		open("/?sandbox-signature="+in.signing.Sign(box, token, 8000, time.Now())).wantProblem(t, 401, "UNAUTHORIZED", "expired")
		// A token counts first.
		in.get(t, "/?"+query, "X-EXECD-ACCESS-TOKEN", "guess").wantProblem(t, 401, "UNAUTHORIZED", "X-EXECD-ACCESS-TOKEN")
		// The line follows the answer.
		wait.Until(t, "the line of the request that was let in", func() bool { return strings.Contains(in.log.text(), `"access":"signature"`) })
		if log := in.log.text(); strings.Contains(log, signature) || strings.Contains(log, strings.Split(signature, ".")[1]) {
			t.Errorf("%s: the log: %s", mode, log)
		}
	}
}

func TestNoSignaturesWithoutAKey(t *testing.T) {
	file := routes(t, http.HandlerFunc(showRequest), "")
	in := start(t, ingress.ModeURI, func(s *ingress.Settings) { s.Routes, s.SigningKey = file, "" })
	in.get(t, "/?sandbox-signature="+in.signing.Sign(box, token, 8000, time.Now().Add(time.Hour)), "X-EXECD-ACCESS-TOKEN", "").wantProblem(t, 401, "UNAUTHORIZED")
}

// TestCookieIsForOwnPages: the browser sends the cookie also with what pages of other sandboxes ask
// for.
func TestCookieIsForOwnPages(t *testing.T) {
	for _, tc := range []struct {
		method, site, mode, origin, dest string
		want                             bool
	}{
		{"GET", "", "", "", "", true}, // a program, or an old browser
		{"GET", "none", "navigate", "", "document", true},
		{"GET", "same-origin", "cors", "", "", true},
		{"POST", "same-origin", "cors", "http://h", "", true},
		{"GET", "same-site", "navigate", "", "document", true},
		{"GET", "cross-site", "navigate", "", "document", true},
		{"GET", "same-site", "navigate", "", "iframe", false}, // of a page that would have its user click there
		{"GET", "cross-site", "navigate", "", "object", false},
		{"POST", "same-site", "navigate", "http://other", "document", false},
		{"GET", "same-site", "cors", "http://other", "", false},
		{"GET", "same-site", "no-cors", "", "", false},
		{"GET", "cross-site", "websocket", "http://other", "", false},
		{"GET", "", "", "http://other", "", false}, // a WebSocket of an old browser
		{"GET", "", "", "http://H", "", true},
		{"POST", "", "", "null", "", false},
		{"POST", "", "", "http://h.evil", "", false},
	} {
		r := httptest.NewRequest(tc.method, "http://h/", nil)
		for name, value := range map[string]string{"Sec-Fetch-Site": tc.site, "Sec-Fetch-Mode": tc.mode, "Origin": tc.origin,
			"Sec-Fetch-Dest": tc.dest} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		if got := ingress.FromOwnPage(r); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}
