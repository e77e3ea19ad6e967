package probe_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/execd/internal/probe"
	"sandbox.internal/test/wait"
)

// TestMain lets the test's own program be the probe: its steps are processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "probe" {
		os.Exit(probe.Main(os.Args[2:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// TestWithoutLimits: nothing stops the steps, and the probe says so. With limits it runs in
// containers (test/e2e).
func TestWithoutLimits(t *testing.T) {
	output, err := wait.Command(t, os.Args[0], "probe", "1000000", "3").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	var said struct {
		Refused *bool    `json:"processes_refused"`
		Killed  *bool    `json:"memory_killed"`
		Open    []string `json:"open_sockets"`
	}
	lines := json.NewDecoder(bytes.NewReader(output))
	for range 4 {
		if err := lines.Decode(&said); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	if said.Refused == nil || *said.Refused || said.Killed == nil || *said.Killed || said.Open == nil {
		t.Errorf("the probe says %s", output)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"1"}, {"1", "2", "3"}, {"0", "1"}, {"1", "0"}, {"x", "1"}, {"1", "x"}, {"eat", "-1"}, {"fork"}} {
		var stdout, stderr strings.Builder
		if code := probe.Main(args, &stdout, &stderr); code != 2 || !strings.HasPrefix(stderr.String(), "usage: execd probe") || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, %q", args, code, stderr.String())
		}
	}
}

// TestLook reads what kernels of several kinds show to a process.
func TestLook(t *testing.T) {
	const status = "Name:\texecd\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  probe.Confinement
	}{
		"version 1 in a container": {map[string]string{
			"self/status": status, "self/cgroup": "4:cpu,cpuacct:/docker/1234\n0::/docker/1234\n",
			"cgroup/cpu/cpu.cfs_quota_us": "50000\n", "cgroup/cpu/cpu.cfs_period_us": "100000\n",
			"self/attr/current": "docker-default (enforce)\n",
		}, probe.Confinement{CPUCores: 0.5, NoNewPrivileges: true, Seccomp: 2, AppArmor: "docker-default (enforce)"}},
		"version 1, whole tree": {map[string]string{
			"self/status": status, "self/cgroup": "4:cpu,cpuacct:/docker/1234\n",
			"cgroup/cpu/docker/1234/cpu.cfs_quota_us": "150000\n", "cgroup/cpu/docker/1234/cpu.cfs_period_us": "100000\n",
			"cgroup/cpu/cpu.cfs_quota_us": "-1\n", "cgroup/cpu/cpu.cfs_period_us": "100000\n",
		}, probe.Confinement{CPUCores: 1.5, NoNewPrivileges: true, Seccomp: 2}},
		"version 1, no quota": {map[string]string{
			"self/status": status, "self/cgroup": "4:cpu:/\n", "cgroup/cpu/cpu.cfs_quota_us": "-1\n", "cgroup/cpu/cpu.cfs_period_us": "100000\n",
		}, probe.Confinement{NoNewPrivileges: true, Seccomp: 2}},
		"version 2": {map[string]string{
			"self/status": "NoNewPrivs:\t0\nSeccomp:\t0\n", "self/cgroup": "0::/\n", "cgroup/cpu.max": "20000 100000\n",
			"self/attr/apparmor/current": "unconfined\n", "self/attr/current": "system_u:system_r",
		}, probe.Confinement{CPUCores: 0.2, AppArmor: "unconfined"}},
		"version 2, whole tree": {map[string]string{
			"self/status": status, "self/cgroup": "0::/system.slice/x\n", "cgroup/system.slice/x/cpu.max": "100000 100000\n",
		}, probe.Confinement{CPUCores: 1, NoNewPrivileges: true, Seccomp: 2}},
		"version 2, no quota": {map[string]string{
			"self/status": status, "self/cgroup": "0::/\n", "cgroup/cpu.max": "max 100000\n",
		}, probe.Confinement{NoNewPrivileges: true, Seccomp: 2}},
		"no control groups": {map[string]string{"self/status": status}, probe.Confinement{NoNewPrivileges: true, Seccomp: 2}},
		"no controller":     {map[string]string{"self/status": status, "self/cgroup": "0::/\n"}, probe.Confinement{NoNewPrivileges: true, Seccomp: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, content := range c.files {
				path := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := probe.Inspect(filepath.Join(root, "self"), filepath.Join(root, "cgroup"))
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	if _, err := probe.Inspect(t.TempDir(), t.TempDir()); err == nil {
		t.Error("a process without a status was taken for one")
	}
}
