package e2e_test

import (
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestDiskFull fills the disk under the records: what changes something is refused and not done,
// what only reads goes on, and once there is space everything works again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatalf("mount a small disk, as root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	s := start(t, conformance.Plan{Program: true, Directory: filepath.Join(disk, "data")})
	one, paused, doomed := s.Running(t, idle()), s.Running(t, idle()), s.Running(t, idle())
	s.Pause(t, paused)
	s.Enter(t, one).Want(t, "echo kept > /tmp/note", "")

	free := fill(t, filepath.Join(disk, "filler"))
	later := func(by time.Duration) string { return time.Now().Add(by).UTC().Format(time.RFC3339) }
	// A write-ahead log may still have space; every renewal takes some.
	full := false
	for i := 0; i < 3000 && !full; i++ {
		full = s.Renew(t, one,
			later(time.Hour+time.Duration(i)*time.Second)).Status == http.StatusInternalServerError
	}
	if !full {
		t.Fatal("the disk does not get full")
	}
	before := map[string]string{one: "Running", paused: "Paused"}
	expires := s.Get(t, one).ExpiresAt
	containers := len(s.containers(t))
	for name, c := range map[string]struct{ method, path, body string }{
		"create": {http.MethodPost, "", conformance.Encode(t, idle())},
		"pause":  {http.MethodPost, "/" + one + "/pause", ""},
		"resume": {http.MethodPost, "/" + paused + "/resume", ""},
		"renew": {http.MethodPost, "/" + one + "/renew-expiration",
			conformance.Renewal(later(20 * time.Hour))},
		"delete": {http.MethodDelete, "/" + one, ""},
	} {
		got := s.Send(t, c.method, "/v1/sandboxes"+c.path, c.body)
		if conformance.WantProblem(t, got, 500, "INTERNAL_ERROR"); strings.Contains(got.Body, "disk") ||
			strings.Contains(got.Body, "database") || strings.Contains(got.Body, disk) {
			t.Errorf("%s: the answer shows the cause: %s", name, got)
		}
		request := got.Header.Get("X-Request-ID")
		wait.Until(t, "the log says why "+name+" failed", func() bool {
			return len(s.Log.With(request, "full")) > 0 || len(s.Log.With(request, "no space")) > 0
		})
	}
	reads := func() {
		t.Helper()
		for id, state := range before {
			if got := s.Get(t, id).Status; got.State != state {
				t.Errorf("%s is %s (%s), it was %s", id, got.State, got.Message, state)
			}
		}
		s.Enter(t, one).Want(t, "cat /tmp/note", "kept\n")
		if got := s.Get(t, one).ExpiresAt; !got.Equal(expires) {
			t.Errorf("the sandbox expires at %v, it did at %v", got, expires)
		}
		if got := len(s.Everything(t)); got != 3 {
			t.Errorf("%d sandboxes are listed, want 3", got)
		}
	}
	reads()
	if got := len(s.containers(t)); got != containers {
		t.Errorf("there are %d containers, there were %d", got, containers)
	}
	for _, container := range s.containers(t) {
		if want := map[string]string{one: "running", paused: "frozen",
			doomed: "running"}; want[container.Labels["sandbox.internal/id"]] != string(
			container.Status) {
			t.Errorf("container %s is %s", container.Name, container.Status)
		}
	}
	// What happens by itself is reported although it cannot be stored.
	if err := s.engine.Remove(t.Context(), "sandbox-"+doomed); err != nil {
		t.Fatal(err)
	}
	gone := s.Await(t, doomed, "Failed").Status
	if gone.Reason != "REMOVED_EXTERNALLY" {
		t.Errorf("the removed one: %s (%s)", gone.Reason, gone.Message)
	}

	free()
	check := func() {
		t.Helper()
		reads()
		if got := s.Await(t, doomed, "Failed").Status; got.Reason != "REMOVED_EXTERNALLY" {
			t.Errorf("the removed one: %s (%s)", got.Reason, got.Message)
		}
	}
	check()
	s.Kill()
	s.Boot(t)
	check()
	s.Pause(t, one)
	s.Resume(t, paused)
	if got := s.Renew(t, one, later(21*time.Hour)); got.Status != http.StatusOK {
		t.Errorf("renew: %s", got)
	}
	s.Enter(t, s.Running(t, idle())).Want(t, "echo usable", "usable\n")
	s.Delete(t, one)
	s.Await(t, one, "Terminated")
}

// fill uses up the disk's space and returns a function that frees it.
func fill(t *testing.T, path string) (free func()) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 4096)
	_, _ = rand.Read(block) // never fails
	for {
		if _, err := file.Write(block); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}
