package forward_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"sandbox.internal/clients/cli/forward"
	"sandbox.internal/test/wait"
)

const prefix = "/v1/sandboxes/5f0c1e0e/proxy/8000"

// begin forwards a port of this machine to a service, and returns its URL.
func begin(t *testing.T, service http.HandlerFunc) string {
	t.Helper()
	upstream := httptest.NewServer(service)
	t.Cleanup(upstream.Close)
	server, err := forward.New(forward.Options{
		Target: upstream.URL + prefix, Header: http.Header{"Service-Api-Key": {"the key"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forward.Serve(server, listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := wait.For(t, "the end of the server", ended); err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Service-Api-Key", "of the client")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestRequests(t *testing.T) {
	t.Parallel()
	url := begin(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Service-Api-Key")+" "+r.URL.RequestURI())
	})
	for path, want := range map[string]string{
		"/":                prefix + "/",
		"/a%2Fb/c?d=%20":   prefix + "/a%2Fb/c?d=%20",
		"/?p=repo;a=b":     prefix + "/?p=repo;a=b",
		"/?q=100%&x=1":     prefix + "/?q=100%&x=1",
		prefix + "/style":  prefix + "/style", // a link made from X-Forwarded-Prefix
		prefix + "0/other": prefix + prefix + "0/other",
	} {
		if _, body := get(t, url+path); body != "the key "+want {
			t.Errorf("%s: the service got %q, want %q", path, body, want)
		}
	}
}

// TestPathsArriveAsWritten, also where net/url would write them in another way.
func TestPathsArriveAsWritten(t *testing.T) {
	t.Parallel()
	url := begin(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
	for _, path := range []string{
		"/", "/x|^`{}", `/a"b<c>d\e`, "/a[1]", "//a//b", "/a%2fb%2Fc", "/%7Euser/~user", "/caf\u00e9", "/\xff", "/a;b=c", "/a#b",
		"/%", "/a?", "/a?b?c|d", "/a%3Fb", "/./a/../b", "/a:b@c",
	} {
		connection, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if err := connection.SetDeadline(wait.Deadline()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(connection, "GET "+path+" HTTP/1.0\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err := errors.Join(err, connection.Close()); err != nil {
			t.Fatal(err)
		}
		if want := prefix + path; path != "/%" && string(body) != want || path == "/%" && response.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: the service got %q", path, body)
		}
	}
}

func TestAnswersAreThoseOfTheSandbox(t *testing.T) {
	t.Parallel()
	url := begin(t, func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Add("Content-Security-Policy", "default-src 'self'")
		header.Add("Content-Security-Policy",
			"sandbox allow-scripts allow-forms allow-popups allow-downloads")
		header.Add("Set-Cookie", "a=1; HttpOnly; Path="+prefix)
		header.Add("Set-Cookie", "path=2; Path="+prefix+"/app")
		header.Set("Location", prefix+"/login?next=1")
		w.WriteHeader(http.StatusFound)
	})
	response, _ := get(t, url+"/")
	header := response.Header
	if got := header["Content-Security-Policy"]; len(got) != 1 || got[0] != "default-src 'self'" {
		t.Errorf("policies %q", got)
	}
	if got := header["Set-Cookie"]; len(got) != 2 || got[0] != "a=1; HttpOnly; Path=/" ||
		got[1] != "path=2; Path=/app" {
		t.Errorf("cookies %q", got)
	}
	if got := header.Get("Location"); response.StatusCode != http.StatusFound || got != "/login?next=1" {
		t.Errorf("status %d, location %q", response.StatusCode, got)
	}
}

func TestWebSockets(t *testing.T) {
	t.Parallel()
	url := begin(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		kind, text, err := conn.Read(r.Context())
		if err == nil {
			_ = conn.Write(r.Context(), kind, append([]byte("echo "), text...))
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	})
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	conn, _, err := websocket.Dial(ctx, url+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := conn.Read(ctx); err != nil || string(text) != "echo hello" {
		t.Errorf("read %q, %v", text, err)
	}
}

func TestServiceThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	url := begin(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	})
	if response, _ := get(t, url+"/"); response.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d", response.StatusCode)
	}
}
