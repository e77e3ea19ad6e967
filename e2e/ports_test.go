package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandbox.internal/server/config"
)

func TestPortsThroughTheService(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	id := portServer(t, &s.client, 8000)
	token := s.endpoint(t, id, 8000).Headers["X-EXECD-ACCESS-TOKEN"]
	p := s.inside(t, id, 8000)
	p.ready(t)

	t.Run("a request as it was written", func(t *testing.T) {
		got := p.send(t, http.MethodPatch, "/tell/a%2Fb?x=%31", strings.NewReader("body"), "X-EXECD-ACCESS-TOKEN", "of the client", "X-Own", "1")
		lines := strings.Split(strings.ReplaceAll(got.body, "\r", ""), "\n")
		for _, want := range []string{
			"PATCH /tell/a%2Fb?x=%31", "Host: 127.0.0.1:8000", "X-Own: 1", "X-Forwarded-Host: " + p.host,
			"X-Forwarded-Prefix: " + p.prefix, "X-Request-Id: " + got.header.Get("X-Request-ID"),
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("no line %q in\n%s", want, got.body)
			}
		}
		for _, secret := range []string{adminKey, token, "Service-Api-Key", "Access-Token"} {
			if strings.Contains(got.body, secret) {
				t.Errorf("%q reached the program in the sandbox:\n%s", secret, got.body)
			}
		}
		if policy := got.header.Get("Content-Security-Policy"); policy != "sandbox allow-scripts allow-forms allow-popups allow-downloads" {
			t.Errorf("Content-Security-Policy %q", policy)
		}
	})
	t.Run("redirection and cookie", func(t *testing.T) {
		got := p.send(t, http.MethodGet, "/login", nil)
		if got.status != http.StatusSeeOther || got.header.Get("Location") != p.prefix+"/tell/home" {
			t.Errorf("%s, Location %q", got, got.header.Get("Location"))
		}
		if cookie := got.header.Get("Set-Cookie"); cookie != "session=1; Path="+p.prefix || got.header.Get("Clear-Site-Data") != "" {
			t.Errorf("cookie %q, headers %v", cookie, got.header)
		}
	})
	t.Run("events arrive while the stream goes on", func(t *testing.T) { eventsInStep(t, p) })
	t.Run("upload", func(t *testing.T) {
		const size = 64 << 20
		got := p.send(t, http.MethodPost, "/digest", io.LimitReader(&counting{}, size))
		if want := fmt.Sprintf("%d %s <nil>", size, digestOf(t, io.LimitReader(&counting{}, size))); got.body != want {
			t.Errorf("the sandbox got %s, want %s", got, want)
		}
	})
	t.Run("download", func(t *testing.T) {
		const size = 64 << 20
		response := p.open(t.Context(), t, http.MethodGet, fmt.Sprintf("/bytes?size=%d", size), nil)
		if got, want := digestOf(t, response.Body), digestOf(t, io.LimitReader(&counting{}, size)); got != want {
			t.Errorf("got bytes with digest %s, want %s", got, want)
		}
	})
	t.Run("upload that waits for 100", func(t *testing.T) {
		base := &http.Transport{ExpectContinueTimeout: patience}
		defer base.CloseIdleConnections()
		waiting := *p
		waiting.http = &http.Client{Transport: base, Timeout: patience}
		got := waiting.send(t, http.MethodPost, "/digest", strings.NewReader("hello"), "Expect", "100-continue")
		if want := fmt.Sprintf("5 %s <nil>", digestOf(t, strings.NewReader("hello"))); got.body != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
	t.Run("WebSocket", func(t *testing.T) { messages(t, p.dial(t)) })
	t.Run("WebSocket of a page of the same origin", func(t *testing.T) { messages(t, p.dial(t, "Origin", "http://"+p.host)) })
	t.Run("a protocol with half-closed connections", func(t *testing.T) { halfClosed(t, p) })
	t.Run("a client that leaves", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		p.open(ctx, t, http.MethodGet, "/hold", nil)
		leave()
		if got := p.send(t, http.MethodGet, "/held", nil); got.body != "cancelled" {
			t.Errorf("%s", got)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		wantProblem(t, s.inside(t, id, 8001).send(t, http.MethodGet, "/", nil), http.StatusBadGateway, "PORT_NOT_LISTENING", "port 8001")
	})
	t.Run("execd itself", func(t *testing.T) {
		execdThroughTheService(t, s.inside(t, id, daemonPort)).want(t, "echo $((6 * 7))", "42\n")
		nested := s.inside(t, id, daemonPort).send(t, http.MethodGet, "/proxy/8000/tell/x", nil)
		if want := "X-Forwarded-Prefix: " + s.inside(t, id, daemonPort).prefix + "/proxy/8000"; !strings.Contains(nested.body, want) {
			t.Errorf("no %q in %s", want, nested)
		}
	})
	t.Run("a sandbox that does not run", func(t *testing.T) {
		s.pause(t, id)
		s.await(t, id, "Paused")
		wantProblem(t, p.send(t, http.MethodGet, "/tell/x", nil), http.StatusConflict, "CONFLICT", "Paused", "Running")
		s.resume(t, id)
		s.await(t, id, "Running")
		if got := p.send(t, http.MethodGet, "/tell/again", nil); got.status != http.StatusOK {
			t.Errorf("after resume: %s", got)
		}
	})
	t.Run("a service that stops ends what it carries", func(t *testing.T) {
		conn := p.dial(t)
		s.halt(t)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, message, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("got %q, %v; want the end of the connection", message, err)
		}
		s.boot(t)
		again := s.inside(t, id, 8000)
		messages(t, again.dial(t))
	})
	t.Run("a sandbox that is gone", func(t *testing.T) {
		s.delete(t, id)
		s.await(t, id, "Terminated")
		wantProblem(t, s.inside(t, id, 8000).send(t, http.MethodGet, "/", nil), http.StatusConflict, "CONFLICT", "Terminated")
	})
	for _, secret := range []string{adminKey, token} {
		if lines := s.log.with(secret); len(lines) > 0 {
			t.Errorf("the log holds a secret: %q", lines[0])
		}
	}
}

