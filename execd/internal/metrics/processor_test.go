package metrics_test

import (
	"path/filepath"
	"testing"
	"time"

	"sandbox.internal/execd/internal/metrics"
)

func TestProcessorTime(t *testing.T) {
	for name, c := range map[string]struct {
		files          map[string]string
		path           string // of the file with the number
		text, later    string
		used, usedThen time.Duration
	}{
		"version 1": {
			files: map[string]string{"proc/self/mountinfo": v1Docker, "proc/self/cgroup": v1Paths},
			path:  "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", text: "5000\n", later: "70000000000\n",
			used: 5 * time.Microsecond, usedThen: 70 * time.Second,
		},
		"version 2": {
			files: map[string]string{"proc/self/mountinfo": v2Private, "proc/self/cgroup": "0::/\n"},
			path:  "sys/fs/cgroup/cpu.stat", text: "usage_usec 5\nuser_usec 4\n", later: "usage_usec 7000000\nuser_usec 4\n",
			used: 5 * time.Microsecond, usedThen: 7 * time.Second,
		},
		"no control group": {
			files: map[string]string{"proc/self/cgroup": "", "proc/1/stat": "1 (a) b) S 0 1 1 0 -1 4194560 1 0 0 0 20 30 99 99 20 0 1 0 1\n",
				"proc/uptime": "1 1\n", "proc/8/stat": ""},
			path: "proc/17/stat", text: "17 (x) R 0 1 1 0 -1 4194560 1 0 0 0 1 0 99 99 20\n",
			later: "17 (x) R 0 1 1 0 -1 4194560 1 0 0 0 1 100 99 99 20\n",
			used:  510 * time.Millisecond, usedThen: 1510 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, c.files)
			m.write(c.path, c.text)
			p := m.sampler().OpenProcessorTime()
			if used, err := p.Used(); used != c.used || err != nil {
				t.Errorf("used is %v, %v, want %v", used, err, c.used)
			}
			m.write(c.path, c.later)
			if used, err := p.Used(); used != c.usedThen || err != nil {
				t.Errorf("later used is %v, %v, want %v", used, err, c.usedThen)
			}
		})
	}
	m := newMachine(t, map[string]string{"proc/self/mountinfo": v2Private, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "user_usec 1\n"})
	if used, err := m.sampler().OpenProcessorTime().Used(); err == nil {
		t.Errorf("without a number: %v", used)
	}
	gone := metrics.New(metrics.Options{ProcRoot: filepath.Join(m.root, "gone")})
	if used, err := gone.OpenProcessorTime().Used(); err == nil {
		t.Errorf("without proc: %v", used)
	}
}
