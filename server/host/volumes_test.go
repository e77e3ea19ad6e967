package host_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestExchangedDirectory: a directory that was allowed when the sandbox was asked for is a link to
// another one later.
func TestExchangedDirectory(t *testing.T) {
	for name, c := range map[string]struct{ during, says string }{
		"before the container is made": {callEnsureImage, "storage.allowed_host_paths"},
		"while it is being started":    {callStart, "was exchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			allowed, outside := filepath.Join(root, "data"), filepath.Join(root, "database")
			directory := filepath.Join(allowed, "mine")
			for _, path := range []string{directory, outside} {
				if err := os.MkdirAll(path, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			m := newMachine(t)
			m.box.AllowedHostPaths = []string{allowed}
			m.start()
			during := newGate()
			m.engine.failBefore(c.during, during.fault)
			wanted := spec()
			wanted.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", HostPath: directory}}
			sandbox, err := m.host.Create(context.Background(), wanted, lifecycle.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			during.await(t)
			if err := os.Remove(directory); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, directory); err != nil {
				t.Fatal(err)
			}
			close(during.open)
			status := m.awaitReason(sandbox.ID, lifecycle.StateFailed, lifecycle.ReasonContainerError)
			if !strings.Contains(status.Message, "volumes[0].host.path") || !strings.Contains(status.Message, c.says) {
				t.Errorf("the sandbox failed with %q", status.Message)
			}
			m.awaitEmpty()
		})
	}
}

// asAdmin are the options of a create by an administrator's key.
var asAdmin = lifecycle.CreateOptions{Role: lifecycle.RoleAdmin}

// hostVolume is spec with one directory of the host.
func hostVolume(path, subPath string) lifecycle.Spec {
	wanted := spec()
	wanted.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", HostPath: path, SubPath: subPath}}
	return wanted
}

// TestNeverMounted: whatever the list of allowed paths holds, and under every name.
func TestNeverMounted(t *testing.T) {
	root := realTempDir(t)
	socket, data := filepath.Join(root, "run", "engine.sock"), filepath.Join(root, "data")
	directories(t, filepath.Join(root, "run"), filepath.Join(data, "inner"), filepath.Join(root, "links"), filepath.Join(root, "bound"), filepath.Join(root, "bound-file"))
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	links := map[string]string{"root": "/", "proc": "/proc", "socket": socket, "run": filepath.Join(root, "run"), "data": data, "up": ".."}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, "links", name)); err != nil {
			t.Fatal(err)
		}
	}
	bind(t, filepath.Join(root, "run"), filepath.Join(root, "bound"))
	nested := filepath.Join(root, "nested")
	directories(t, filepath.Join(nested, "kernel"), filepath.Join(nested, "own"))
	bind(t, "/proc", filepath.Join(nested, "kernel"))
	bind(t, filepath.Join(data, "inner"), filepath.Join(nested, "own"))

	for _, list := range [][]string{nil, {"/"}} {
		m := newMachine(t)
		m.engine.own = []string{socket}
		m.box.OwnPaths, m.box.AllowedHostPaths = []string{data}, list
		m.start()
		for name, wanted := range map[string]lifecycle.Spec{
			"/proc":                              hostVolume("/proc", ""),
			"below /sys":                         hostVolume("/sys/fs", ""),
			"/dev":                               hostVolume("/dev", ""),
			"the engine's socket":                hostVolume(socket, ""),
			"its directory":                      hostVolume(filepath.Dir(socket), ""),
			"its directory's directory":          hostVolume(root, ""),
			"by sub path":                        hostVolume(root, "run"),
			"the service's data":                 hostVolume(data, ""),
			"below the service's data":           hostVolume(filepath.Join(data, "inner"), ""),
			"a link to the root":                 hostVolume(filepath.Join(root, "links", "root"), ""),
			"a link to /proc":                    hostVolume(filepath.Join(root, "links", "proc"), ""),
			"a link to the socket":               hostVolume(filepath.Join(root, "links", "socket"), ""),
			"a link to its directory":            hostVolume(filepath.Join(root, "links", "run"), ""),
			"a link on the way":                  hostVolume(filepath.Join(root, "links", "root", "proc", "sys"), ""),
			"a link upwards":                     hostVolume(filepath.Join(root, "links", "up"), ""),
			"a link to the data":                 hostVolume(filepath.Join(root, "links", "data", "inner"), ""),
			"a second name of the directory":     hostVolume(filepath.Join(root, "bound"), ""),
			"the socket by that name":            hostVolume(filepath.Join(root, "bound", "engine.sock"), ""),
			"/proc is mounted below":             hostVolume(nested, ""),
			"another mount of /proc":             hostVolume(filepath.Join(nested, "kernel", "sys"), ""),
			"another mount of the service's own": hostVolume(filepath.Join(nested, "own"), ""),
		} {
			_, err := m.host.Create(t.Context(), wanted, asAdmin)
			if kindOf(err) != lifecycle.KindInvalid || !strings.Contains(err.Error(), "volumes[0].") || !strings.Contains(err.Error(), lifecycle.RuleNever) {
				t.Errorf("list %q, %s: %v", list, name, err)
			}
		}
		if _, err := m.host.Create(t.Context(), hostVolume(filepath.Join(root, "links"), ""), asAdmin); err != nil {
			t.Errorf("list %q, a directory beside them: %v", list, err)
		}
	}
}

