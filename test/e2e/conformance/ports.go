package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"sandbox.internal/server/config"
	"sandbox.internal/test/wait"
)

func testPortsThroughTheService(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	id := PortServer(t, &s.Client, 8000)
	token := s.Endpoint(t, id, 8000).Headers["X-EXECD-ACCESS-TOKEN"]
	p := s.Inside(t, id, 8000)
	p.Ready(t)

	t.Run("a request as it was written", func(t *testing.T) {
		got := p.Send(t, http.MethodPatch, "/echo/a%2Fb?x=%31", strings.NewReader("body"),
			"X-EXECD-ACCESS-TOKEN", "of the client", "X-Own", "1")
		lines := strings.Split(strings.ReplaceAll(got.Body, "\r", ""), "\n")
		for _, want := range []string{
			"PATCH /echo/a%2Fb?x=%31", "Host: 127.0.0.1:8000", "X-Own: 1",
			"X-Forwarded-Host: " + p.Host,
			"X-Forwarded-Prefix: " + p.Prefix, "X-Request-Id: " + got.Header.Get("X-Request-ID"),
		} {
			if !slices.Contains(lines, want) {
				t.Errorf("no line %q in\n%s", want, got.Body)
			}
		}
		for _, secret := range []string{AdminKey, token, "Service-Api-Key", "Access-Token"} {
			if strings.Contains(got.Body, secret) {
				t.Errorf("%q reached the program in the sandbox:\n%s", secret, got.Body)
			}
		}
		if policy := got.Header.Get("Content-Security-Policy"); policy != "sandbox allow-scripts allow-forms allow-popups allow-downloads" {
			t.Errorf("Content-Security-Policy %q", policy)
		}
	})
	t.Run("redirection and cookie", func(t *testing.T) {
		got := p.Send(t, http.MethodGet, "/login", nil)
		if got.Status != http.StatusSeeOther ||
			got.Header.Get("Location") != p.Prefix+"/echo/home" {
			t.Errorf("%s, Location %q", got, got.Header.Get("Location"))
		}
		if cookie := got.Header.Get("Set-Cookie"); cookie != "session=1; Path="+p.Prefix ||
			got.Header.Get("Clear-Site-Data") != "" {
			t.Errorf("cookie %q, headers %v", cookie, got.Header)
		}
	})
	t.Run("events arrive while the stream goes on", func(t *testing.T) { EventsInStep(t, p) })
	t.Run("upload", func(t *testing.T) {
		const size = 64 << 20
		got := p.Send(t, http.MethodPost, "/digest", io.LimitReader(&Counting{}, size))
		if want := fmt.Sprintf("%d %s <nil>", size,
			DigestOf(t, io.LimitReader(&Counting{}, size))); got.Body != want {
			t.Errorf("the sandbox got %s, want %s", got, want)
		}
	})
	t.Run("download", func(t *testing.T) {
		const size = 64 << 20
		response := p.Open(t.Context(), t, http.MethodGet, fmt.Sprintf("/bytes?size=%d", size), nil)
		if got, want := DigestOf(t, response.Body),
			DigestOf(t, io.LimitReader(&Counting{}, size)); got != want {
			t.Errorf("got bytes with digest %s, want %s", got, want)
		}
	})
	t.Run("upload that waits for 100", func(t *testing.T) {
		base := &http.Transport{ExpectContinueTimeout: wait.Patience()}
		defer base.CloseIdleConnections()
		waiting := *p
		waiting.HTTP = &http.Client{Transport: base, Timeout: wait.Patience()}
		got := waiting.Send(t, http.MethodPost, "/digest", strings.NewReader("hello"), "Expect",
			"100-continue")
		if want := fmt.Sprintf("5 %s <nil>",
			DigestOf(t, strings.NewReader("hello"))); got.Body != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
	t.Run("WebSocket", func(t *testing.T) { Messages(t, p.Dial(t)) })
	t.Run("WebSocket of a page of the same origin",
		func(t *testing.T) { Messages(t, p.Dial(t, "Origin", "http://"+p.Host)) })
	t.Run("a protocol with half-closed connections", func(t *testing.T) { HalfClosed(t, p) })
	t.Run("a client that leaves", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		p.Open(ctx, t, http.MethodGet, "/hold", nil)
		leave()
		if got := p.Send(t, http.MethodGet, "/held", nil); got.Body != "cancelled" {
			t.Errorf("%s", got)
		}
	})
	t.Run("nothing listens", func(t *testing.T) {
		WantProblem(t, s.Inside(t, id, 8001).Send(t, http.MethodGet, "/", nil),
			http.StatusBadGateway, "PORT_NOT_LISTENING", "port 8001")
	})
	t.Run("execd itself", func(t *testing.T) {
		ExecdThroughTheService(t, s.Inside(t, id, DaemonPort)).Want(t, "echo $((6 * 7))", "42\n")
		nested := s.Inside(t, id, DaemonPort).Send(t, http.MethodGet, "/proxy/8000/echo/x", nil)
		if want := "X-Forwarded-Prefix: " + s.Inside(t, id,
			DaemonPort).Prefix + "/proxy/8000"; !strings.Contains(nested.Body, want) {
			t.Errorf("no %q in %s", want, nested)
		}
	})
	t.Run("a sandbox that does not run", func(t *testing.T) {
		s.Pause(t, id)
		WantProblem(t, p.Send(t, http.MethodGet, "/echo/x", nil), http.StatusConflict, "CONFLICT",
			"Paused", "Running")
		s.Resume(t, id)
		if got := p.Send(t, http.MethodGet, "/echo/again", nil); got.Status != http.StatusOK {
			t.Errorf("after resume: %s", got)
		}
	})
	t.Run("a service that stops ends what it carries", func(t *testing.T) {
		conn := p.Dial(t)
		s.Halt(t)
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
		defer cancel()
		if _, message, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("got %q, %v; want the end of the connection", message, err)
		}
		s.Boot(t)
		again := s.Inside(t, id, 8000)
		Messages(t, again.Dial(t))
	})
	t.Run("a sandbox that is gone", func(t *testing.T) {
		s.Delete(t, id)
		s.Await(t, id, "Terminated")
		WantProblem(t, s.Inside(t, id, 8000).Send(t, http.MethodGet, "/", nil), http.StatusConflict,
			"CONFLICT", "Terminated")
	})
	for _, secret := range []string{AdminKey, token} {
		if lines := s.Log.With(secret); len(lines) > 0 {
			t.Errorf("the log holds a secret: %q", lines[0])
		}
	}
}

