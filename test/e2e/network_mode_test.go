package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// sharedEndpoint is where a sandbox on the host's network has its execd. The service passes
// requests on to it; here it is asked without the service.
func (s *service) sharedEndpoint(t *testing.T,
	id string) (port string, endpoint lifecycle.Endpoint) {
	t.Helper()
	for _, container := range s.containers(t) {
		if container.Labels["sandbox.internal/id"] == id {
			port = container.Labels["sandbox.internal/execd-port"]
		}
	}
	if port == "" {
		t.Fatalf("no port is written on the container of %s", id)
	}
	endpoint = s.Endpoint(t, id, conformance.DaemonPort)
	endpoint.Endpoint = net.JoinHostPort("127.0.0.1", port) + "/proxy/44772"
	return port, endpoint
}

// sharedOrPublished is where a sandbox of any kind of network has its execd.
func (s *service) sharedOrPublished(t *testing.T,
	id string) (port string, endpoint lifecycle.Endpoint) {
	t.Helper()
	endpoint = s.Endpoint(t, id, conformance.DaemonPort)
	if strings.Contains(endpoint.Endpoint, "/proxy/") {
		return "", endpoint
	}
	return s.sharedEndpoint(t, id)
}

// TestNetworkModeHost: rule 1 of "Networking rules".
func TestNetworkModeHost(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Program: true,
		Settings: "[docker]\nnetwork_mode = \"host\"\npids_limit = 60"})
	first := idle()
	memory := "192Mi"
	first.ResourceLimits.Memory = &memory
	created := s.Send(t, http.MethodPost, "/v1/sandboxes", conformance.Encode(t, first),
		"Idempotency-Key", "first")
	var sandbox lifecycle.CreatedSandbox
	if err := json.Unmarshal([]byte(created.Body), &sandbox); err != nil ||
		created.Status != http.StatusAccepted {
		t.Fatalf("create: %s (%v)", created, err)
	}
	id := sandbox.ID
	s.Await(t, id, "Running")
	port, endpoint := s.sharedEndpoint(t, id)
	inside := conformance.EnterAt(t, endpoint)

	t.Run("row lifecycle/networking/rule 1: the endpoint", func(t *testing.T) {
		for _, port := range []int{conformance.DaemonPort, 8000} {
			got, want := s.Endpoint(t, id, port), fmt.Sprintf("%s/%s/%d", s.URL, id, port)
			if got.URL != want || "http://"+got.Endpoint != want ||
				got.Headers["X-EXECD-ACCESS-TOKEN"] == "" {
				t.Errorf("port %d: %+v, want %s", port, got, want)
			}
		}
	})
	t.Run("row lifecycle/networking/rule 1: the host's network", func(t *testing.T) {
		address := sayOnce(t, "from the host")
		host, port, _ := net.SplitHostPort(address)
		inside.Want(t, fmt.Sprintf("nc %s %s", host, port), "from the host")
	})
	t.Run("execd listens on the loopback interface only", func(t *testing.T) {
		for _, address := range otherAddresses(t) {
			if connection, err := net.Dial("tcp", net.JoinHostPort(address, port)); err == nil {
				_ = connection.Close()
				t.Errorf("execd answers on %s", address)
			}
		}
	})
	t.Run("execd requires its token", func(t *testing.T) {
		if got := conformance.Fetch(t,
			"http://127.0.0.1:"+port+"/metrics"); got.Status != http.StatusUnauthorized {
			t.Errorf("without a token: %s", got)
		}
	})
	t.Run("limits hold", func(t *testing.T) {
		wantLimit(t, inside, "memory/memory.limit_in_bytes", "memory.max", "201326592")
		wantLimit(t, inside, "pids/pids.max", "pids.max", "60")
	})
	second := func() conformance.Answer {
		return s.Send(t, http.MethodPost, "/v1/sandboxes",
			conformance.Encode(t, idle()))
	}
	t.Run("row lifecycle/networking/rule 1: one sandbox at a time", func(t *testing.T) {
		conformance.WantProblem(t, second(), http.StatusConflict, "CONFLICT", "one sandbox at a time", id)
		again := s.Send(t, http.MethodPost, "/v1/sandboxes", conformance.Encode(t, first),
			"Idempotency-Key", "first")
		if again.Status != http.StatusAccepted || !strings.Contains(again.Body, id) {
			t.Errorf("the same request again: %s", again)
		}
	})
	t.Run("pause and resume", func(t *testing.T) {
		s.Pause(t, id)
		conformance.WantProblem(t, second(), http.StatusConflict, "CONFLICT", "Paused")
		s.Resume(t, id)
		inside.Want(t, "echo again", "again\n")
	})
	t.Run("found again by another service", func(t *testing.T) {
		for _, end := range []func(){func() { s.Halt(t) }, func() { s.Kill() }} {
			end()
			s.Boot(t)
			s.Await(t, id, "Running")
			_, endpoint := s.sharedEndpoint(t, id)
			conformance.EnterAt(t, endpoint).Want(t, "echo found", "found\n")
			conformance.WantProblem(t, second(), http.StatusConflict, "CONFLICT", "one sandbox at a time")
		}
	})
	t.Run("after a deletion the next one is accepted", func(t *testing.T) {
		s.Delete(t, id)
		s.Await(t, id, "Terminated")
		next := s.Running(t, idle())
		_, endpoint := s.sharedEndpoint(t, next)
		conformance.EnterAt(t, endpoint).Want(t, "echo next", "next\n")
	})
	t.Run("row lifecycle/networking/rule 3: host mode", func(t *testing.T) {
		got := s.Send(t, http.MethodPost, "/v1/sandboxes",
			s.Body(t, map[string]any{"networkPolicy": map[string]any{"defaultAction": "deny"}}))
		conformance.WantProblem(t, got, http.StatusBadRequest, "INVALID_REQUEST_BODY",
			"a network policy requires bridge mode and egress image configuration")
	})
}

