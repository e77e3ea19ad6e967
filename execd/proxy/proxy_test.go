package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/test/loopback"
)

func TestPathAndQueryArriveAsWritten(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })

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
		"a proxy path":       {"/proxy/44772/ping", "/proxy/44772/ping"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := raw(t, server, "GET "+to(port, tc.sent)+" HTTP/1.1\nHost: x\nConnection: close\n\n")
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			got, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != http.StatusOK || string(got) != tc.want {
				t.Fatalf("the server saw %q (status %d, error %v), want %q", got, response.StatusCode, err, tc.want)
			}
		})
	}
}

func TestHeadersThatTheServerSees(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Host: %s\n", r.Host)
		r.Header.Write(w)
	})
	host, local := server.Listener.Addr().String(), fmt.Sprintf("127.0.0.1:%d", port)

	for name, tc := range map[string]struct {
		sent    []string
		want    []string
		without []string
	}{
		"where it came from": {
			want: []string{
				"Host: " + local,
				"X-Forwarded-For: 127.0.0.1",
				"X-Forwarded-Host: " + host,
				"X-Forwarded-Proto: http",
				fmt.Sprintf("X-Forwarded-Prefix: /proxy/%d", port),
			},
		},
		"behind a reverse proxy": {
			sent: []string{"X-Forwarded-For", "192.0.2.7", "X-Forwarded-Host", "box.example", "X-Forwarded-Proto", "https", "Origin", "https://box.example",
				"X-Forwarded-Prefix", "/boxes/1/8000"},
			want: []string{
				"X-Forwarded-Prefix: /boxes/1/8000",
				"X-Forwarded-For: 192.0.2.7, 127.0.0.1",
				"X-Forwarded-Host: box.example",
				"X-Forwarded-Proto: https",
				"Origin: http://" + local,
			},
		},
		"token":             {sent: []string{tokenHeader, "secret"}, without: []string{tokenHeader, "secret"}},
		"hop by hop":        {sent: []string{"Connection", "X-Hop", "X-Hop", "1", "Keep-Alive", "1", "Proxy-Authorization", "1"}, without: []string{"X-Hop", "Keep-Alive", "Proxy-Authorization"}},
		"nothing invented":  {sent: []string{"Accept-Encoding", "br"}, want: []string{"Accept-Encoding: br"}, without: []string{"gzip"}},
		"request id":        {sent: []string{"X-Request-ID", "abc"}, want: []string{"X-Request-Id: abc"}},
		"our request id":    {want: []string{"X-Request-Id: made-here"}},
		"same origin":       {sent: []string{"Origin", "http://" + host}, want: []string{"Origin: http://" + local}},
		"another origin":    {sent: []string{"Origin", "http://evil.example"}, want: []string{"Origin: http://evil.example"}},
		"an opaque origin":  {sent: []string{"Origin", "null"}, want: []string{"Origin: null"}},
		"the server's auth": {sent: []string{"Authorization", "Bearer x", "Cookie", "a=b"}, want: []string{"Authorization: Bearer x", "Cookie: a=b"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := get(t, server, to(port, "/"), tc.sent...)
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

// The default client and transport of Go would each ask for gzip, so the request is
// written by hand.
func TestNoEncodingIsAskedFor(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.Header["Accept-Encoding"]) })
	conn := raw(t, server, "GET "+to(port, "/")+" HTTP/1.1\nHost: x\nConnection: close\n\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "[]" {
		t.Fatalf("Accept-Encoding %s, %v", body, err)
	}
}

func TestEveryRequestHasItsOwnConnection(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) })
	_, first := get(t, server, to(port, "/"))
	_, second := get(t, server, to(port, "/"))
	if first == second {
		t.Fatalf("both requests came over %s: a restart between them would break the second", first)
	}
}

func TestAnswerPassesUnchanged(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-ID", "the server's own")
		w.Header().Set("Location", "/login")
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusSeeOther)
		io.WriteString(w, "see there")
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+to(port, "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var hints string
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, header textproto.MIMEHeader) error { hints = header.Get("Link"); return nil },
	}))
	response, body := do(t, server, r)
	if response.StatusCode != http.StatusSeeOther || body != "see there" || response.Header.Get("Location") != "/login" {
		t.Errorf("status %d, Location %q, body %q", response.StatusCode, response.Header.Get("Location"), body)
	}
	if ids := response.Header["X-Request-Id"]; len(ids) != 1 || ids[0] != "made-here" {
		t.Errorf("X-Request-ID %q, want one, ours", ids)
	}
	if hints != "</style.css>" {
		t.Errorf("early hints %q did not come through", hints)
	}
}

