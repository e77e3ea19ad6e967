package oci_test

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci"
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
		"no runtime":          {func(s *site) { s.Runtime = "no-such-runtime" }, []string{"no-such-runtime"}},
		"not a runtime":       {func(s *site) { s.Runtime = "/bin/true" }, []string{"/bin/true"}},
		"no keeper":           {func(s *site) { s.Keeper = "/no/such/keeper" }, []string{"keeper", "/no/such/keeper"}},
		"two at once":         {func(s *site) { s.Runtime, s.Keeper = "no-such-runtime", "/etc" }, []string{"no-such-runtime", "/etc is not a program"}},
		"relative folder":     {func(s *site) { s.Folder = "local" }, []string{"folder", "local"}},
		"folder for everyone": {func(s *site) { s.Folder = readable }, []string{readable, "0700"}},
		"long run folder":     {func(s *site) { s.RunFolder = "/run/" + strings.Repeat("x", 100) }, []string{"run folder", "90 bytes"}},
		"long bridge":         {func(s *site) { s.Bridge = "a-very-long-name-of-a-bridge" }, []string{"bridge"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "crun")
			folder := s.Folder
			test.change(&s)
			e, err := s.open(t.Context(), io.Discard)
			if err == nil {
				closeEngine(t, e)
				t.Fatal("it opened")
			}
			for _, word := range test.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not mention %q", err, word)
				}
			}
			if left, err := os.ReadDir(folder); err == nil {
				for _, entry := range left {
					if strings.HasPrefix(entry.Name(), ".") {
						t.Errorf("%s was left behind", entry.Name())
					}
				}
			}
		})
	}
}

// TestOpenWithoutOverlay: a file system that cannot be the upper layer of a container is refused when the Engine opens.
func TestOpenWithoutOverlay(t *testing.T) {
	s := newSite(t, "crun")
	folder := filepath.Dir(s.Folder)
	below := t.TempDir()
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(below, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + below + "/lower,upperdir=" + below + "/upper,workdir=" + below + "/work"
	if err := unix.Mount("overlay", folder, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	e, err := s.open(t.Context(), io.Discard)
	if err == nil {
		closeEngine(t, e)
		t.Fatal("it opened on an overlay file system")
	}
	if !strings.Contains(err.Error(), s.Folder) {
		t.Errorf("the error %q does not name the folder", err)
	}
}

// TestOpenRaisesEpollWatches: where containers may run as users of the host, these cannot use up what root may watch with epoll.
func TestOpenRaisesEpollWatches(t *testing.T) {
	const path, least = "/proc/sys/fs/epoll/max_user_watches", 1_000_000
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, before, 0); err != nil {
			t.Error(err)
		}
	})
	for namespaces, want := range map[oci.UserNamespaces]int{oci.UserNamespacesAuto: 1 << 40, oci.UserNamespacesOn: least} {
		if err := os.WriteFile(path, strconv.AppendInt(nil, least, 10), 0); err != nil {
			t.Fatal(err)
		}
		s := newSite(t, "crun")
		s.Users = namespaces
		closeEngine(t, s.mustOpen(t))
		content, err := os.ReadFile(path)
		if now, _ := strconv.Atoi(strings.TrimSpace(string(content))); err != nil || now != want {
			t.Errorf("user namespaces %s: %s has %s, %v, want %d", namespaces, path, content, err, want)
		}
	}
}
