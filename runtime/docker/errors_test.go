package docker_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
)

// TestEngineThatIsBeingStopped has the words of real engines in the middle of their end. What is
// asked for can be asked for again.
func TestEngineThatIsBeingStopped(t *testing.T) {
	for text, want := range map[string]error{
		"transport is closing: unavailable":             engine.ErrUnavailable,
		"failed to create shim: ttrpc: closed: unknown": engine.ErrUnavailable,
		"connection error: desc = \"transport: error while dialing: dial unix /run/x/containerd.sock: connect: no such file\"": engine.ErrUnavailable,
		"failed to update store for object type *libnetwork.endpoint: open : no such file or directory":                        engine.ErrUnavailable,
		"failed to create shim: OCI runtime create failed: no such device":                                                     engine.ErrInvalid,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Api-Version", "1.41")
			if strings.HasSuffix(r.URL.Path, "/start") {
				w.WriteHeader(http.StatusInternalServerError)
				_ = json.NewEncoder(w).Encode(map[string]string{"message": text})
			}
		}))
		e, err := docker.New(docker.Options{Host: "tcp://" + server.Listener.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context(), "some"); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
		_ = e.Close()
		server.Close()
	}
}