func TestPortRules(t *testing.T) {
	server := execd(t)
	for _, port := range []string{"0", "65536", "99999999999999999999", "-1", "+80", "080", "8o", "", "%38080", "http"} {
		t.Run("port "+strconv.Quote(port), func(t *testing.T) {
			response, body := get(t, server, "/proxy/"+port+"/x")
			if response.StatusCode != http.StatusBadRequest || !strings.HasPrefix(body, "INVALID_PORT") || !strings.Contains(body, "from 1 to 65535") {
				t.Fatalf("%d %s", response.StatusCode, body)
			}
		})
	}
	for _, path := range []string{"/proxy", "/proxy/"} {
		if response, body := get(t, server, path); response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, response.StatusCode, body)
		}
	}
}

func TestOwnPortIsServedWithoutAHop(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.RequestURI, r.Header.Get("X-Forwarded-Prefix"))
	})
	for name, tc := range map[string]struct {
		path   string
		status int
		want   string
	}{
		"prefix stripped": {"/proxy/44772/a%2Fb?x=%31", 200, "self /a%2Fb x=%31 secret"},
		"empty path":      {"/proxy/44772", 200, "self /  secret"},
		"a port behind":   {"/proxy/44772" + to(port, "/x"), 200, fmt.Sprintf("/x /proxy/44772/proxy/%d", port)},
		"itself behind":   {"/proxy/44772/proxy/44772/ping", 400, "PROXY_LOOP port 44772 is execd itself and this path goes through it already: leave out the second /proxy/44772"},
		"many times":      {strings.Repeat("/proxy/44772", 1000), 400, "PROXY_LOOP port 44772 is execd itself and this path goes through it already: leave out the second /proxy/44772"},
	} {
		t.Run(name, func(t *testing.T) {
			response, body := get(t, server, tc.path, tokenHeader, "secret")
			if response.StatusCode != tc.status || body != tc.want {
				t.Fatalf("%d %q, want %d %q", response.StatusCode, body, tc.status, tc.want)
			}
		})
	}
}

func TestPrefixOfAProxyBehindExecdItself(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("X-Forwarded-Prefix")) })
	_, body := get(t, server, "/proxy/44772"+to(port, "/x"), "X-Forwarded-Prefix", "/boxes/1/44772")
	if want := "/boxes/1/44772" + to(port, ""); body != want {
		t.Errorf("the server got %q, want %q", body, want)
	}
}

func TestNothingListens(t *testing.T) {
	server := execd(t)
	port := loopback.RefusingPort(t)
	response, body := get(t, server, to(port, "/x"))
	if response.StatusCode != http.StatusBadGateway || !strings.HasPrefix(body, "PORT_NOT_LISTENING") ||
		!strings.Contains(body, fmt.Sprintf("no process listens on port %d in the sandbox", port)) {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	if got := response.Header["X-Request-Id"]; len(got) != 1 {
		t.Errorf("X-Request-ID %q, want one", got)
	}
}

func TestServerThatSpeaksNoHTTP(t *testing.T) {
	server := execd(t)
	listener := listen(t, "127.0.0.1:0")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(conn).ReadString('\n')
			io.WriteString(conn, "220 mail.example ESMTP\r\n")
			conn.Close()
		}
	}()
	response, body := get(t, server, to(listener.Addr().(*net.TCPAddr).Port, "/"))
	if response.StatusCode != http.StatusBadGateway || !strings.HasPrefix(body, "PORT_NOT_ANSWERING") {
		t.Fatalf("%d %s", response.StatusCode, body)
	}
}

func TestServerOnIPv6Only(t *testing.T) {
	server := execd(t)
	listener := listen(t, "[::1]:0")
	six := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "six")
	})}}
	six.Start()
	t.Cleanup(six.Close)
	if _, body := get(t, server, to(listener.Addr().(*net.TCPAddr).Port, "/")); body != "six" {
		t.Fatalf("answer %q", body)
	}
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}
