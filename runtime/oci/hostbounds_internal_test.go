package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// TestRaiseHostBounds: parameters that are lower are raised and others stay. With user namespaces
// in any case, containers share less.
func TestRaiseHostBounds(t *testing.T) {
	names := []string{
		"fs/epoll/max_user_watches", "fs/inotify/max_user_instances", "fs/inotify/max_user_watches",
		"fs/file-max", "kernel/pty/max",
	}
	const (
		ones   = "1 1 1 1 1"
		raised = "1099511627776 65536 16777216 1099511627776 65536"
		higher = "9223372036854775807 65537 16777217 9223372036854775807 65537"
	)
	for _, test := range []struct {
		mode          UserNamespaces
		before, after string // of the parameters in the order of names
	}{
		{UserNamespacesAuto, ones, raised},
		{UserNamespacesOff, ones, raised},
		{UserNamespacesOn, ones, "1 1 1 1099511627776 65536"},
		{UserNamespacesAuto, higher, higher},
	} {
		procSys := t.TempDir()
		for i, value := range strings.Fields(test.before) {
			path := filepath.Join(procSys, names[i])
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		raiseHostBounds(procSys, test.mode, zerolog.New(zerolog.NewTestWriter(t)))
		for i, want := range strings.Fields(test.after) {
			content, err := os.ReadFile(filepath.Join(procSys, names[i]))
			if got := strings.TrimSpace(string(content)); err != nil || got != want {
				t.Errorf("user namespaces %s: %s was %s and is %q, %v, want %s", test.mode, names[i], strings.Fields(test.before)[i], got, err, want)
			}
		}
	}
}
