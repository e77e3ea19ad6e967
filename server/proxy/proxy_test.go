package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/test/loopback"

	"sandbox.internal/server/proxy"
)

func TestPathAndQueryArriveAsWritten(t *testing.T) {
	address := upstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })
	below, root := forwarder(t, to(address)), forwarder(t, proxy.Target{Address: address, Prefix: prefix})
	for name, tc := range map[string]struct{ sent, want string }{
		"no path":            {"", "/"},
		"no path, a query":   {"?a=1", "/?a=1"},
		"slash":              {"/", "/"},
		"plain":              {"/a/b.html?x=1&y=2", "/a/b.html?x=1&y=2"},
		"escaped slash":      {"/a%2Fb", "/a%2Fb"},
		"lower case escape":  {"/a%2fb", "/a%2fb"},
		"needless escape":    {"/%61", "/%61"},
		"escaped percent":    {"/100%25/%20x", "/100%25/%20x"},
		"not a URL's letter": {"/a|b^c", "/a|b^c"},
		"letters beyond 127": {"/ü", "/ü"},
		"dot segments":       {"/a/../b/./c", "/a/../b/./c"},
		"two slashes":        {"//host/x", "//host/x"},
		"slashes inside":     {"/a//b/", "/a//b/"},
		"semicolon in query": {"/?a=1;b=2", "/?a=1;b=2"},
		"broken query":       {"/?%zz&a=%", "/?%zz&a=%"},
		"bare question mark": {"/x?", "/x?"},
		"the prefix again":   {prefix + "/x", prefix + "/x"},
	} {
		t.Run(name, func(t *testing.T) {
			request := "GET " + prefix + tc.sent + " HTTP/1.1\nHost: x\nConnection: close\n\n"
			if _, got := answerOf(t, raw(t, below, request)); got != "/up"+tc.want {
				t.Errorf("below a path the server saw %q, want %q", got, "/up"+tc.want)
			}
			if _, got := answerOf(t, raw(t, root, request)); got != tc.want {
				t.Errorf("without one the server saw %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPathOutsideOfThePrefix(t *testing.T) {
	server := forwarder(t, to(upstream(t, func(http.ResponseWriter, *http.Request) { t.Error("the request got through") })))
	for _, path := range []string{"/", "/box", "/box/80000/x", "/%62ox/8000/x"} {
		if response, body := get(t, server, path); response.StatusCode != http.StatusTeapot {
			t.Errorf("%s: %d %s", path, response.StatusCode, body)
		}
	}
}

func TestEveryMethodPasses(t *testing.T) {
	server := forwarder(t, to(upstream(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Was", r.Method) })))
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "LOCK", "QUERY", "X-OWN"} {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+prefix+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if response, _ := do(t, server, r); response.Header.Get("Was") != method {
			t.Errorf("%s: the server saw %q", method, response.Header.Get("Was"))
		}
	}
}

func TestHeadersThatTheServerSees(t *testing.T) {
	address := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Host: %s\n", r.Host)
		r.Header.Write(w)
	})
	target := to(address)
	target.Set = map[string]string{"X-Token": "of the server"}
	target.Strip = []string{"X-Key"}
	server := forwarder(t, target)
	host := server.Listener.Addr().String()

	for name, tc := range map[string]struct {
		sent, want, without []string
	}{
		"where it came from": {
			want: []string{"Host: " + address, "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: " + host, "X-Forwarded-Proto: http",
				"X-Forwarded-Prefix: " + prefix, "X-Token: of the server"},
		},
		"behind a reverse proxy": {
			sent: []string{"X-Forwarded-For", "192.0.2.7", "X-Forwarded-Host", "box.example", "X-Forwarded-Proto", "https"},
			want: []string{"X-Forwarded-For: 192.0.2.7, 127.0.0.1", "X-Forwarded-Host: box.example", "X-Forwarded-Proto: https"},
		},
		"a prefix of the client's": {sent: []string{"X-Forwarded-Prefix", "/evil"}, want: []string{"X-Forwarded-Prefix: " + prefix}, without: []string{"evil"}},
		"a token of the client's":  {sent: []string{"X-Token", "guess"}, want: []string{"X-Token: of the server"}, without: []string{"guess"}},
		"a token hop by hop":       {sent: []string{"Connection", "X-Token"}, want: []string{"X-Token: of the server"}},
		"stripped":                 {sent: []string{"X-Key", "secret", "x-key", "twice"}, without: []string{"X-Key", "secret", "twice"}},
		"hop by hop": {
			sent:    []string{"Connection", "X-Hop", "X-Hop", "1", "Keep-Alive", "1", "Proxy-Authorization", "1"},
			without: []string{"X-Hop", "Keep-Alive", "Proxy-Authorization"},
		},
		"nothing invented":  {sent: []string{"Accept-Encoding", "br"}, want: []string{"Accept-Encoding: br"}, without: []string{"gzip"}},
		"the server's auth": {sent: []string{"Authorization", "Bearer x", "Cookie", "a=b"}, want: []string{"Authorization: Bearer x", "Cookie: a=b"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := get(t, server, prefix+"/", tc.sent...)
			lines := strings.Split(strings.ReplaceAll(body, "\r", ""), "\n")
			for _, want := range tc.want {
				if !slices.Contains(lines, want) {
					t.Errorf("no line %q in\n%s", want, body)
				}
			}
			for _, unwanted := range tc.without {
				if strings.Contains(body, unwanted) {
					t.Errorf("%q reached the server:\n%s", unwanted, body)
				}
			}
		})
	}
}

func TestInterimAnswersPass(t *testing.T) {
	target := to(upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Request-ID", "the server's own")
		w.Header().Set("Link", "</style.css>")
		w.Header().Set("Set-Cookie", "a=b; Path=/")
		w.Header().Set("Clear-Site-Data", "*")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusAccepted)
		io.WriteString(w, "in the end")
	}))
	target.SharedOrigin = true
	server := forwarder(t, target)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+prefix+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	var hints string
	var early textproto.MIMEHeader
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
			hints, early = header.Get("Link"), header
			return nil
		},
	}))
	response, body := do(t, server, r)
	if hints != "</style.css>" {
		t.Errorf("early hints %q did not come through", hints)
	}
	if early.Get("Set-Cookie") != "" || early.Get("Clear-Site-Data") != "" {
		t.Errorf("an interim answer reaches beyond its prefix: %v", early)
	}
	if response.StatusCode != http.StatusAccepted || body != "in the end" {
		t.Errorf("%d %q", response.StatusCode, body)
	}
	if ids := response.Header["X-Request-Id"]; len(ids) != 1 || ids[0] != "made-here" {
		t.Errorf("X-Request-ID %q, want one, ours", ids)
	}
}

