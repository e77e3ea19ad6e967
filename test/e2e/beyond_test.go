package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// The tests of this file are about what one machine and its engine promise beyond the table of
// test/e2e/conformance.

// TestLifeOnOneMachine: what is over when an answer comes, where endpoints lead, and which stages a
// creation reports.
func TestLifeOnOneMachine(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Server: "terminated_retention = 1"})
	got := s.Send(t, http.MethodPost, "/v1/sandboxes", s.Body(t, nil), "Prefer", "wait=60")
	for _, metric := range []string{"decode", "validate", "durable", "pulled", "created", "started",
		"ready"} {
		if !strings.Contains(got.Header.Get("Server-Timing"), metric+";dur=") {
			t.Errorf("Server-Timing lacks %s: %q", metric, got.Header.Get("Server-Timing"))
		}
	}
	created, err := conformance.Decode[lifecycle.CreatedSandbox](got)
	if err != nil {
		t.Fatal(err)
	}
	id := created.ID
	events := s.StreamEvents(t, "/v1/sandboxes/"+id+"/events")
	for _, port := range []int{conformance.DaemonPort, 8000} {
		if endpoint := s.Endpoint(t, id, port); !strings.HasSuffix(endpoint.Endpoint,
			"/proxy/"+strconv.Itoa(port)) {
			t.Errorf("port %d: endpoint %q", port, endpoint.Endpoint)
		}
	}
	inside := s.Enter(t, id)
	inside.Want(t, "cat /proc/1/comm; tr '\\0' ' ' </proc/1/cmdline | grep -c 'sleep 1000'",
		"execd-init\n1\n")

	for _, step := range []struct{ operation, state string }{{"/pause", "Paused"}, {"/resume", "Running"}} {
		begun := time.Now()
		s.Act(t, http.MethodPost, id+step.operation, http.StatusAccepted)
		took := time.Since(begun) // the service waits a second for the engine at most
		if got := s.Get(t, id).Status.State; got != step.state && took < time.Second {
			t.Errorf("right after the 202 of %s, which took %v, the sandbox is %s", step.operation, took, got)
		}
		wait.Until(t, "the sandbox is "+step.state, func() bool { return s.Get(t, id).Status.State == step.state })
	}
	s.Act(t, http.MethodDelete, id, http.StatusNoContent)
	ended := events.Until(conformance.State(id, "Terminated"))
	if left := s.containers(t); len(left) > 0 {
		t.Errorf("the event of the sandbox says Terminated, and there is %v", left)
	}
	const want = "Pending accepted pulled created started ready Running Pausing Paused Resuming Running Stopping Terminated forgotten"
	if got := conformance.Describe(append(ended, events.Rest()...)); got != want {
		t.Errorf("events: %s\nwant:   %s", got, want)
	}
}

// TestListOnOneMachine: creations are listed in their order, however quickly they follow each
// other.
func TestListOnOneMachine(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	var newest []string // first
	for range 5 {
		newest = slices.Insert(newest, 0, s.Create(t, idle()))
	}
	if got := conformance.IDs(s.Everything(t)); !slices.Equal(got, newest) {
		t.Errorf("listed are %q, want %q", got, newest)
	}
}

// TestMessageOfAFailure: the end of the log is part of it.
func TestMessageOfAFailure(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Create(t, conformance.Request(busyboxImage, "no-such-program"))
	conformance.Contains(t, s.Await(t, id, "Failed").Status.Message, "exit code 127",
		"last lines of its log", `"no-such-program"`)
}

// TestEventsOfAnotherDatabase requests events that are no longer kept, and those of a lost
// database.
func TestEventsOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, idle())
	for _, path := range []string{"/v1/events", "/v1/sandboxes/" + id + "/events"} {
		events := s.StreamEvents(t, path+"?after=1").Until(conformance.State(id, "Running"))
		if events[0].Type != "reset" || events[0].ID == 0 {
			t.Errorf("%s after 1 begins with %+v", path, events[0])
		}
		if slices.ContainsFunc(events[1:],
			func(e conformance.StreamEvent) bool { return e.Type == "reset" }) {
			t.Errorf("%s after 1: %s", path, conformance.Describe(events))
		}
	}

	// A lost database does not give ids out twice.
	before := s.StreamEvents(t, "/v1/events?after=0").Until(conformance.State(id, "Running"))
	last := before[len(before)-1].ID
	s.Halt(t)
	if err := os.RemoveAll(s.Directory); err != nil {
		t.Fatal(err)
	}
	s.Boot(t)
	after := s.StreamEvents(t, "/v1/sandboxes/"+id+"/events", "Last-Event-ID",
		strconv.FormatInt(last, 10))
	if seen := after.Until(conformance.State(id, "Running")); seen[0].Type != "reset" ||
		seen[1].ID <= last {
		t.Errorf("after the loss of the database, events after %d: %s, the second is %d", last,
			conformance.Describe(seen), seen[1].ID)
	}
}

