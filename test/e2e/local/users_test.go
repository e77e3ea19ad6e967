package local_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
)

// TestUserNamespaces: root in a sandbox is a user that the machine does not have, and another one
// in every sandbox; what sandboxes write belongs to root, to each other and on the disk.
func TestUserNamespaces(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			on := newMachines()
			on.Runtime, on.Local = runtime, "user_namespaces = \"on\"\n"
			// The mask is that of the systemd unit: it takes nothing of the sandbox away.
			s := conformance.Start(t, onLocal(on), conformance.Plan{Program: true, Wrapper: []string{"sh", "-c", `umask 077 && exec "$0" "$@"`}})
			directory := t.TempDir()
			request := s.Idle()
			request.Volumes = []lifecycle.Volume{conformance.HostVolume(directory, "/shared")}
			one, two := s.Running(t, request), s.Running(t, request)

			s.Enter(t, one).Want(t, "id -u; touch /shared/root /root-file && touch /shared/other && chown 1000:1000 /shared/other && echo made", "0\nmade\n")
			s.Enter(t, two).Want(t, "stat -c %u:%g /shared/root /shared/other", "0:0\n1000:1000\n")
			for name, want := range map[string]uint32{"root": 0, "other": 1000} {
				if got := ownerOf(t, filepath.Join(directory, name)); got != want {
					t.Errorf("%s belongs to %d on the machine, want %d", name, got, want)
				}
			}
			m := on.of(s.Instance)
			for _, r := range m.Records(t, one) {
				if got := ownerOf(t, filepath.Join(m.Directory, "containers", r.ID, "disk/upper/root-file")); got != 0 {
					t.Errorf("a file of the sandbox belongs to %d on the disk", got)
				}
			}
			m.checkEscaped(t, one)

			root := map[string]string{m.rootOf(t, one): one}
			if other := root[m.rootOf(t, two)]; other != "" {
				t.Errorf("two sandboxes have the same users: %v", root)
			}
			root[m.rootOf(t, two)] = two
			s.Kill()
			s.Boot(t)
			three := s.Running(t, s.Idle())
			if other := root[m.rootOf(t, three)]; other != "" || len(root) != 2 || root["0"] != "" {
				t.Errorf("after a crash, a new sandbox has the users of another one: %v, %s", root, m.rootOf(t, three))
			}
			s.Enter(t, one).Want(t, "stat -c %u /root-file", "0\n")
		})
	}
}

// checkEscaped looks what a process can do that has everything that a sandbox's root is, and is in
// the machine's mount namespace.
func (m machine) checkEscaped(t *testing.T, id string) {
	t.Helper()
	secret := filepath.Join(m.Directory, "..", "secret")
	for path := filepath.Dir(secret); len(path) > len(os.TempDir()); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(secret, []byte("of the machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	process := strconv.Itoa(m.Records(t, id)[0].Run.Process.PID)
	escaped := func(command ...string) (string, error) {
		output, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--user", "--target", process, "--"}, command...)...).CombinedOutput()
		return string(output), err
	}
	if got, err := escaped("id", "-u"); err != nil || got != "0\n" {
		t.Fatalf("id: %q, %v", got, err)
	}
	for name, command := range map[string][]string{
		"read a file of root":      {"cat", secret},
		"write to a directory":     {"touch", filepath.Join(filepath.Dir(secret), "new")},
		"read the sandboxes' data": {"ls", m.Directory},
		"set a kernel parameter":   {"sh", "-c", "echo x > /proc/sys/kernel/core_pattern"},
		"kill the service":         {"kill", "-0", strconv.Itoa(os.Getpid())},
	} {
		if got, err := escaped(command...); err == nil {
			t.Errorf("an escaped process can %s: %q", name, got)
		}
	}
}

// rootOf returns the machine's user that a sandbox's root is.
func (m machine) rootOf(t *testing.T, id string) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", m.Records(t, id)[0].Run.Process.PID))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(content))
	if len(fields) != 3 || fields[0] != "0" {
		t.Fatalf("uid_map %q", content)
	}
	return fields[1]
}

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Lstat(path, &info); err != nil {
		t.Fatal(err)
	}
	return info.Uid
}
