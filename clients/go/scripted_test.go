package sandbox_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sandbox "sandbox.internal/clients/go"
)

// These tests are about failures that a real service does not produce on demand: a scripted one
// stands in for it.

const scriptedBox = `{"id":"box","image":{"uri":"x"},"metadata":{},"entrypoint":["x"],
	"status":{"state":"Running","reason":"","message":"","lastTransitionAt":"2026-01-02T15:04:05Z"},
	"expiresAt":"2026-01-02T15:04:05Z","createdAt":"2026-01-02T15:04:05Z"}`

// commands and watches are paths of that sandbox.
const (
	commands = "/v1/sandboxes/box/proxy/44772/command"
	watches  = "/v1/sandboxes/box/proxy/44772/files/watch"
)

// scripted returns a client of a service with one sandbox, whose other paths are those of mux.
func scripted(t *testing.T, mux *http.ServeMux) *sandbox.Client {
	t.Helper()
	return scriptedIn(t, "Running", mux, sandbox.Options{})
}

// scriptedIn is scripted with a sandbox in another state, or other options.
func scriptedIn(t *testing.T, state string, mux *http.ServeMux, options sandbox.Options) *sandbox.Client {
	t.Helper()
	mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, strings.Replace(scriptedBox, "Running", state, 1))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	options.URL = server.URL
	return dial(t, options)
}

// cut ends a connection in the middle of an answer.
func cut(http.ResponseWriter) { panic(http.ErrAbortHandler) }

// end is the end of a text.
func end(text []byte) []byte { return text[max(0, len(text)-20):] }
