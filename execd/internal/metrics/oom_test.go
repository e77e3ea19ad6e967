package metrics_test

import (
	"path/filepath"
	"testing"

	"sandbox.internal/execd/internal/metrics"
)

func TestOOMKills(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		path  string // of the file with the number
		text  string // what it begins with
	}{
		"version 1": {
			files: map[string]string{"proc/self/mountinfo": v1Docker, "proc/self/cgroup": v1Paths},
			path:  "sys/fs/cgroup/memory/memory.oom_control", text: "oom_kill_disable 0\nunder_oom 0\n",
		},
		"version 2": {
			files: map[string]string{"proc/self/mountinfo": v2Private, "proc/self/cgroup": "0::/\n"},
			path:  "sys/fs/cgroup/memory.events", text: "low 0\nhigh 0\nmax 31\noom 5\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, c.files)
			open := func() *metrics.OOMKills {
				return metrics.OpenOOMKills(metrics.Options{ProcRoot: filepath.Join(m.root, "proc"), CgroupPrefix: m.root})
			}
			if n, known := open().Count(); known {
				t.Errorf("without the file: %d", n)
			}
			m.write(c.path, c.text) // an old kernel
			kills := open()
			if n, known := kills.Count(); known {
				t.Errorf("without the number: %d", n)
			}
			m.write(c.path, c.text+"oom_kill 3\noom_group_kill 9\n")
			if n, known := kills.Count(); n != 3 || !known {
				t.Errorf("the number is %d, %t, want 3", n, known)
			}
			m.write(c.path, c.text+"oom_kill 12\noom_group_kill 9\n")
			if n, known := kills.Count(); n != 12 || !known {
				t.Errorf("the number is %d, %t, want 12", n, known)
			}
		})
	}
	m := newMachine(t, map[string]string{"proc/self/cgroup": ""})
	if n, known := metrics.OpenOOMKills(metrics.Options{ProcRoot: filepath.Join(m.root, "proc")}).Count(); known {
		t.Errorf("without control groups: %d", n)
	}
}
