package proxy_test

import (
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"testing"

	"sandbox.internal/server/proxy"
)

// answering starts a server that answers with these headers, and a forwarder in front of it.
func answering(t *testing.T, target proxy.Target, header http.Header) func(path string) http.Header {
	t.Helper()
	target.Address = upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range header {
			w.Header()[name] = values
		}
		w.WriteHeader(http.StatusSeeOther)
	})
	server := forwarder(t, target)
	return func(path string) http.Header {
		response, _ := get(t, server, path, "X-Forwarded-Host", "public.example")
		return response.Header
	}
}

func TestLocation(t *testing.T) {
	target := to("")
	target.Names = []string{"127.0.0.1:8000"}
	for given, want := range map[string]string{
		"/login?next=/a#b":                prefix + "/login?next=/a#b",
		"/":                               prefix + "/",
		"/?a":                             prefix + "/?a",
		"/up":                             prefix,
		"/up/login":                       prefix + "/login",
		"/upper":                          prefix + "/upper",
		prefix + "/login":                 prefix + "/login",
		prefix:                            prefix,
		prefix + "?a":                     prefix + "?a",
		"/box/80001":                      prefix + "/box/80001",
		"login":                           "login",
		"../login":                        "../login",
		"?a=1":                            "?a=1",
		"http://127.0.0.1:8000/login":     prefix + "/login",
		"http://127.0.0.1:8000":           prefix + "/",
		"http://127.0.0.1:8000?a=%2F":     prefix + "/?a=%2F",
		"https://public.example/x":        prefix + "/x",
		"//public.example/x":              prefix + "/x",
		"https://elsewhere.example/x":     "https://elsewhere.example/x",
		"//elsewhere.example/x":           "//elsewhere.example/x",
		"http://127.0.0.1:8001/":          "http://127.0.0.1:8001/",
		"mailto:a@example.com":            "mailto:a@example.com",
		"http://a b":                      "http://a b",
		"https://public.example" + prefix: prefix,
	} {
		t.Run(given, func(t *testing.T) {
			if got := answering(t, target, http.Header{"Location": {given}})(prefix + "/x").Get("Location"); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	rootless := proxy.Target{}
	if got := answering(t, rootless, http.Header{"Location": {"/login"}})("/").Get("Location"); got != "/login" {
		t.Errorf("without a prefix: %q", got)
	}
}

func TestSharedOrigin(t *testing.T) {
	header := http.Header{
		"Content-Security-Policy":   {"default-src 'self'"},
		"Clear-Site-Data":           {`"*"`},
		"Strict-Transport-Security": {"max-age=1"},
		"Service-Worker-Allowed":    {"/"},
		"Alt-Svc":                   {`h2="evil.example:443"`},
		"Nel":                       {"{}"},
		"Report-To":                 {"{}"},
		"Public-Key-Pins":           {"x"},
		"Set-Cookie": {
			"a=1", "b=2; Path=/; HttpOnly; SameSite=Lax", "c=3; path=/app/; Domain=.example.com; Secure",
			"d=4; Path=" + prefix + "/x", "e=5; Path=/up/y", "f=6; Path=/box/80001", "g=7; Path=relative",
			"h=8; Path=/v1; Path=/", "i=9;PATH = /x ; Max-Age=1",
		},
		"X-Other": {"stays"},
	}
	shared := to("")
	shared.SharedOrigin = true

	got := answering(t, shared, header)(prefix + "/dir/x")
	if policies := got.Values("Content-Security-Policy"); !slices.Equal(policies, []string{"default-src 'self'", "sandbox allow-scripts allow-forms allow-popups allow-downloads"}) {
		t.Errorf("policies %q", policies)
	}
	for _, name := range []string{"Clear-Site-Data", "Strict-Transport-Security", "Service-Worker-Allowed", "Alt-Svc", "NEL", "Report-To", "Public-Key-Pins"} {
		if value := got.Get(name); value != "" {
			t.Errorf("%s: %s reaches the whole origin", name, value)
		}
	}
	if got.Get("X-Other") != "stays" {
		t.Error("a header of the server's own is gone")
	}
	want := []string{
		"a=1", "b=2; HttpOnly; SameSite=Lax; Path=" + prefix, "c=3; Secure; Path=" + prefix + "/app",
		"d=4; Path=" + prefix + "/x", "e=5; Path=" + prefix + "/y", "f=6; Path=" + prefix + "/box/80001", "g=7",
		"h=8; Path=" + prefix, "i=9; Max-Age=1; Path=" + prefix + "/x",
	}
	if cookies := got.Values("Set-Cookie"); !slices.Equal(cookies, want) {
		t.Errorf("got  %q\nwant %q", cookies, want)
	}
	// Without a path of its own, a cookie of a request for the prefix itself would get the
	// directory above.
	if cookies := answering(t, shared, header)(prefix).Values("Set-Cookie"); cookies[0] != "a=1; Path="+prefix {
		t.Errorf("a cookie of the prefix itself: %q", cookies[0])
	}

	alone := answering(t, to(""), header)(prefix + "/")
	for name, values := range header {
		if !slices.Equal(alone.Values(name), values) {
			t.Errorf("on an origin of its own %s is %q, want %q", name, alone.Values(name), values)
		}
	}
}

// TestCommandsToAProxyInFront: no answer makes a proxy in front of this one answer with something
// else.
func TestCommandsToAProxyInFront(t *testing.T) {
	commands := []string{
		"X-Accel-Redirect", "x-accel-expires", "X-Accel-Limit-Rate", "X-Accel-Charset", "X-Sendfile", "X-Sendfile2",
		"X-LIGHTTPD-send-file", "X-LIGHTTPD-send-tempfile", "X-LiteSpeed-Location", "X-Reproxy-URL",
	}
	shared, sibling := to(""), proxy.Target{SiblingHosts: true, Path: "/up", Prefix: prefix}
	shared.SharedOrigin = true
	for name, target := range map[string]proxy.Target{"alone": to(""), "shared": shared, "sibling": sibling} {
		t.Run(name, func(t *testing.T) {
			target.Address = upstream(t, func(w http.ResponseWriter, _ *http.Request) {
				for _, name := range commands {
					w.Header().Set(name, "/v1/sandboxes")
				}
				w.Header().Set("X-Accel-Buffering", "no")
				w.Header().Set("X-Accelerator", "stays")
				w.WriteHeader(http.StatusEarlyHints)
				w.WriteHeader(http.StatusOK)
			})
			var interim textproto.MIMEHeader
			trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
				interim = header
				return nil
			}}
			server := forwarder(t, target)
			r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, server.URL+prefix, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, _ := do(t, server, r)
			for kind, header := range map[string]http.Header{"interim": http.Header(interim), "final": response.Header} {
				for _, name := range commands {
					if value := header.Get(name); value != "" {
						t.Errorf("the %s answer has %s: %s", kind, name, value)
					}
				}
				for name, want := range map[string]string{"X-Accel-Buffering": "no", "X-Accelerator": "stays"} {
					if got := header.Get(name); got != want {
						t.Errorf("the %s answer has %s: %q, want %q", kind, name, got, want)
					}
				}
			}
		})
	}
}
