package oci_test

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenRefuses: what is missing is named.
func TestOpenRefuses(t *testing.T) {
	readable := filepath.Join(t.TempDir(), "readable")
	if err := os.Mkdir(readable, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*site)
		says   []string
	}{
		"no runtime":             {func(s *site) { s.Runtime = "no-such-runtime" }, []string{"no-such-runtime"}},
		"not a runtime":          {func(s *site) { s.Runtime = "/bin/true" }, []string{"/bin/true"}},
		"no keeper":              {func(s *site) { s.Keeper = "/no/such/keeper" }, []string{"keeper", "/no/such/keeper"}},
		"two at once":            {func(s *site) { s.Runtime, s.Keeper = "no-such-runtime", "/etc" }, []string{"no-such-runtime", "/etc is not a program"}},
		"relative directory":     {func(s *site) { s.Directory = "local" }, []string{"directory", "local"}},
		"directory for everyone": {func(s *site) { s.Directory = readable }, []string{readable, "0700"}},
		"long run directory":     {func(s *site) { s.RunDirectory = "/run/" + strings.Repeat("x", 100) }, []string{"run directory", "90 bytes"}},
		"long bridge":            {func(s *site) { s.Bridge = "a-very-long-name-of-a-bridge" }, []string{"bridge"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "crun")
			directory := s.Directory
			test.change(&s)
			e, err := s.open(t.Context(), io.Discard)
			if err == nil {
				closeEngine(t, e)
				t.Fatal("the engine opened")
			}
			for _, word := range test.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not mention %q", err, word)
				}
			}
			if left, err := os.ReadDir(directory); err == nil {
				for _, entry := range left {
					if strings.HasPrefix(entry.Name(), ".") {
						t.Errorf("%s was left behind", entry.Name())
					}
				}
			}
		})
	}
}

// TestOpenWithoutOverlay: a file system that cannot be the upper layer of a container is refused
// when the Engine opens.
func TestOpenWithoutOverlay(t *testing.T) {
	s := newSite(t, "crun")
	directory := filepath.Dir(s.Directory)
	below := t.TempDir()
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(below, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + below + "/lower,upperdir=" + below + "/upper,workdir=" + below + "/work"
	if err := unix.Mount("overlay", directory, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	e, err := s.open(t.Context(), io.Discard)
	if err == nil {
		closeEngine(t, e)
		t.Fatal("the engine opened on an overlay file system")
	}
	if !strings.Contains(err.Error(), s.Directory) {
		t.Errorf("the error %q does not name the directory", err)
	}
}

// TestOpenRaisesHostBounds: what containers share is not used up by one of them. The parameters
// are the host's, on which neighbours of this test rely, so it only reads them.
func TestOpenRaisesHostBounds(t *testing.T) {
	closeEngine(t, newSite(t, "crun").mustOpen(t))
	for path, least := range map[string]int{
		"/proc/sys/fs/epoll/max_user_watches":     1 << 40,
		"/proc/sys/fs/inotify/max_user_instances": 1 << 16,
		"/proc/sys/fs/inotify/max_user_watches":   1 << 24,
		"/proc/sys/fs/file-max":                   1 << 40,
		"/proc/sys/kernel/pty/max":                1 << 16,
	} {
		content, err := os.ReadFile(path)
		if now, _ := strconv.Atoi(strings.TrimSpace(string(content))); err != nil || now < least {
			t.Errorf("%s has %q, %v, want at least %d", path, content, err, least)
		}
	}
}
