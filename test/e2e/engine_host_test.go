package e2e_test

import (
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestEngineByAddress: DOCKER_HOST with an address instead of a socket.
func TestEngineByAddress(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Env: map[string]string{"DOCKER_HOST": "tcp://" + engineByTCP(t)}})
	t.Run("row lifecycle/environment/DOCKER_HOST", func(t *testing.T) {
		s.Enter(t, s.Running(t, idle())).Want(t, "echo hello", "hello\n")
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
