package local_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
	"sandbox.internal/test/wait"
)

// TestReboot: with local.keep_across_reboot, sandboxes have what they have synced after everything
// but the disk is gone, with their environment, volumes, limits, policy and token. Nothing is
// started by itself, and what is deleted leaves nothing.
func TestReboot(t *testing.T) {
	t.Parallel()
	for name, disk := range map[string]string{"unbounded": "", "bounded": "disk_mib = 64\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on, o := newMachines(), localengine.NewOutside(t)
			on.Local = "keep_across_reboot = true\n" + disk
			s := conformance.Start(t, onLocal(on), conformance.Plan{Program: true, Settings: o.EgressSettings(egressImage)})
			testReboot(t, s, on.of(s.Instance))
		})
	}
}

func testReboot(t *testing.T, s *conformance.Service, m machine) {
	request := s.Confined("allowed.test")
	request.Entrypoint = []string{"sh", "-c", "echo started >>/starts; sync /starts; exec sleep 1000"}
	request.Env = lifecycle.Env{"GREETING": "hello"}
	request.Metadata = lifecycle.Metadata{"name": "kept"}
	claim := s.Instance + "-claim"
	request.Volumes = []lifecycle.Volume{{Name: "data", MountPath: "/data", Pvc: &lifecycle.ClaimSource{ClaimName: claim}}}
	running, paused := s.Running(t, request), s.Running(t, s.Idle())
	token := s.Endpoint(t, running, 44772).Headers
	write := `for f in /kept /data/kept; do echo kept >$f && sync $f; done && mkdir -p /directory/below && ln -s /kept /directory/link && chown 7:8 /kept &&
		sync && echo written`
	s.Enter(t, running).Want(t, write, "written\n")
	s.Enter(t, paused).Want(t, "echo kept >/kept && sync && echo written", "written\n")
	s.Pause(t, paused)
	s.Policy(t, http.MethodPut, running, `{"defaultAction":"deny","egress":[{"action":"allow","target":"denied.test"}]}`)
	expires := s.Get(t, running).ExpiresAt

	s.Kill()
	m.reboot(t)
	s.Boot(t)
	for _, id := range []string{running, paused} {
		wait.Until(t, "the service knows of the reboot", func() bool { return s.Get(t, id).Status.Reason == "HOST_REBOOTED" })
		if got := s.Get(t, id).Status; got.State != "Paused" {
			t.Errorf("after the reboot it is %+v", got)
		}
	}
	for _, r := range m.Records(t, "") {
		if r.Run != nil && r.Run.Process.PID != 0 && r.Spec.Labels["sandbox.internal/sidecar"] == "" {
			t.Errorf("container %s was started by itself", r.Spec.Name)
		}
	}
	if got := s.Send(t, http.MethodGet, "/v1/sandboxes/"+running+"/endpoints/80", ""); got.Status != http.StatusConflict || !strings.Contains(string(got.Body), "resume it first") {
		t.Errorf("endpoint: %d %s", got.Status, got.Body)
	}

	s.Resume(t, running)
	if got := s.Get(t, running); !got.ExpiresAt.Equal(expires) || got.Metadata["name"] != "kept" {
		t.Errorf("resumed, it expires at %s (before %s) and has %v", got.ExpiresAt, expires, got.Metadata)
	}
	if got := s.Endpoint(t, running, 44772).Headers; fmt.Sprint(got) != fmt.Sprint(token) {
		t.Errorf("headers of the endpoint are %v, and were %v", got, token)
	}
	inside := s.Enter(t, running)
	inside.Want(t, "cat /starts /kept /data/kept /directory/link; stat -c %u:%g /kept; echo $GREETING", "started\nstarted\nkept\nkept\nkept\n7:8\nhello\n")
	conformance.Reaches(t, inside, "denied.test")
	conformance.ReachesNot(t, inside, "allowed.test")
	if got := s.Policy(t, http.MethodGet, running, ""); len(got.Egress) != 1 || got.Egress[0].Target != "denied.test" {
		t.Errorf("policy: %+v", got)
	}
	s.Pause(t, running) // as any other
	s.Resume(t, running)
	s.Enter(t, running).Want(t, "cat /kept", "kept\n")
	s.Resume(t, paused)
	s.Enter(t, paused).Want(t, "cat /kept", "kept\n")

	s.Kill() // once more: what is stopped can also be deleted
	m.reboot(t)
	s.Boot(t)
	s.Await(t, running, "Paused")
	s.DeleteAll(t)
	for _, id := range []string{running, paused} {
		s.Await(t, id, "Terminated")
		s.Gone(t, id)
	}
	if err := os.RemoveAll(filepath.Join(m.Directory, "volumes", claim)); err != nil {
		t.Error(err)
	}
	m.awaitEmptyTrash(t)
	s.Halt(t)
	m.CheckNothingLeft(t)
}

// reboot takes away everything that a reboot does of an engine whose service was killed, and makes
// its records those of another start of the host.
func (m machine) reboot(t *testing.T) {
	t.Helper()
	m.killKeeper(t)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	records := m.Records(t, "")
	for _, r := range records {
		if r.Run == nil {
			continue
		}
		m.endProcess(t, r.ID, r.Run.Process.PID)
		path := filepath.Join(m.Directory, "containers", r.ID, "container.json")
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.Replace(content, bytes.TrimSpace(boot), []byte("00000000-0000-0000-0000-000000000000"), 1)
		if err := errors.Join(os.WriteFile(path, content, 0o600), json.Unmarshal(content, &localengine.Record{})); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join("/run/sandbox-local", m.Key())); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), "ip", "link", "delete", m.Bridge).CombinedOutput(); err != nil {
		t.Fatalf("delete the bridge: %v: %s", err, output)
	}
	m.removeGroups(t)
}

// endProcess ends the first process of a container, and with it all others, also when they are
// frozen.
func (m machine) endProcess(t *testing.T, id string, pid int) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(process) }()
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	for pattern, thawed := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
		files, err := filepath.Glob("/sys/fs/cgroup/*/sandbox-" + m.Key() + "/" + id + "/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(file, []byte(thawed), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for deadline := wait.Deadline(); ; {
		n, err := unix.Poll(ended, 1000)
		if n > 0 {
			return
		}
		if err != nil && err != unix.EINTR || time.Now().After(deadline) {
			t.Fatalf("process %d does not end: %v", pid, err)
		}
	}
}

// removeGroups removes the control groups, which are empty once the last process is reaped.
func (m machine) removeGroups(t *testing.T) {
	t.Helper()
	wait.Until(t, "the control groups are gone", func() bool {
		script := `find /sys/fs/cgroup -depth -type d -path "*/sandbox-$0*" -exec rmdir {} + 2>/dev/null; ! find /sys/fs/cgroup -type d -name "sandbox-$0" | grep -q .`
		return exec.CommandContext(t.Context(), "sh", "-c", script, m.Key()).Run() == nil
	})
}
