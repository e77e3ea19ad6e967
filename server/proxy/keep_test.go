package proxy_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/proxy"
	"sandbox.internal/test/wait"
)

// TestKeptConnections: what can be repeated shares a connection, and goes on when that has died; an
// upload has one of its own.
func TestKeptConnections(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // a client that is gone shows on its own side
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	p := proxy.NewKeeping(zerolog.Nop())
	t.Cleanup(p.Close)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.Forward(w, r, proxy.Target{Address: server.Listener.Addr().String()}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(front.Close)
	send := func(method, body string, want int32) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, front.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := front.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if got, err := io.ReadAll(response.Body); err != nil || string(got) != body {
			t.Errorf("%s: %q, %v", method, got, err)
		}
		if opened.Load() != want {
			t.Errorf("%s %q: %d connections were opened, want %d", method, body, opened.Load(), want)
		}
	}
	send(http.MethodGet, "", 1)
	send(http.MethodGet, "", 1)
	send(http.MethodPost, "upload", 2)
	send(http.MethodPost, "", 3)
	send(http.MethodGet, "", 3)
	server.CloseClientConnections()
	send(http.MethodGet, "", 4)
}

// TestCookiesStayOnTheirHost where others are served on hosts beside it.
func TestCookiesStayOnTheirHost(t *testing.T) {
	address := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Set-Cookie"] = []string{"a=1; Domain=example.com; Path=/x", "b=domain; domain=.example.com", "domain=2; HttpOnly"}
	})
	response, err := (&http.Client{Timeout: wait.Patience()}).Get(forwarder(t, proxy.Target{Address: address, SiblingHosts: true}).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if got := strings.Join(response.Header["Set-Cookie"], " | "); got != "a=1; Path=/x | b=domain | domain=2; HttpOnly" {
		t.Error(got)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// TestSmallAnswerInParts: what there is of it is passed on before the rest is there.
func TestSmallAnswerInParts(t *testing.T) {
	more := make(chan struct{})
	address := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "2")
		_, _ = io.WriteString(w, "a") // a client that is gone shows in the context
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "b")
	})
	response, err := (&http.Client{Timeout: wait.Patience()}).Get(forwarder(t, proxy.Target{Address: address}).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	part := make([]byte, 2)
	if n, err := response.Body.Read(part); n != 1 || part[0] != 'a' {
		t.Errorf("%q, %v", part[:n], err)
	}
	close(more)
	if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != "b" {
		t.Errorf("%q, %v", rest, err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