// TestSocketsAreNotMounted: whatever listens there, its protocol is for the host's own programs.
func TestSocketsAreNotMounted(t *testing.T) {
	socket := filepath.Join(realTempDir(t), "other.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, err = newMachine(t).start().host.Create(t.Context(), hostVolume(socket, ""), asAdmin)
	if kindOf(err) != lifecycle.KindInvalid || !strings.Contains(err.Error(), "volumes[0].host.path") {
		t.Errorf("a socket: %v", err)
	}
}

// TestRefusalsDoNotShowTheDisk: what lies outside the list is refused in the same words whether it
// exists or not, also when a link in an allowed directory, which a sandbox can make, leads there.
func TestRefusalsDoNotShowTheDisk(t *testing.T) {
	root := realTempDir(t)
	allowed, outside := filepath.Join(root, "allowed"), filepath.Join(root, "outside")
	directories(t, allowed, outside)
	m := newMachine(t)
	m.box.AllowedHostPaths = []string{allowed}
	m.start()
	refusal := func(wanted lifecycle.Spec) string {
		t.Helper()
		_, err := m.host.Create(t.Context(), wanted, asAdmin)
		if kindOf(err) != lifecycle.KindInvalid {
			t.Fatalf("%+v: %v", wanted.Volumes, err)
		}
		return strings.ReplaceAll(strings.ReplaceAll(err.Error(), "missing", "NAME"), "outside", "NAME")
	}
	link := func(name, target string) string {
		t.Helper()
		path := filepath.Join(allowed, name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	missing := filepath.Join(root, "missing")
	for name, c := range map[string][2]lifecycle.Spec{
		"as it is written": {hostVolume(outside, ""), hostVolume(missing, "")},
		"through a link":   {hostVolume(link("to-outside", outside), ""), hostVolume(link("to-missing", missing), "")},
		"by a sub path":    {hostVolume(allowed, "to-outside"), hostVolume(allowed, "to-missing")},
		"through both":     {hostVolume(allowed, "to-outside/x"), hostVolume(allowed, "to-missing/x")},
	} {
		if there, notThere := refusal(c[0]), refusal(c[1]); there != notThere {
			t.Errorf("%s: %q and %q", name, there, notThere)
		}
	}
}

// TestPinnedDirectory: what the engine mounts is what was checked, although a link takes the
// directory's place before the engine looks.
func TestPinnedDirectory(t *testing.T) {
	root := realTempDir(t)
	allowed, outside := filepath.Join(root, "allowed"), filepath.Join(root, "outside")
	directory := filepath.Join(allowed, "mine")
	directories(t, directory, outside)
	for path, text := range map[string]string{filepath.Join(directory, "note"): "mine", filepath.Join(outside, "note"): "secret"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := newMachine(t)
	m.box.AllowedHostPaths = []string{allowed}
	m.box.PinDirectory = filepath.Join(root, "data", "pins")
	// as where /var leads elsewhere
	if err := os.Symlink(realTempDir(t), filepath.Join(root, "data")); err != nil {
		t.Fatal(err)
	}
	m.start()
	during := newGate()
	m.engine.failBefore(callStart, during.fault)
	sandbox, err := m.host.Create(t.Context(), hostVolume(directory, ""), asAdmin)
	if err != nil {
		t.Fatal(err)
	}
	during.await(t)
	if err := os.Rename(directory, directory+"-moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, directory); err != nil {
		t.Fatal(err)
	}
	mounts := m.engine.mountsOf(container(sandbox.ID))
	given := mounts[len(mounts)-1].HostPath
	if text, err := os.ReadFile(filepath.Join(given, "note")); err != nil || string(text) != "mine" {
		t.Errorf("the engine was given %s, whose note is %q (%v)", given, text, err)
	}
	close(during.open)
	m.await(sandbox.ID, lifecycle.StateRunning)
	if left, err := os.ReadDir(m.box.PinDirectory); err != nil || len(left) > 0 {
		t.Errorf("pins are left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(directory+"-moved", "note")); err != nil {
		t.Errorf("releasing the pin touched the directory: %v", err)
	}
}

// TestPinsOfAKilledService are released at the next start, and nothing is removed through them;
// what is mounted below a pinned directory stays mounted where it was.
func TestPinsOfAKilledService(t *testing.T) {
	root := realTempDir(t)
	directory, pins := filepath.Join(root, "directory"), filepath.Join(root, "pins")
	directories(t, filepath.Join(directory, "below"), filepath.Join(root, "other"), filepath.Join(pins, "left-0"))
	note := filepath.Join(root, "other", "note")
	if err := os.WriteFile(note, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bind(t, directory, directory) // a mount of its own, so that it can be shared, as systemd has the root
	if err := syscall.Mount("", directory, "", syscall.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	bind(t, filepath.Join(root, "other"), filepath.Join(directory, "below"))
	if err := syscall.Mount(directory, filepath.Join(pins, "left-0"), "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	m.box.PinDirectory = pins
	m.start()
	if left, err := os.ReadDir(pins); err != nil || len(left) > 0 {
		t.Errorf("pins are left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(directory, "below", "note")); err != nil {
		t.Errorf("a mount below the directory is gone: %v", err)
	}
}

func TestNamedVolumesHaveOwners(t *testing.T) {
	m := newMachine(t).start()
	m.engine.volumes["of-another-program"] = map[string]string{}
	m.engine.volumes["of-another-instance"] = map[string]string{lifecycle.LabelPrefix + "owner": "alice", lifecycle.LabelPrefix + "instance": "other"}
	m.engine.volumes["for-all"] = map[string]string{lifecycle.LabelPrefix + "shared": "true"}
	create := func(owner string, role lifecycle.Role, claim string) (lifecycle.Sandbox, error) {
		wanted := spec()
		wanted.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", ClaimName: claim}}
		return m.host.Create(t.Context(), wanted, lifecycle.CreateOptions{Owner: owner, Role: role})
	}
	for _, step := range []struct {
		owner   string
		role    lifecycle.Role
		claim   string
		refused bool
	}{
		{"alice", lifecycle.RoleUser, "work", false},
		{"alice", lifecycle.RoleUser, "work", false},
		{"bob", lifecycle.RoleUser, "work", true},
		{"root", lifecycle.RoleAdmin, "work", false},
		{"bob", lifecycle.RoleUser, "work", true}, // an administrator's use does not share it
		{"root", lifecycle.RoleAdmin, "roots", false},
		{"alice", lifecycle.RoleUser, "roots", true},
		{"alice", lifecycle.RoleUser, "of-another-program", true},
		{"alice", lifecycle.RoleUser, "of-another-instance", true},
		{"root", lifecycle.RoleAdmin, "of-another-program", false},
		{"bob", lifecycle.RoleUser, "for-all", false},
	} {
		sandbox, err := create(step.owner, step.role, step.claim)
		if step.refused {
			if kindOf(err) != lifecycle.KindForbidden || !strings.Contains(err.Error(), "volumes[0].pvc.claimName") {
				t.Errorf("%+v: %v", step, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%+v: %v", step, err)
		}
		m.await(sandbox.ID, lifecycle.StateRunning)
	}
}

// TestFirstOfTwoOwners: two keys ask for a volume that does not exist. It belongs to the one whose
// sandbox made it; the other's fails.
func TestFirstOfTwoOwners(t *testing.T) {
	m := newMachine(t).start()
	during := newGate()
	m.engine.failBefore(callMakeVolume, during.fault)
	ids := map[string]string{}
	for _, owner := range []string{"alice", "bob"} {
		wanted := spec()
		wanted.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", ClaimName: "work"}}
		sandbox, err := m.host.Create(t.Context(), wanted, lifecycle.CreateOptions{Owner: owner, Role: lifecycle.RoleUser})
		if err != nil {
			t.Fatal(err)
		}
		ids[sandbox.ID] = owner
	}
	during.await(t)
	close(during.open)
	states := map[lifecycle.State]int{}
	for id := range ids {
		settled, err := m.host.AwaitStable(t.Context(), id, wait.Patience())
		if err != nil {
			t.Fatal(err)
		}
		states[settled.Status.State]++
		if settled.Status.State == lifecycle.StateFailed && !strings.Contains(settled.Status.Message, "volumes[0].pvc.claimName") {
			t.Errorf("the sandbox failed with %q", settled.Status.Message)
		}
	}
	if states[lifecycle.StateRunning] != 1 || states[lifecycle.StateFailed] != 1 {
		t.Errorf("%v, want one of each", states)
	}
}

// TestVolumeMadeMeanwhile: another key's sandbox makes the volume after it was looked for, and
// before the container is made.
func TestVolumeMadeMeanwhile(t *testing.T) {
	m := newMachine(t).start()
	m.engine.failAfter(callMakeVolume, func(context.Context, string) error {
		m.engine.mu.Lock()
		defer m.engine.mu.Unlock()
		m.engine.volumes["theirs"] = map[string]string{lifecycle.LabelPrefix + "owner": "bob", lifecycle.LabelPrefix + "instance": instance}
		return nil
	})
	wanted := spec()
	wanted.Volumes = []lifecycle.Volume{
		{Name: "theirs", MountPath: "/theirs", ClaimName: "theirs", SubPath: "directory"},
		{Name: "mine", MountPath: "/mine", ClaimName: "mine"},
	}
	sandbox, err := m.host.Create(t.Context(), wanted, lifecycle.CreateOptions{Owner: "alice", Role: lifecycle.RoleUser})
	if err != nil {
		t.Fatal(err)
	}
	settled, err := m.host.AwaitStable(t.Context(), sandbox.ID, wait.Patience())
	if err != nil {
		t.Fatal(err)
	}
	if settled.Status.State != lifecycle.StateFailed || !strings.Contains(settled.Status.Message, "volumes[0].pvc.claimName") {
		t.Errorf("%+v", settled.Status)
	}
}

func realTempDir(t *testing.T) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func directories(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// bind gives a directory a second name until the test ends.
func bind(t *testing.T, directory, name string) {
	t.Helper()
	if err := syscall.Mount(directory, name, "", syscall.MS_BIND, ""); err != nil {
		t.Fatalf("these tests mount, and so need root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(name, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
