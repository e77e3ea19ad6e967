package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

const ingressDomain = "ingress.example.com"

// front is an address that a service keeps while it is restarted at another one.
type front struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
	conns    map[net.Conn]bool
}

func newFront(t *testing.T, s *Service) *front {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{listener: listener, conns: map[net.Conn]bool{}}
	f.lead(s)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { f.pass(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		f.mu.Lock()
		for conn := range f.conns {
			conn.Close()
		}
		f.mu.Unlock()
		all.Wait()
	})
	return f
}

// lead sends connections to the service from now on.
func (f *front) lead(s *Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = strings.TrimPrefix(s.URL, "http://")
}

func (f *front) pass(conn net.Conn) {
	defer conn.Close()
	f.mu.Lock()
	to := f.to
	f.mu.Unlock()
	behind, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer behind.Close()
	f.mu.Lock()
	f.conns[conn], f.conns[behind] = true, true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, conn)
		delete(f.conns, behind)
	}()
	go func() {
		_, _ = io.Copy(behind, conn) // either end may leave
		behind.Close()
	}()
	_, _ = io.Copy(conn, behind)
}

// ingressProgram is sandbox-ingress as users run it.
type ingressProgram struct {
	mode, address, admin string
	log                  *Journal
}

func runIngress(t *testing.T, mode, service, signingKey string) *ingressProgram {
	t.Helper()
	args := []string{"--mode", mode, "--service", service, "--signing-key", signingKey, "--listen",
		"127.0.0.1:0", "--admin", "127.0.0.1:0"}
	if mode == "wildcard" {
		args = append(args, "--domain", "*."+ingressDomain)
	}
	command := exec.Command(Build(t, "sandbox.internal/server/cmd/sandbox-ingress"), args...)
	command.Env = append(os.Environ(), "SERVICE_API_KEY="+AdminKey)
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	g := &ingressProgram{mode: mode, log: &Journal{}}
	found, ended := make(chan [2]string, 1), make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			_, _ = g.log.Write(append(lines.Bytes(), '\n')) // a journal takes every line
			var line struct{ Message, Address, Admin string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Address != "" {
				found <- [2]string{line.Address, line.Admin}
			}
		}
		ended <- command.Wait()
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("ingress %s: %v", mode, err)
			}
		case <-time.After(wait.Patience()):
			_ = command.Process.Kill()
			t.Errorf("ingress %s does not end: %v", mode, wait.For(t, "the end of the process", ended))
		}
		if t.Failed() {
			t.Logf("the log of ingress %s:\n%s", mode, g.log.Tail(50))
		}
	})
	select {
	case at := <-found:
		g.address, g.admin = at[0], at[1]
	case err := <-ended:
		ended <- err
		t.Fatalf("ingress %s ended: %v\n%s", mode, err, g.log.Tail(20))
	case <-time.After(wait.Patience()):
		t.Fatalf("ingress %s does not listen", mode)
	}
	return g
}

// port is a port of a sandbox as clients of the ingress reach it.
func (g *ingressProgram) port(t *testing.T, id string, port int,
	headers map[string]string) *Inside {
	t.Helper()
	name := id + "-" + strconv.Itoa(port)
	all := map[string]string{}
	for header, value := range headers {
		all[header] = value
	}
	p := &Inside{Host: g.address, Headers: all}
	switch g.mode {
	case "wildcard":
		p.Host = name + "." + ingressDomain
	case "uri":
		p.Prefix = fmt.Sprintf("/%s/%d", id, port)
	case "header":
		all["Service-Ingress-To"] = name
	}
	var dialer net.Dialer
	base := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn,
		error) {
		return dialer.DialContext(ctx, network, g.address)
	}}
	t.Cleanup(base.CloseIdleConnections)
	p.HTTP = &http.Client{Transport: base, Timeout: wait.Patience(),
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	return p
}

