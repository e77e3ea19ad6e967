package e2e_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
)

// TestEnvironmentVariables: DOCKER_HOST with an address instead of a socket, and PENDING_FAILURE_TTL.
func TestEnvironmentVariables(t *testing.T) {
	t.Parallel()
	s := start(t, plan{env: map[string]string{"DOCKER_HOST": "tcp://" + engineByTCP(t), "PENDING_FAILURE_TTL": "1"}})
	t.Run("row lifecycle/environment/DOCKER_HOST", func(t *testing.T) {
		s.enter(t, s.running(t, idle())).want(t, "echo hello", "hello\n")
	})
	t.Run("row lifecycle/environment/PENDING_FAILURE_TTL", func(t *testing.T) {
		id := s.create(t, request("127.0.0.1:1/no/such:image", "sleep", "1000"))
		eventually(t, "the record of a sandbox that failed while Pending is forgotten", func() bool {
			return s.send(t, http.MethodGet, "/v1/sandboxes/"+id, "").status == http.StatusNotFound
		})
	})
}

// engineByTCP passes connections to an address on to the engine's own.
func engineByTCP(t *testing.T) (address string) {
	t.Helper()
	network, target := "unix", "/var/run/docker.sock"
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		u, err := url.Parse(host)
		if err != nil {
			t.Fatal(err)
		}
		if network, target = u.Scheme, u.Path; u.Scheme == "tcp" {
			target = u.Host
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		open.Wait()
	})
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			engine, err := net.Dial(network, target)
			if err != nil {
				t.Error(errors.Join(err, client.Close()))
				return
			}
			for _, pair := range [][2]net.Conn{{client, engine}, {engine, client}} {
				open.Go(func() {
					_, _ = io.Copy(pair[0], pair[1]) // until either side closes
					_ = pair[0].Close()
				})
			}
		}
	})
	return listener.Addr().String()
}