func testAccessToPorts(t *testing.T, b Backend) {
	// The program of the port is mounted from the host, which users may do where a list allows it.
	s := Start(t, b,
		Plan{Settings: "[storage]\nallowed_host_paths = [" +
			strconv.Quote(filepath.Dir(Build(t, portsProgram))) + "]", Keys: []config.Key{
			{Name: "alice", SHA256: Digest("alice's key"), Role: config.RoleUser},
			{Name: "bob", SHA256: Digest("bob's key"), Role: config.RoleUser},
			{Name: "viewer", SHA256: Digest("viewer's key"), Role: config.RoleViewer},
		}})
	alice := s.As(t, "alice's key")
	id := PortServer(t, alice, 8000)
	alice.Inside(t, id, 8000).Ready(t)
	for key, want := range map[string]int{AdminKey: 200, "alice's key": 200, "bob's key": 403,
		"viewer's key": 403, "wrong": 401, "": 401} {
		if got := s.As(t, key).Inside(t, id, 8000).Send(t, http.MethodGet, "/echo/x",
			nil); got.Status != want {
			t.Errorf("with key %q: %s, want %d", key, got, want)
		}
	}
	WantProblem(t, s.Inside(t, "11111111-2222-4333-8444-555555555555", 8000).Send(t, http.MethodGet,
		"/", nil), 404, "SANDBOX_NOT_FOUND")
	WantProblem(t, s.Inside(t, id, 65536).Send(t, http.MethodGet, "/", nil), 400,
		"INVALID_REQUEST_BODY", "port")
}

// testLimits tests those that the configuration sets for a key.
func testLimits(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Keys: []config.Key{
		{Name: "few", SHA256: Digest("few"), Role: config.RoleUser, MaxSandboxes: 1},
		{Name: "slow", SHA256: Digest("slow"), Role: config.RoleUser,
			RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 2}},
	}})
	few := s.As(t, "few")
	first := few.Create(t, s.Idle())
	WantProblem(t, few.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, s.Idle())), http.StatusConflict, "CONFLICT",
		`"few"`, "server.keys.max_sandboxes is 1")
	few.Delete(t, first)
	wait.Until(t, "the key may create again", func() bool {
		return few.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, s.Idle())).Status == http.StatusAccepted
	})

	slow := s.As(t, "slow")
	// at once, so that a slow machine does not keep them below the limit
	answers := make(chan Answer, 100)
	Concurrently(make([]struct{}, cap(answers)),
		func(struct{}) { answers <- slow.Send(t, http.MethodGet, "/v1/sandboxes", "") })
	close(answers)
	refused := 0
	for got := range answers {
		if got.Status == http.StatusOK {
			continue
		}
		refused++
		WantProblem(t, got, http.StatusTooManyRequests, "RATE_LIMITED", "1 requests a second",
			"2 at once")
		if after := got.Header.Get("Retry-After"); after != "1" {
			t.Errorf("Retry-After %q", after)
		}
	}
	if refused == 0 {
		t.Error("no request was refused")
	}
	for range 10 {
		if got := s.Send(t, http.MethodGet, "/v1/sandboxes", ""); got.Status != http.StatusOK {
			t.Errorf("another key: %s", got)
		}
	}
	wait.Until(t, "the key may call again", func() bool {
		return slow.Send(t, http.MethodGet, "/v1/version", "").Status == http.StatusOK
	})
}

// EventsInStep reads events of which each comes only after the one before has been answered.
func EventsInStep(t *testing.T, p *Inside) {
	response := p.Open(t.Context(), t, http.MethodGet, "/events", nil)
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%s of type %q", response.Status, kind)
	}
	events := bufio.NewReader(response.Body)
	for i := range 3 {
		if event, err := events.ReadString('\n'); err != nil ||
			event != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("event %q, %v", event, err)
		}
		if _, err := events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		p.Send(t, http.MethodPost, "/next", nil)
	}
	if rest, err := io.ReadAll(events); err != nil || len(rest) > 0 {
		t.Errorf("after the last event: %q, %v", rest, err)
	}
}

// Messages sends some and expects them back.
func Messages(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
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

// HalfClosed says something, ends its half of the connection and expects the answer on the other.
func HalfClosed(t *testing.T, p *Inside) {
	conn, err := net.Dial("tcp", p.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s/own HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: own\r\n",
		p.Prefix, p.Host)
	for name, value := range p.Headers {
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