// TestHostDirectoriesAreChecked: the service checks the directories that sandboxes mount, and
// follows links.
func TestHostDirectoriesAreChecked(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	allowed, secret := filepath.Join(root, "allowed"), filepath.Join(root, "allowed-not")
	for _, directory := range []string{filepath.Join(allowed, "sub"), secret} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"out": secret,
		"in": filepath.Join(allowed, "sub")} {
		if err := os.Symlink(target, filepath.Join(allowed, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(allowed, "sub", "note"), []byte("from the host\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	s := start(t, conformance.Plan{Settings: fmt.Sprintf("[storage]\nallowed_host_paths = [%q]",
		allowed)})
	t.Run("a link that stays inside", func(t *testing.T) {
		r := idle()
		r.Volumes = []lifecycle.Volume{conformance.HostVolume(filepath.Join(allowed, "in"), "/linked")}
		s.Enter(t, s.Running(t, r)).Want(t, "cat /linked/note", "from the host\n")
	})
	out, missing := "out", "missing"
	for name, c := range map[string]struct {
		path    string
		subPath *string
		words   []string
	}{
		"a link to the outside": {filepath.Join(allowed, "out"), nil,
			[]string{"host.path", "storage.allowed_host_paths"}},
		"a sub path that is one": {allowed, &out, []string{"subPath", "leads out"}},
		"does not exist": {filepath.Join(allowed, "missing"), nil,
			[]string{"host.path", "does not exist"}},
		"sub path does not exist": {allowed, &missing, []string{"subPath", "does not exist"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := idle()
			r.Volumes = []lifecycle.Volume{conformance.HostVolume(c.path, "/data")}
			r.Volumes[0].SubPath = c.subPath
			got := s.Send(t, http.MethodPost, "/v1/sandboxes", conformance.Encode(t, r))
			conformance.WantProblem(t, got, 400, "INVALID_REQUEST_BODY", append(c.words, "volumes[0]")...)
		})
	}
}

// TestDirectoryExchangedWhileStarting: a process that can write to an allowed directory exchanges a
// directory in it for a link and back, all the time. Each sandbox that mounts the directory gets
// the directory or nothing, never what the link leads to.
func TestDirectoryExchangedWhileStarting(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	allowed, secret := filepath.Join(root, "allowed"), filepath.Join(root, "secret")
	directory, link := filepath.Join(allowed, "mine"), filepath.Join(allowed, "link")
	for path, note := range map[string]string{directory: "mine", secret: "secret"} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "note"), []byte(note), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	s := start(t, conformance.Plan{Settings: fmt.Sprintf("[storage]\nallowed_host_paths = [%q]",
		allowed)})
	stop := make(chan struct{})
	var exchanging sync.WaitGroup
	exchanging.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(rand.N(3 * time.Millisecond)): // out of step with the requests
				if err := unix.Renameat2(unix.AT_FDCWD, directory, unix.AT_FDCWD, link,
					unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	defer exchanging.Wait()
	defer close(stop)
	r := idle()
	r.Volumes = []lifecycle.Volume{conformance.HostVolume(directory, "/data")}
	running := 0
	for range 2000 {
		got := s.Send(t, http.MethodPost, "/v1/sandboxes", conformance.Encode(t, r), "Prefer", "wait=60")
		if got.Status == http.StatusBadRequest {
			continue // the link was there
		}
		created, err := conformance.Decode[lifecycle.CreatedSandbox](got)
		if err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if s.Get(t, created.ID).Status.State == "Running" {
			s.Enter(t, created.ID).Want(t, "cat /data/note", "mine")
			s.Delete(t, created.ID)
			running++
		}
		if running == 5 {
			return
		}
	}
	t.Errorf("%d sandboxes got the directory, want 5", running)
}

// TestSubPathOfAVolumeMustBeThere: the engine makes a volume that is missing, and never a directory
// in one.
func TestSubPathOfAVolumeMustBeThere(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	missing := "missing"
	r := idle()
	claim := onDocker(s.engine).Claim(t, s.Service)
	r.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data",
		Pvc: &lifecycle.ClaimSource{ClaimName: claim}}}
	s.Running(t, r)
	r.Volumes[0].SubPath = &missing
	conformance.Contains(t, s.Await(t, s.Create(t, r), "Failed").Status.Message, "sub path", "missing")
	r.Volumes[0].Pvc.ClaimName = s.Instance + "-no-such-volume"
	conformance.Contains(t, s.Await(t, s.Create(t, r), "Failed").Status.Message, "sub path",
		"does not exist")
}