func TestHeadHasALengthAndNoBody(t *testing.T) {
	server := forwarder(t, to(upstream(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "12345") })))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, server.URL+prefix+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, body := do(t, server, r)
	if response.Header.Get("Content-Length") != "12345" || body != "" {
		t.Errorf("Content-Length %q, body %q", response.Header.Get("Content-Length"), body)
	}
}

func TestTrailersPassBothWays(t *testing.T) {
	target := to(upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Announced")
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", body, err)
		w.Header().Set("Announced", "1"+r.Trailer.Get("Digest"))
		w.Header().Set(http.TrailerPrefix+"Late", "2"+r.Trailer.Get("X-Key"))
	}))
	target.Strip = []string{"X-Key"}
	server := forwarder(t, target)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+prefix+"/", io.NopCloser(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = -1
	r.Trailer = http.Header{"Digest": {"sum"}, "X-Key": {"secret"}}
	response, body := do(t, server, r)
	if body != "body <nil>" || response.Trailer.Get("Announced") != "1sum" || response.Trailer.Get("Late") != "2" {
		t.Errorf("body %q, trailers %v", body, response.Trailer)
	}
}

func TestNothingListens(t *testing.T) {
	server := forwarder(t, to(loopback.Refusing(t)))
	response, body := get(t, server, prefix+"/x")
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	if ids := response.Header["X-Request-Id"]; len(ids) != 1 {
		t.Errorf("X-Request-ID %q, want one", ids)
	}
}

// TestServerThatSpeaksNoHTTP: the error, which is logged, has nothing of what the server said.
func TestServerThatSpeaksNoHTTP(t *testing.T) {
	for name, said := range map[string]string{
		"another protocol":   "220 mail.example ESMTP\r\n",
		"a long line":        strings.Repeat("x", 200<<10) + "\r\n",
		"a long upgrade":     "HTTP/1.1 101 Switching Protocols\r\nUpgrade: \"" + strings.Repeat("x", 9<<10) + "\r\n\r\n",
		"nothing":            "",
		"an endless header":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) + "\r\n\r\n",
		"an unasked upgrade": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					io.WriteString(conn, said)
				}
			}()
			response, body := get(t, forwarder(t, to(listener.Addr().String())), prefix+"/")
			if response.StatusCode != http.StatusBadGateway {
				t.Fatalf("%d %s", response.StatusCode, body)
			}
			if strings.Contains(body, "mail.example") || len(body) > 1<<10 {
				t.Errorf("the error is %.500s", body)
			}
		})
	}
}

func TestInspect(t *testing.T) {
	target := to(upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Own", "1")
		io.WriteString(w, "theirs")
	}))
	refused := errors.New("refused")
	target.Inspect = func(r *http.Response) error {
		if r.Request.Header.Get("Refuse") != "" {
			return refused
		}
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader("ours "), r.Body))
		r.Header.Del("Content-Length")
		return nil
	}
	server := forwarder(t, target)
	if response, body := get(t, server, prefix+"/"); body != "ours theirs" {
		t.Errorf("%d %q", response.StatusCode, body)
	}
	response, body := get(t, server, prefix+"/", "Refuse", "1")
	if response.StatusCode != http.StatusTeapot || body != "refused" || response.Header.Get("X-Own") != "" {
		t.Errorf("%d %q, %v", response.StatusCode, body, response.Header)
	}
}
