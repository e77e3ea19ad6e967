package oci_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/program"
)

// notes is a log.
type notes struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

// userNamespaces returns what the last line about user namespaces since the last call says, and
// why; nothing without one.
func (n *notes) userNamespaces(t *testing.T) (state, cause string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.text.Reset()
	for line := range bytes.Lines(n.text.Bytes()) {
		var fields struct {
			State  string `json:"user_namespaces"`
			Error  string `json:"error"`
			Reason string `json:"reason"`
		}
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if fields.State != "" {
			state, cause = fields.State, fields.Error+fields.Reason
		}
	}
	return state, cause
}

// openMode opens an Engine with a setting for user namespaces.
func (s site) openMode(t testing.TB, mode oci.UserNamespaces, log io.Writer) *oci.Engine {
	t.Helper()
	s.Users = mode
	e, err := s.open(t.Context(), log)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return e
}

// processOf returns a container's process, which is the first one of its process namespace. A
// process of the OCI runtime, which has made that one, can be in the container's cgroup, too, until
// it has ended.
func (s site) processOf(t *testing.T, id string) int {
	t.Helper()
	for pid := range processes(t) {
		groups, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
		if err != nil || !bytes.Contains(groups, []byte(id)) {
			continue
		}
		status, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
		if err != nil { // it has ended
			continue
		}
		_, after, _ := bytes.Cut(status, []byte("\nNSpid:"))
		line, _, _ := bytes.Cut(after, []byte("\n"))
		if ids := strings.Fields(string(line)); len(ids) < 2 || ids[len(ids)-1] != "1" {
			continue
		}
		number, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
	t.Fatalf("container %s has no process", id)
	return 0
}

// ownerOf returns the host's user that a process's root is: 0 without a user namespace.
func ownerOf(t *testing.T, pid int) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		t.Fatal(err)
	}
	var inside, outside, count int
	if _, err := fmt.Sscan(string(content), &inside, &outside, &count); err != nil || inside != 0 {
		t.Fatalf("uid_map %q: %v", content, err)
	}
	return outside
}

// namespaceOwner returns the host's user that the user namespace of a process belongs to.
func namespaceOwner(t *testing.T, pid int) int {
	t.Helper()
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	var owner uint32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, namespace.Fd(), unix.NS_GET_OWNER_UID, uintptr(unsafe.Pointer(&owner))); errno != 0 {
		t.Fatal(errno)
	}
	return int(owner)
}

// TestUserNamespaces: what is promised about a container's users.
func TestUserNamespaces(t *testing.T) {
	for _, handler := range []string{"crun", "runc"} {
		if _, err := exec.LookPath(handler); err != nil && handler != "crun" {
			continue
		}
		t.Run(handler, func(t *testing.T) {
			s := newSite(t, handler)
			e := s.openMode(t, oci.UserNamespacesOn, io.Discard)
			defer closeEngine(t, e)
			imageID := loadProbe(t, e)
			t.Run("ids", func(t *testing.T) { testIDs(t, s, e, imageID) })
			t.Run("volume", func(t *testing.T) { testSharedVolume(t, s, e, imageID) })
			t.Run("host's files", func(t *testing.T) { testHostFiles(t, s, e, imageID) })
			t.Run("networks", func(t *testing.T) { testNetworks(t, e, imageID) })
			removeAll(t, e)
			s.checkNoMounts(t)
		})
	}
}

// testIDs: no two containers have the same ids, and what one writes belongs to 0 on the disk.
func testIDs(t *testing.T, s site, e *oci.Engine, imageID string) {
	seen := map[int]string{}
	for range 4 {
		id := start(t, e, probe(imageID, "sleep"))
		owner := ownerOf(t, s.processOf(t, id))
		if owner == 0 || seen[owner] != "" {
			t.Errorf("the root of container %s is the host's user %d, and %q has the same", id, owner, seen[owner])
		}
		seen[owner] = id
		// What the kernel counts for a user it counts for the owner of the namespace, too. runc may
		// lack what it takes.
		if got := namespaceOwner(t, s.processOf(t, id)); got != owner && s.Runtime == "crun" {
			t.Errorf("the user namespace of container %s belongs to the host's user %d, want %d", id, got, owner)
		}
		// Else no program in it runs with the groups of another user.
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/setgroups", s.processOf(t, id)))
		if err != nil || strings.TrimSpace(string(groups)) != "allow" {
			t.Errorf("setgroups in container %s: %q, %v", id, groups, err)
		}
	}
	id := start(t, e, probe(imageID, "write", "/written", "text"))
	if ended := waitEnd(t, e, id); ended.ExitCode != 0 {
		t.Fatalf("exit code %d", ended.ExitCode)
	}
	for path, want := range map[string]int{"disk/upper/written": 0, "disk/etc/hosts": 0} {
		if got := owner(t, filepath.Join(s.Directory, "containers", id, path)); got != want {
			t.Errorf("%s belongs to %d on the disk, want %d", path, got, want)
		}
	}
}