// Ingress has a real service, a real sandbox and the real program in all route modes.
func Ingress(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	f := newFront(t, s)
	id := PortServer(t, &s.Client, 8000)
	s.Inside(t, id, 8000).Ready(t)
	token := s.Endpoint(t, id, 8000).Headers
	expires := "500"
	response, err := s.API.GetEndpointWithResponse(t.Context(), id, 8000,
		&lifecycle.GetEndpointParams{Expires: &expires})
	if err != nil || response.JSON200 == nil || response.JSON200.Signature == nil {
		t.Fatalf("%v, %s", err, response.Body)
	}
	signature := *response.JSON200.Signature
	query := "sandbox-signature=" + url.QueryEscape(signature)
	key := filepath.Join(s.Directory, "signing.key")
	var ingresses []*ingressProgram
	for _, mode := range []string{"wildcard", "uri", "header"} {
		ingresses = append(ingresses,
			runIngress(t, mode, "http://"+f.listener.Addr().String(), key))
	}
	each := func(name string, check func(t *testing.T, g *ingressProgram)) {
		for _, g := range ingresses {
			t.Run(name+", "+g.mode, func(t *testing.T) { check(t, g) })
		}
	}
	status := func(t *testing.T, g *ingressProgram, id string) int {
		return g.port(t, id, 8000, token).Send(t, http.MethodGet, "/echo/x", nil).Status
	}
	each("the route comes", func(t *testing.T, g *ingressProgram) {
		wait.Until(t, "the sandbox is known",
			func() bool { return status(t, g, id) == http.StatusOK })
	})
	each("row lifecycle/networking/rule 5: a request as it was written",
		func(t *testing.T, g *ingressProgram) {
			p := g.port(t, id, 8000, token)
			got := p.Send(t, http.MethodPatch, "/echo/a%2Fb?x=%31", strings.NewReader("body"),
				KeyHeader, AdminKey)
			for _, want := range []string{"PATCH /echo/a%2Fb?x=%31\n", "Host: 127.0.0.1:8000\n",
				"X-Forwarded-Host: " + p.Host + "\r\n"} {
				if !strings.Contains(got.Body, want) {
					t.Errorf("no %q in\n%s", want, got.Body)
				}
			}
			if has := strings.Contains(got.Body,
				"X-Forwarded-Prefix: "+p.Prefix+"\r\n"); has != (g.mode == "uri") || !has &&
				strings.Contains(got.Body, "X-Forwarded-Prefix") {
				t.Errorf("the prefix in\n%s", got.Body)
			}
			for _, secret := range []string{AdminKey, token["X-EXECD-ACCESS-TOKEN"],
				"Access-Token", "Ingress-To"} {
				if strings.Contains(got.Body, secret) {
					t.Errorf("%q reached the program in the sandbox:\n%s", secret, got.Body)
				}
			}
		})
	each("redirection", func(t *testing.T, g *ingressProgram) {
		p := g.port(t, id, 8000, token)
		if got := p.Send(t, http.MethodGet, "/login", nil); got.Status != http.StatusSeeOther ||
			got.Header.Get("Location") != p.Prefix+"/echo/home" {
			t.Errorf("%s, Location %q", got, got.Header.Get("Location"))
		}
	})
	each("events", func(t *testing.T, g *ingressProgram) {
		EventsInStep(t,
			g.port(t, id, 8000, token))
	})
	each("WebSocket", func(t *testing.T, g *ingressProgram) {
		p := g.port(t, id, 8000, token)
		Messages(t, p.Dial(t))
		Messages(t, p.Dial(t, "Origin", "http://"+p.Host))
	})
	each("bodies", func(t *testing.T, g *ingressProgram) {
		const size = 32 << 20
		p, want := g.port(t, id, 8000, token),
			DigestOf(t, io.LimitReader(&Counting{}, size))
		if got := p.Send(t, http.MethodPost, "/digest",
			io.LimitReader(&Counting{}, size)); got.Body != fmt.Sprintf("%d %s <nil>", size,
			want) {
			t.Errorf("the sandbox got %s", got.Body)
		}
		if got := DigestOf(t,
			p.Open(t.Context(), t, http.MethodGet, fmt.Sprintf("/bytes?size=%d", size),
				nil).Body); got != want {
			t.Errorf("got bytes with digest %s, want %s", got, want)
		}
	})
	each("execd itself", func(t *testing.T, g *ingressProgram) {
		got := g.port(t, id, DaemonPort, token).Send(t, http.MethodPost, "/command",
			strings.NewReader(`{"command":"echo $((6 * 7))"}`), "Content-Type", "application/json")
		if got.Status != http.StatusOK || !strings.Contains(got.Body, `"42"`) {
			t.Errorf("%s", got)
		}
	})
	each("signed endpoint", func(t *testing.T, g *ingressProgram) {
		p := g.port(t, id, 8000, nil)
		got := p.Send(t, http.MethodGet, "/echo/x?y=1&"+query, nil, "Referer",
			"http://"+p.Host+"/?"+query)
		if got.Status != http.StatusOK || !strings.HasPrefix(got.Body, "GET /echo/x?y=1\n") ||
			strings.Contains(got.Body, "ignature") {
			t.Errorf("%s", got)
		}
		cookie := got.Header.Get("Set-Cookie")
		if (cookie != "") != (g.mode == "wildcard") ||
			(got.Header.Get("Content-Security-Policy") == "") != (g.mode == "wildcard") {
			t.Errorf("Set-Cookie %q, Content-Security-Policy %q", cookie,
				got.Header.Get("Content-Security-Policy"))
		}
		again, _, _ := strings.Cut(cookie, ";")
		if got := p.Send(t, http.MethodGet, "/echo/x", nil, "Cookie",
			again); (got.Status == http.StatusOK) != (g.mode == "wildcard") {
			t.Errorf("with the cookie: %s", got)
		}
		WantProblem(t,
			g.port(t, id, DaemonPort, nil).Send(t, http.MethodGet, "/metrics?"+query, nil),
			http.StatusUnauthorized, "UNAUTHORIZED", "sandbox-signature")
		WantProblem(t, p.Send(t, http.MethodGet, "/", nil), http.StatusUnauthorized,
			"UNAUTHORIZED")
	})
	t.Run("signed endpoint, through the service", func(t *testing.T) {
		got := s.Below(t, "", nil)
		if answer := got.Send(t, http.MethodGet, strings.TrimPrefix(response.JSON200.URL, s.URL),
			nil); answer.Status == http.StatusUnauthorized {
			t.Errorf("%s", answer)
		}
		answer := s.Below(t, fmt.Sprintf("/v1/sandboxes/%s/proxy/8000", id), nil).Send(t,
			http.MethodGet, "/echo/x?"+query, nil)
		if answer.Status != http.StatusOK || strings.Contains(answer.Body, "ignature") ||
			answer.Header.Get("Set-Cookie") != "" ||
			answer.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s %v", answer, answer.Header)
		}
	})
	each("nothing listens", func(t *testing.T, g *ingressProgram) {
		WantProblem(t, g.port(t, id, 8001, token).Send(t, http.MethodGet, "/", nil),
			http.StatusBadGateway, "PORT_NOT_LISTENING", "8001")
	})
	if b.Sleeps {
		s.lifecycle(t, id, `{"onIdle":"pause","idleSeconds":0.05}`)
		each("asleep", func(t *testing.T, g *ingressProgram) {
			for range 20 {
				s.awaitAsleep(t, id)
				if got := status(t, g, id); got != http.StatusOK {
					t.Fatalf("a request to a sandbox that sleeps: %d", got)
				}
			}
			// What came before it was frozen may wake a sandbox that sleeps already, once.
			slept := false
			for range 10 {
				s.awaitAsleep(t, id)
				got := g.port(t, id, 8000, nil).Send(t, http.MethodGet, "/echo/x", nil)
				WantProblem(t, got, http.StatusUnauthorized, "UNAUTHORIZED")
				slept = slept || s.Get(t, id).Status.State == "Paused"
			}
			if !slept {
				t.Error("each request that was not let in woke the sandbox")
			}
		})
		s.lifecycle(t, id, `{"onIdle":"none"}`)
		status(t, ingresses[0], id)
		s.Await(t, id, "Running")
	}

	s.Pause(t, id)
	each("a paused sandbox", func(t *testing.T, g *ingressProgram) {
		p := g.port(t, id, 8000, token)
		wait.Until(t, "the ingress has received the pause", func() bool {
			// A request that arrives before waits for the sandbox to be resumed.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			answer, err := p.try(ctx, t, http.MethodGet, "/", nil)
			return err == nil && answer.StatusCode == http.StatusServiceUnavailable
		})
		wait.Until(t, "the sandbox is Paused", func() bool {
			return !strings.Contains(p.Send(t, http.MethodGet, "/", nil).Body, "Pausing")
		})
		WantProblem(t, p.Send(t, http.MethodGet, "/", nil), http.StatusServiceUnavailable,
			"SANDBOX_NOT_RUNNING", "Paused")
	})
	s.Resume(t, id)
	each("a resumed sandbox", func(t *testing.T, g *ingressProgram) {
		wait.Until(t, "200", func() bool { return status(t, g, id) == http.StatusOK })
	})

	conn := ingresses[0].port(t, id, 8000, token).Dial(t)
	s.Halt(t)
	each("while the service is away", func(t *testing.T, g *ingressProgram) {
		if got := status(t, g, id); got != http.StatusOK {
			t.Errorf("%d", got)
		}
	})
	s.Boot(t)
	f.lead(s)
	Messages(t, conn) // it has outlived the service
	second := PortServer(t, &s.Client, 8000)
	s.Inside(t, second, 8000).Ready(t)
	each("after the service's restart", func(t *testing.T, g *ingressProgram) {
		headers := s.Endpoint(t, second, 8000).Headers
		wait.Until(t, "the second sandbox", func() bool {
			return g.port(t, second, 8000, headers).Send(t, http.MethodGet, "/echo/x",
				nil).Status == http.StatusOK
		})
	})
	s.Delete(t, id)
	each("a deleted sandbox", func(t *testing.T, g *ingressProgram) {
		wait.Until(t, "404", func() bool { return status(t, g, id) == http.StatusNotFound })
		WantProblem(t, g.port(t, id, 8000, token).Send(t, http.MethodGet, "/", nil),
			http.StatusNotFound, "SANDBOX_NOT_FOUND", id)
		if got := g.port(t, second, 8000, s.Endpoint(t, second, 8000).Headers).Send(t,
			http.MethodGet, "/echo/x", nil); got.Status != http.StatusOK {
			t.Errorf("the other one: %s", got)
		}
	})
	for _, log := range []*Journal{s.Log, ingresses[0].log, ingresses[1].log,
		ingresses[2].log} {
		for _, secret := range []string{AdminKey, token["X-EXECD-ACCESS-TOKEN"], signature,
			strings.Split(signature, ".")[1]} {
			if lines := log.With(secret); len(lines) > 0 {
				t.Errorf("a log holds a secret: %q", lines[0])
			}
		}
	}
}