func TestWhoReachesPorts(t *testing.T) {
	t.Parallel()
	s := start(t, plan{keys: []config.Key{
		{Name: "alice", SHA256: digest("alice's key"), Role: config.RoleUser},
		{Name: "bob", SHA256: digest("bob's key"), Role: config.RoleUser},
		{Name: "viewer", SHA256: digest("viewer's key"), Role: config.RoleViewer},
	}})
	alice := s.as(t, "alice's key")
	id := portServer(t, alice, 8000)
	alice.inside(t, id, 8000).ready(t)
	for key, want := range map[string]int{adminKey: 200, "alice's key": 200, "bob's key": 403, "viewer's key": 403, "wrong": 401, "": 401} {
		if got := s.as(t, key).inside(t, id, 8000).send(t, http.MethodGet, "/tell/x", nil); got.status != want {
			t.Errorf("with key %q: %s, want %d", key, got, want)
		}
	}
	wantProblem(t, s.inside(t, "11111111-2222-4333-8444-555555555555", 8000).send(t, http.MethodGet, "/", nil), 404, "SANDBOX_NOT_FOUND")
	wantProblem(t, s.inside(t, id, 65536).send(t, http.MethodGet, "/", nil), 400, "INVALID_REQUEST_BODY", "port")
}

func TestRateLimits(t *testing.T) {
	t.Parallel()
	s := start(t, plan{keys: []config.Key{
		{Name: "slow", SHA256: digest("slow"), Role: config.RoleUser, RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 2}},
	}})
	slow := s.as(t, "slow")
	answers := make(chan answer, 100) // at once, so that a slow machine does not keep them below the limit
	concurrently(make([]struct{}, cap(answers)), func(struct{}) { answers <- slow.send(t, http.MethodGet, "/v1/sandboxes", "") })
	close(answers)
	refused := 0
	for got := range answers {
		if got.status == http.StatusOK {
			continue
		}
		refused++
		wantProblem(t, got, http.StatusTooManyRequests, "RATE_LIMITED", "1 requests a second", "2 at once")
		if after := got.header.Get("Retry-After"); after != "1" {
			t.Errorf("Retry-After %q", after)
		}
	}
	if refused == 0 {
		t.Error("no request was refused")
	}
	for range 10 {
		if got := s.send(t, http.MethodGet, "/v1/sandboxes", ""); got.status != http.StatusOK {
			t.Errorf("another key: %s", got)
		}
	}
	eventually(t, "the key may call again", func() bool {
		return slow.send(t, http.MethodGet, "/v1/version", "").status == http.StatusOK
	})
}

// eventsInStep reads events of which each comes only after the one before has been answered.
func eventsInStep(t *testing.T, p *inside) {
	response := p.open(t.Context(), t, http.MethodGet, "/events", nil)
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%s of type %q", response.Status, kind)
	}
	events := bufio.NewReader(response.Body)
	for i := range 3 {
		if event, err := events.ReadString('\n'); err != nil || event != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("event %q, %v", event, err)
		}
		if _, err := events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		p.send(t, http.MethodPost, "/next", nil)
	}
	if rest, err := io.ReadAll(events); err != nil || len(rest) > 0 {
		t.Errorf("after the last event: %q, %v", rest, err)
	}
}

// messages sends some and expects them back.
func messages(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, message := range [][]byte{[]byte("short"), bytes.Repeat([]byte("long"), 100_000), {}} {
		if err := conn.Write(ctx, websocket.MessageBinary, message); err != nil {
			t.Fatal(err)
		}
		if _, back, err := conn.Read(ctx); err != nil || !bytes.Equal(back, message) {
			t.Fatalf("%d bytes came back, %v, want %d", len(back), err, len(message))
		}
	}
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// halfClosed says something, ends its half of the connection and expects the answer on the other.
func halfClosed(t *testing.T, p *inside) {
	conn, err := net.Dial("tcp", p.host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s/own HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: own\r\n", p.prefix, p.host)
	for name, value := range p.headers {
		fmt.Fprintf(conn, "%s: %s\r\n", name, value)
	}
	io.WriteString(conn, "\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", response, err)
	}
	io.WriteString(conn, "all that is said")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "ALL THAT IS SAID" {
		t.Errorf("%q, %v", rest, err)
	}
}