func owner(t *testing.T, path string) int {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Lstat(path, &info); err != nil {
		t.Fatal(err)
	}
	return int(info.Uid)
}

// testSharedVolume: two containers with other ids are the same user to a volume.
func testSharedVolume(t *testing.T, s site, e *oci.Engine, imageID string) {
	shared := []engine.Mount{{Volume: "users", Target: "/data"}}
	writer, reader := probe(imageID, "write", "/data/note", "of the first"), probe(imageID, "cat", "/data/note")
	writer.Mounts, reader.Mounts = shared, shared
	if _, ended := output(t, e, writer); ended.ExitCode != 0 {
		t.Fatalf("write: exit code %d", ended.ExitCode)
	}
	note := filepath.Join(s.Directory, "volumes", "users", "data", "note")
	if got := owner(t, note); got != 0 {
		t.Errorf("a file of a container in a volume belongs to %d on the disk", got)
	}
	if err := os.Chmod(note, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := output(t, e, reader); got != "of the first" {
		t.Errorf("the second container reads %q", got)
	}
}

// testHostFiles: a process with all that a container's root is, and that has got out of its mount
// namespace, reads no file of the host's root; the host's devices, which the container has, are the
// host's still.
func testHostFiles(t *testing.T, s site, e *oci.Engine, imageID string) {
	secret := filepath.Join(t.TempDir(), "secret")
	for path := filepath.Dir(secret); path != "/tmp" && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := start(t, e, probe(imageID, "sleep"))
	pid := strconv.Itoa(s.processOf(t, id))
	escaped := func(command ...string) (string, error) {
		output, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--user", "--target", pid, "--"}, command...)...).CombinedOutput()
		return string(output), err
	}
	if got, err := escaped("id", "-u"); err != nil || strings.TrimSpace(got) != "0" {
		t.Fatalf("id: %q, %v", got, err)
	}
	if got, err := escaped("cat", secret); err == nil || !strings.Contains(got, "Permission denied") {
		t.Errorf("an escaped process reads %q, %v", got, err)
	}
	if got, err := escaped("touch", filepath.Join(filepath.Dir(secret), "new")); err == nil {
		t.Errorf("an escaped process writes to a directory of the host's: %q", got)
	}
	for _, device := range []string{"/dev/null", "/dev/zero", "/dev/random"} {
		if got := owner(t, device); got != 0 {
			t.Errorf("the host's %s belongs to %d", device, got)
		}
	}
}

// testNetworks: with every network, a container runs and sees the interfaces of its own.
func testNetworks(t *testing.T, e *oci.Engine, imageID string) {
	for network, want := range map[engine.Network]string{engine.NetworkOwn: "eth0", engine.NetworkHost: "lo", engine.NetworkNone: "lo"} {
		spec := probe(imageID, "interfaces")
		spec.Network = network
		if network == engine.NetworkOwn {
			spec.Sysctls = map[string]string{"net.ipv4.tcp_fin_timeout": "31"}
		}
		got, ended := output(t, e, spec)
		if ended.ExitCode != 0 || !strings.Contains(got, want) {
			t.Errorf("network %q: exit code %d, interfaces %q", network, ended.ExitCode, got)
		}
	}
	spec := probe(imageID, "cat", "/proc/sys/net/ipv4/tcp_fin_timeout", "/proc/sys/net/ipv4/ip_unprivileged_port_start")
	spec.Network, spec.Sysctls = engine.NetworkOwn, map[string]string{"net.ipv4.tcp_fin_timeout": "31"}
	if got, _ := output(t, e, spec); got != "31\n0\n" {
		t.Errorf("kernel parameters %q", got)
	}
}

// TestUserNamespacesSurvive: a service that was killed finds which ids its containers have, and
// gives them to no other.
func TestUserNamespacesSurvive(t *testing.T) {
	s := newSite(t, "crun")
	e := s.openMode(t, oci.UserNamespacesOn, io.Discard)
	imageID := loadProbe(t, e)
	running := start(t, e, probe(imageID, "sleep"))
	had := ownerOf(t, s.processOf(t, running))
	closeEngine(t, e)

	e = s.openMode(t, oci.UserNamespacesOn, io.Discard)
	defer closeEngine(t, e)
	for range 3 {
		id := start(t, e, probe(imageID, "sleep"))
		if got := ownerOf(t, s.processOf(t, id)); got == had {
			t.Errorf("a new container has the ids at %d of one that runs", got)
		}
	}
	removeAll(t, e)
}

// TestUserNamespacesFallBack: a host path whose file system cannot be mapped is refused, or costs
// the container its user namespace, and that is in the log.
func TestUserNamespacesFallBack(t *testing.T) {
	lower := t.TempDir()
	directory := t.TempDir()
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(lower, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", lower)
	if err := unix.Mount("overlay", directory, "overlay", 0, options); err != nil { // which cannot be mapped
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	s := newSite(t, "crun")
	e := s.openMode(t, oci.UserNamespacesOn, io.Discard)
	imageID := loadProbe(t, e)
	spec := func() engine.ContainerSpec {
		spec := probe(imageID, "sleep")
		spec.Mounts = []engine.Mount{{HostPath: directory, Target: "/data"}}
		return spec
	}
	id, err := e.Create(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), directory) {
		t.Errorf("start with user namespaces on: %v", err)
	}
	removeAll(t, e)
	closeEngine(t, e)

	var log notes
	e = s.openMode(t, oci.UserNamespacesAuto, &log)
	defer closeEngine(t, e)
	log.userNamespaces(t)
	id = start(t, e, spec())
	if got := ownerOf(t, s.processOf(t, id)); got != 0 {
		t.Errorf("the root of the container is the host's user %d", got)
	}
	if state, cause := log.userNamespaces(t); state != "missing" || !strings.Contains(cause, directory) {
		t.Errorf("the log says of user namespaces %q, because of %q; want missing, %s", state, cause, directory)
	}
	hostUsers := probe(imageID, "sleep")
	hostUsers.HostUsers = true
	got := ownerOf(t, s.processOf(t, start(t, e, hostUsers)))
	if state, cause := log.userNamespaces(t); got != 0 || state != "" {
		t.Errorf("one with the host's users has the host's user %d, and the log says %q, because of %q", got, state, cause)
	}
	removeAll(t, e)
}

// TestUserNamespacesOff: no container has one.
func TestUserNamespacesOff(t *testing.T) {
	s := newSite(t, "crun")
	e := s.openMode(t, oci.UserNamespacesOff, io.Discard)
	defer closeEngine(t, e)
	id := start(t, e, probe(loadProbe(t, e), "sleep"))
	if got := ownerOf(t, s.processOf(t, id)); got != 0 {
		t.Errorf("the root of the container is the host's user %d", got)
	}
	removeAll(t, e)
}

// TestUserNamespacesMissing: where the trial at the start fails, an Engine that must have them does
// not open, and another one says that they are missing, and why.
func TestUserNamespacesMissing(t *testing.T) {
	s := newSite(t, "crun")
	closed := t.TempDir() // no user but root gets through
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	s.RunDirectory = filepath.Join(closed, "run")
	e, err := oci.Open(t.Context(), oci.Options{
		Directory: s.Directory, RunDirectory: s.RunDirectory, Bridge: s.Bridge, Keeper: s.Keeper, Runtime: s.Runtime, UserNamespaces: oci.UserNamespacesOn,
	})
	if err == nil {
		closeEngine(t, e)
		t.Fatal("the engine opened")
	}
	if !strings.Contains(err.Error(), "user namespaces") || !strings.Contains(strings.ToLower(err.Error()), "permission denied") {
		t.Errorf("the error does not say what is missing, and why: %v", err)
	}
	var log notes
	e = s.openMode(t, oci.UserNamespacesAuto, &log)
	defer closeEngine(t, e)
	if state, cause := log.userNamespaces(t); state != "missing" || !strings.Contains(strings.ToLower(cause), "permission denied") {
		t.Errorf("the log says of user namespaces %q, because of %q; want missing, permission denied", state, cause)
	}
	id := start(t, e, probe(loadProbe(t, e), "sleep"))
	if got := ownerOf(t, s.processOf(t, id)); got != 0 {
		t.Errorf("the root of the container is the host's user %d", got)
	}
	removeAll(t, e)
}

// TestTrialThatIsBrokenOff: a keeper that is killed whenever user namespaces are tried says nothing
// about whether the host has them.
func TestTrialThatIsBrokenOff(t *testing.T) {
	s := newSite(t, "crun")
	directory := t.TempDir()
	armed := program.Failpoints(filepath.Join(directory, "failpoints"))
	if err := program.BuildWithFailpoints(t.Context(), directory, armed, "sandbox.internal/server/cmd/sandbox-keeper"); err != nil {
		t.Fatal(err)
	}
	s.Keeper = filepath.Join(directory, "sandbox-keeper")
	const trials = 2
	if err := armed.Arm(keeper.LaunchFailpoint, trials); err != nil {
		t.Fatal(err)
	}
	var log notes
	e := s.openMode(t, oci.UserNamespacesAuto, &log)
	defer closeEngine(t, e)
	if left, err := armed.Left(keeper.LaunchFailpoint); err != nil || left > 0 {
		t.Errorf("the trial was made %d times, want %d (%v)", trials-left, trials, err)
	}
	if state, cause := log.userNamespaces(t); state != "untried" || cause == "" {
		t.Errorf("the log says of user namespaces %q, because of %q; want untried", state, cause)
	}
	if got := ownerOf(t, s.processOf(t, start(t, e, probe(loadProbe(t, e), "sleep")))); got == 0 {
		t.Error("the root of the container is the host's")
	}
	removeAll(t, e)
}
