package docker_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

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
			switch {
			case strings.HasSuffix(r.URL.Path, "/start"):
				w.WriteHeader(http.StatusInternalServerError)
				_ = json.NewEncoder(w).Encode(map[string]string{"message": text})
			case strings.HasSuffix(r.URL.Path, "/json"):
				_, _ = io.WriteString(w, `{"Id": "some", "State": {"Status": "created"}, "Config": {}, "HostConfig": {}}`)
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

// TestRegistrysAnswersAreNotQuoted: the engine quotes what any HTTP server answers that an image's
// reference names, in full.
func TestRegistrysAnswersAreNotQuoted(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"body":    {`error parsing HTTP 403 response body: invalid character '<' looking for beginning of value: "<p>secret</p>"`, "error parsing HTTP 403 response body"},
		"message": {"denied: requested access to the resource is denied", "denied: requested access to the resource is denied"},
		"long":    {"denied: x" + strings.Repeat("é", 1<<16), strings.Repeat("é", 100)},
	} {
		for _, streamed := range []bool{false, true} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Api-Version", "1.41")
				switch {
				case strings.HasSuffix(r.URL.Path, "/json"):
					w.WriteHeader(http.StatusNotFound)
					_ = json.NewEncoder(w).Encode(map[string]string{"message": "No such image"})
				case strings.HasSuffix(r.URL.Path, "/images/create") && streamed:
					_ = json.NewEncoder(w).Encode(map[string]any{"errorDetail": map[string]string{"message": c.text}, "error": c.text})
				case strings.HasSuffix(r.URL.Path, "/images/create"):
					w.WriteHeader(http.StatusInternalServerError)
					_ = json.NewEncoder(w).Encode(map[string]string{"message": c.text})
				}
			}))
			e, err := docker.New(docker.Options{Host: "tcp://" + server.Listener.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			_, err = e.EnsureImage(t.Context(), "127.0.0.1:9090/x", nil, func(string) {})
			switch {
			case !errors.Is(err, engine.ErrImage) || !strings.Contains(err.Error(), c.want):
				t.Errorf("%s, streamed %t: %.200v", name, streamed, err)
			case len(err.Error()) > 4096+200 || !utf8.ValidString(err.Error()) || strings.Contains(err.Error(), "secret"):
				t.Errorf("%s, streamed %t: %d bytes: %.200v", name, streamed, len(err.Error()), err)
			}
			_ = e.Close()
			server.Close()
		}
	}
}
