package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
)

// sidecars are those of the services on these machines.
func (m *machines) sidecars(instance string) conformance.Sidecars {
	return conformance.Sidecars{
		Kill: func(t *testing.T, id string) {
			t.Helper()
			kill(t, m.of(instance).sidecar(t, id))
		},
		KillDaemon: func(t *testing.T, id string) {
			t.Helper()
			// The one child of the sidecar's first process, whichever of its threads has started
			// it.
			lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.of(instance).sidecar(t, id)))
			if err != nil {
				t.Fatal(err)
			}
			var children strings.Builder
			for _, list := range lists {
				content, err := os.ReadFile(list)
				if err != nil && !errors.Is(err, fs.ErrNotExist) { // a thread that has ended
					t.Fatal(err)
				}
				children.Write(content)
			}
			var daemon int
			if _, err := fmt.Sscan(children.String(), &daemon); err != nil {
				t.Fatalf("the sidecar has no egress daemon: %q: %v", children.String(), err)
			}
			kill(t, daemon)
		},
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// sidecar returns the first process of a sandbox's sidecar.
func (m machine) sidecar(t *testing.T, id string) int {
	t.Helper()
	for _, r := range m.Records(t, id) {
		if r.Spec.Labels["sandbox.internal/sidecar"] != "" {
			return r.Run.Process.PID
		}
	}
	t.Fatalf("sandbox %s has no sidecar", id)
	return 0
}

// TestEgress: the whole way from networkPolicy to packets, with the real sidecar.
func TestEgress(t *testing.T) {
	t.Parallel()
	on := newMachines()
	o := localengine.NewOutside(t)
	s := conformance.Start(t, onLocal(on), conformance.Plan{Settings: "[docker]\ndrop_capabilities = []\n" + o.EgressSettings(egressImage)})
	id := s.Running(t, s.Confined("allowed.test"))
	inside := s.Enter(t, id)

	conformance.Reaches(t, inside, "allowed.test")
	conformance.ReachesNot(t, inside, "denied.test")
	conformance.ReachesNot(t, inside, o.Denied)
	t.Run("root has no way around it", func(t *testing.T) {
		const netAdmin, netRaw = 1 << 12, 1 << 13
		var bounding, effective uint64
		got := inside.Run(t, "id -u | grep -qx 0 && grep -E '^Cap(Bnd|Eff)' /proc/self/status | cut -f2 | tr '\\n' ' '")
		if _, err := fmt.Sscanf(got.Stdout, "%x %x", &effective, &bounding); err != nil {
			t.Fatalf("capabilities: %+v: %v", got, err)
		}
		if bounding == 0 || bounding&(netAdmin|netRaw) != 0 || effective&(netAdmin|netRaw) != 0 {
			t.Errorf("capabilities of the sandbox: effective %x, bounding %x", effective, bounding)
		}
		if got := inside.Run(t, "cat /proc/net/if_inet6"); got.Stdout != "" {
			t.Errorf("the sandbox has an IPv6 address: %s", got.Stdout)
		}
		// A name server that root chooses is not asked.
		inside.Want(t, "echo nameserver "+o.Denied+" >/etc/resolv.conf && cat /etc/resolv.conf", "nameserver "+o.Denied+"\n")
		conformance.Reaches(t, inside, "allowed.test")
	})
	conformance.Egress(t, s, id, o, on.sidecars(s.Instance))
}

// TestEgressSurvivesTheService: a service that is killed, and one that loses its database, find
// sidecars and policies again.
func TestEgressSurvivesTheService(t *testing.T) {
	t.Parallel()
	o := localengine.NewOutside(t)
	s := conformance.Start(t, onLocal(newMachines()), conformance.Plan{Program: true, Settings: o.EgressSettings(egressImage)})
	conformance.EgressSurvivesTheService(t, s)
}

// TestEgressWithoutUpstream: an egress daemon that is configured with no name server asks those of
// the host when its sidecar was made, which are the sandbox's too.
func TestEgressWithoutUpstream(t *testing.T) {
	t.Parallel()
	on, o := newMachines(), localengine.NewOutside(t)
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver "+o.NameServer+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := conformance.Start(t, onLocal(on), conformance.Plan{
		Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage), Program: true,
		Wrapper: []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, file},
	})
	id := s.Running(t, s.Confined("allowed.test"))
	var files []string
	for _, r := range on.of(s.Instance).Records(t, id) {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/resolv.conf", r.Run.Process.PID))
		if err != nil {
			t.Error(err)
		}
		files = append(files, string(content))
	}
	if len(files) != 2 || files[0] != files[1] || !strings.Contains(files[0], "nameserver "+o.NameServer+"\n") {
		t.Errorf("resolv.conf of the sandbox and its sidecar: %q", files)
	}
	inside := s.Enter(t, id)
	conformance.Reaches(t, inside, "allowed.test")
	conformance.ReachesNot(t, inside, "denied.test")
	conformance.ReachesNot(t, inside, o.Denied)
}
