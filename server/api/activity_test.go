package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

const noActivity = `{"entries":[],"cursor":7}`

// activity answers as the daemon of a sandbox.
func activity(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-EXECD-ACCESS-TOKEN") != boxToken || r.Header.Get("SERVICE-API-KEY") != "" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch r.URL.RequestURI() {
	case "/activity?after=5":
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "a=b")
		_, _ = fmt.Fprintln(w, noActivity)
	case "/activity/watch":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, ": after %s\n\n", r.Header.Values("Last-Event-ID"))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func TestActivityIsTheDaemons(t *testing.T) {
	t.Parallel()
	p := servePorts(t, activity, nil)
	path := "/v1/sandboxes/" + p.backend.sandbox.ID + "/activity"
	response, body := p.get(t, path+"?after=5")
	if response.StatusCode != http.StatusOK || strings.TrimSpace(body) != noActivity ||
		response.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %s, %v", response.StatusCode, body, response.Header)
	}
	response, body = p.get(t, path+"/watch", "Last-Event-ID", "9")
	if response.StatusCode != http.StatusOK || body != ": after [9]\n\n" {
		t.Errorf("%d %q", response.StatusCode, body)
	}
	// The contract of the daemon refuses an empty id of an event, that of the service does not.
	response, body = p.get(t, path+"/watch", "Last-Event-ID", "")
	if response.StatusCode != http.StatusOK || body != ": after []\n\n" {
		t.Errorf("an empty Last-Event-ID: %d %q", response.StatusCode, body)
	}
	response, body = p.get(t, path+"/watch", "Last-Event-ID", "x")
	if response.StatusCode != http.StatusBadRequest || !strings.Contains(body, "Last-Event-ID") {
		t.Errorf("another Last-Event-ID: %d %q", response.StatusCode, body)
	}
	p.backend.setState(lifecycle.StatePaused)
	if response, body := p.get(t, path); response.StatusCode != http.StatusConflict ||
		!strings.Contains(body, "Paused") {
		t.Errorf("of a Paused sandbox: %d %s", response.StatusCode, body)
	}
}

// TestActivityOfAnother: whatever has taken the daemon's place, the service answers nothing but the
// contract's media types.
func TestActivityOfAnother(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		status int
	}{
		"a page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprint(w, "<script>")
		}, http.StatusBadGateway},
		"a redirection": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://elsewhere.test/")
			w.WriteHeader(http.StatusFound)
		}, http.StatusBadGateway},
		"an earlier release": {http.NotFound, http.StatusNotImplemented},
		"without the token": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", "X-EXECD-ACCESS-TOKEN")
			w.WriteHeader(http.StatusUnauthorized)
		}, http.StatusBadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := servePorts(t, test.answer, nil)
			path := "/v1/sandboxes/" + p.backend.sandbox.ID + "/activity"
			if response, body := p.get(t, path); response.StatusCode != test.status ||
				response.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%d %s", response.StatusCode, body)
			}
		})
	}
}

// TestDaemonGetsTheNameOfTheKey: and nothing that the caller sends in its place; other ports do
// not.
func TestDaemonGetsTheNameOfTheKey(t *testing.T) {
	t.Parallel()
	p := servePorts(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%q", r.Header.Values("X-EXECD-KEY-NAME"))
	}, nil)
	for port, want := range map[string]string{"44772": `["alice"]`, "8000": `[]`} {
		if _, body := p.get(t, p.path(port, "/x"), "X-EXECD-KEY-NAME", "root"); body != want {
			t.Errorf("port %s gets %s, want %s", port, body, want)
		}
	}
}
