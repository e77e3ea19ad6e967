package clients_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// echoes reports whether what is typed on a terminal is shown.
func echoes(t *testing.T, terminal *os.File) bool {
	t.Helper()
	modes, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return modes.Lflag&unix.ECHO != 0
}

// TestLoginOnATerminal: a key is typed without an echo, and an interrupt while it is asked for ends
// the tool at once, with the terminal as it was.
func TestLoginOnATerminal(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("SERVICE-API-KEY") != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprint(w, `{"version":"1"}`)
	}))
	t.Cleanup(service.Close)
	for name, test := range map[string]struct {
		keys   string
		signal os.Signal
		code   int
	}{
		"a key":   {keys: "secreX\x7ft\r"},
		"Ctrl-C":  {keys: "sec\x03", code: 130},
		"SIGINT":  {signal: os.Interrupt, code: 130},
		"SIGTERM": {signal: syscall.SIGTERM, code: 130},
		"Ctrl-D":  {keys: "\x04", code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCommandLine(t, service.URL)
			contexts := filepath.Join(t.TempDir(), "contexts.json")
			c.env = append(c.env, "SANDBOX_CONTEXTS="+contexts)
			login, terminal := c.beginOnTerminal(t, 80, c.command(t, "login"))
			login.await(t, "API key of ")
			if test.signal == nil {
				login.send(t, test.keys)
			} else if err := login.Process.Signal(test.signal); err != nil {
				t.Fatal(err)
			}
			login.end(t, test.code)
			if !echoes(t, terminal) {
				t.Error("the terminal shows nothing of what is typed")
			}
			saved, err := os.ReadFile(contexts)
			if ok := strings.Contains(string(saved), `"secret"`); ok != (test.code == 0) ||
				strings.Contains(login.text(), "sec") {
				t.Errorf("saved %q (%v), shown %q", saved, err, login.text())
			}
		})
	}
}