// TestNetworkModeHostOnTwoServices: each execd has a port of its own.
func TestNetworkModeHostOnTwoServices(t *testing.T) {
	t.Parallel()
	ports := map[string]bool{}
	for range 2 {
		s := start(t, conformance.Plan{Settings: "[docker]\nnetwork_mode = \"host\""})
		port, endpoint := s.sharedEndpoint(t, s.Running(t, idle()))
		conformance.EnterAt(t, endpoint).Want(t, "echo here", "here\n")
		ports[port] = true
	}
	if len(ports) != 2 {
		t.Errorf("two sandboxes have the ports %v", ports)
	}
}

// TestNetworkModeBridge: rule 2 of "Networking rules", and docker.host_ip.
func TestNetworkModeBridge(t *testing.T) {
	t.Parallel()
	// 127.0.0.2 is this machine, and an address that no client has asked for.
	s := start(t,
		conformance.Plan{Settings: "[docker]\nnetwork_mode = \"bridge\"\nhost_ip = \"127.0.0.2\""})
	t.Run("row lifecycle/networking/rule 2", func(t *testing.T) { testSamePortTwice(t, s) })
}

func testSamePortTwice(t *testing.T, s *service) {
	texts := []string{"one", "two"}
	conformance.Concurrently(texts, func(text string) {
		script := fmt.Sprintf(
			"echo %s > /srv/index.html; cd /srv; exec python3 -m http.server 8000", text)
		id := s.Running(t, conformance.Request(baseImage, "sh", "-c", script))
		endpoint := s.Endpoint(t, id, 8000)
		if !strings.HasPrefix(endpoint.Endpoint, "127.0.0.2:") ||
			!strings.HasSuffix(endpoint.Endpoint, "/proxy/8000") {
			t.Errorf("the endpoint is %s", endpoint.Endpoint)
		}
		wait.Until(t, "the server inside answers", func() bool {
			got := conformance.Fetch(t, endpoint.URL+"/index.html", "X-EXECD-ACCESS-TOKEN",
				endpoint.Headers["X-EXECD-ACCESS-TOKEN"])
			if got.Status == http.StatusOK && got.Body != text+"\n" {
				t.Errorf("port 8000 of sandbox %s says %q", text, got.Body)
			}
			return got.Status == http.StatusOK
		})
		s.Enter(t, id).Want(t, "ls /sys/class/net | grep -c eth0", "1\n")
	})
}

// sayOnce sends a text to the first client that connects to the address.
func sayOnce(t *testing.T, text string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if connection, err := listener.Accept(); err == nil {
			_, _ = io.WriteString(connection, text)
			_ = connection.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); wait.For(t, "the end of the listener", done) })
	return listener.Addr().String()
}

// otherAddresses are the IPv4 addresses of this machine that are not loopback ones.
func otherAddresses(t *testing.T) []string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, address := range all {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil &&
			!network.IP.IsLoopback() {
			others = append(others, network.IP.String())
		}
	}
	return others
}
