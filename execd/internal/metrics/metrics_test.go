package metrics_test

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/execd/internal/metrics"
)

// machine is a tree of files that looks like /proc and the control groups of a machine with 4 CPUs
// and 8 GiB.
type machine struct {
	t    *testing.T
	root string
	now  time.Time
}

func newMachine(t *testing.T, files map[string]string) *machine {
	t.Helper()
	m := &machine{t: t, root: t.TempDir(), now: time.UnixMilli(1_700_000_000_000)}
	m.write("proc/stat", "cpu  100 0 50 9999 7 0 0 0 0 0\n"+
		"cpu0 25 0 10 0 0 0 0 0 0 0\ncpu1 25 0 10 0 0 0 0 0 0 0\ncpu2 25 0 10 0 0 0 0 0 0 0\ncpu3 25 0 20 0 0 0 0 0 0 0\nctxt 1\n")
	m.write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n")
	m.write("proc/self/mountinfo", "1 0 0:1 / / rw - ext4 /dev/vda rw\n")
	for path, content := range files {
		m.write(path, content)
	}
	return m
}

func (m *machine) write(path, content string) {
	m.t.Helper()
	full := filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) sampler() *metrics.Sampler {
	return metrics.New(metrics.Options{
		ProcRoot:     filepath.Join(m.root, "proc"),
		CgroupPrefix: m.root,
		Now:          func() time.Time { return m.now },
	})
}

func sample(t *testing.T, s *metrics.Sampler) metrics.Snapshot {
	t.Helper()
	snapshot, err := s.Sample()
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

const (
	v2Private = "40 30 0:27 / /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n"
	v1Docker  = `31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs rw
32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset
35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
`
	v1Paths = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n3:cpuset:/docker/abc\n1:name=systemd:/docker/abc\n"
)

func TestSampleReadsLimitsAndUse(t *testing.T) {
	tests := []struct {
		name               string
		files              map[string]string
		cores, total, used float64
		cache              float64
	}{
		{
			name:  "no control groups",
			cores: 4, total: 8192, used: 2048,
		},
		{
			name: "version 2, private namespace",
			files: map[string]string{
				"proc/self/cgroup":                    "0::/\n",
				"proc/self/mountinfo":                 v2Private,
				"sys/fs/cgroup/cpu.max":               "50000 100000\n",
				"sys/fs/cgroup/cpu.stat":              "usage_usec 5000\nuser_usec 1\n",
				"sys/fs/cgroup/cpuset.cpus.effective": "0-1\n",
				"sys/fs/cgroup/memory.max":            "536870912\n",
				"sys/fs/cgroup/memory.current":        "209715200\n",
				"sys/fs/cgroup/memory.stat":           "anon 1\nfile 31457280\ninactive_file 104857600\nactive_file 5\n",
				"sys/fs/cgroup/memory.limit_in_bytes": "1",
				"sys/fs/cgroup/cpu.cfs_quota_us":      "1",
				"sys/fs/cgroup/memory.usage_in_bytes": "1",
				"sys/fs/cgroup/cpuacct.usage":         "1",
			},
			cores: 0.5, total: 512, used: 100, cache: 30,
		},
		{
			name: "version 2 without limits",
			files: map[string]string{
				"proc/self/cgroup":                    "0::/\n",
				"proc/self/mountinfo":                 v2Private,
				"sys/fs/cgroup/cpu.max":               "max 100000\n",
				"sys/fs/cgroup/cpuset.cpus.effective": "0-2\n",
				"sys/fs/cgroup/memory.max":            "max\n",
				"sys/fs/cgroup/memory.current":        "104857600\n",
			},
			cores: 3, total: 8192, used: 100,
		},
		{
			name: "version 2, host namespace, limits at two levels",
			files: map[string]string{
				"proc/self/cgroup":                                           "0::/system.slice/docker-abc.scope\n",
				"proc/self/mountinfo":                                        v2Private,
				"sys/fs/cgroup/system.slice/cpu.max":                         "100000 100000\n",
				"sys/fs/cgroup/system.slice/memory.max":                      "1073741824\n",
				"sys/fs/cgroup/system.slice/memory.current":                  "999999999\n",
				"sys/fs/cgroup/system.slice/docker-abc.scope/cpu.max":        "max 100000\n",
				"sys/fs/cgroup/system.slice/docker-abc.scope/memory.max":     "2147483648\n",
				"sys/fs/cgroup/system.slice/docker-abc.scope/memory.current": "1048576\n",
			},
			cores: 1, total: 1024, used: 1,
		},
		{
			name: "version 2, own group outside of the namespace",
			files: map[string]string{
				"proc/self/cgroup":             "0::/../other\n",
				"proc/self/mountinfo":          v2Private,
				"sys/fs/cgroup/memory.max":     "1073741824\n",
				"sys/fs/cgroup/memory.current": "1048576\n",
			},
			cores: 4, total: 1024, used: 1,
		},
		{
			name: "version 2, topmost group",
			files: map[string]string{
				"proc/self/cgroup":       "0::/\n",
				"proc/self/mountinfo":    v2Private,
				"sys/fs/cgroup/cpu.stat": "usage_usec 5000\n",
			},
			cores: 4, total: 8192, used: 2048,
		},
		{
			name: "version 1 in a container",
			files: map[string]string{
				"proc/self/cgroup":                           v1Paths,
				"proc/self/mountinfo":                        v1Docker,
				"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
				"sys/fs/cgroup/cpu,cpuacct/cpuacct.usage":    "5\n",
				"sys/fs/cgroup/cpuset/cpuset.cpus":           "0-1,3\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n",
				"sys/fs/cgroup/memory/memory.usage_in_bytes": "104857600\n",
				"sys/fs/cgroup/memory/memory.stat":           "cache 1\ninactive_file 1\ntotal_cache 62914560\ntotal_inactive_file 52428800\n",
			},
			cores: 1.5, total: 256, used: 50, cache: 60,
		},
		{
			name: "version 1 without limits",
			files: map[string]string{
				"proc/self/cgroup":                           v1Paths,
				"proc/self/mountinfo":                        v1Docker,
				"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
				"sys/fs/cgroup/cpuset/cpuset.effective_cpus": "1,3\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
				"sys/fs/cgroup/memory/memory.usage_in_bytes": "1048576\n",
			},
			cores: 2, total: 8192, used: 1,
		},
		{
			name: "mixed: memory on version 1, the rest on version 2",
			files: map[string]string{
				"proc/self/cgroup": "2:memory:/box\n0::/box\n",
				"proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
					"36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
				"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "268435456\n",
				"sys/fs/cgroup/memory/box/memory.usage_in_bytes": "1048576\n",
				"sys/fs/cgroup/unified/box/cpu.max":              "25000 100000\n",
			},
			cores: 0.25, total: 256, used: 1,
		},
		{
			name: "more cache than use",
			files: map[string]string{
				"proc/self/cgroup":             "0::/\n",
				"proc/self/mountinfo":          v2Private,
				"sys/fs/cgroup/memory.current": "100\n",
				"sys/fs/cgroup/memory.stat":    "inactive_file 200\n",
			},
			cores: 4, total: 8192, used: 0,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, test.files)
			got := sample(t, m.sampler())
			want := metrics.Snapshot{
				CPUCount: test.cores, MemTotalMiB: test.total, MemUsedMiB: test.used, MemCacheMiB: test.cache, Timestamp: m.now.UnixMilli(),
			}
			if got.DiskUsedMiB <= 0 || got.DiskUsedMiB > got.DiskTotalMiB {
				t.Errorf("the disk has %v of %v MiB in use", got.DiskUsedMiB, got.DiskTotalMiB)
			}
			got.DiskTotalMiB, got.DiskUsedMiB = 0, 0 // this machine's
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestCPUUseIsOverTheTimeSinceThePreviousSample(t *testing.T) {
	counters := []struct {
		name  string
		files map[string]string
		set   func(m *machine, used time.Duration)
	}{
		{
			name: "version 2",
			files: map[string]string{
				"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Private,
				"sys/fs/cgroup/cpu.max": "200000 100000\n",
			},
			set: func(m *machine, used time.Duration) {
				m.write("sys/fs/cgroup/cpu.stat", "usage_usec "+decimal(used.Microseconds())+"\n")
			},
		},
		{
			name: "version 1",
			files: map[string]string{
				"proc/self/cgroup": v1Paths, "proc/self/mountinfo": v1Docker,
				"sys/fs/cgroup/cpuset/cpuset.cpus": "0,1\n",
			},
			set: func(m *machine, used time.Duration) {
				m.write("sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", decimal(used.Nanoseconds())+"\n")
			},
		},
		{
			name: "no control groups",
			set: func(m *machine, used time.Duration) {
				m.write("proc/stat", "cpu  "+decimal(used.Milliseconds()/10)+" 0 0 500 600 0 0 0 0 0\n"+
					"cpu0 1 0 0 0 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\n")
			},
		},
	}
	for _, counter := range counters {
		t.Run(counter.name, func(t *testing.T) {
			m := newMachine(t, counter.files)
			used := 10 * time.Second
			counter.set(m, used)
			s := m.sampler()
			steps := []struct {
				name       string
				after, cpu time.Duration
				want       float64
			}{
				{"at once", 0, 0, 0},
				{"half of two cores for a second", time.Second, time.Second, 50},
				{"50 ms later the window of the sample before still counts", 50 * time.Millisecond, 50 * time.Millisecond, 50},
				{"idle since the last window began", 950 * time.Millisecond, -50 * time.Millisecond, 0},
				{"never above 100", time.Second, 5 * time.Second, 100},
				{"a counter that went back is no use", time.Second, -3 * time.Second, 0},
			}
			for _, step := range steps {
				m.now = m.now.Add(step.after)
				used += step.cpu
				counter.set(m, used)
				if got := sample(t, s).CPUUsedPct; math.Abs(got-step.want) > 0.001 {
					t.Errorf("%s: got %v %%, want %v %%", step.name, got, step.want)
				}
			}
		})
	}
}

func TestSampleTellsWhatIsMissing(t *testing.T) {
	tests := []struct{ name, file, content, want string }{
		{"no CPU listed", "proc/stat", "ctxt 1\n", "lists no CPU"},
		{"no memory listed", "proc/meminfo", "", "has no MemTotal"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, map[string]string{test.file: test.content})
			if _, err := m.sampler().Sample(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
	t.Run("no proc at all", func(t *testing.T) {
		s := metrics.New(metrics.Options{ProcRoot: filepath.Join(t.TempDir(), "none")})
		if _, err := s.Sample(); err == nil || !strings.Contains(err.Error(), "mountinfo") {
			t.Errorf("got error %v, want one that names mountinfo", err)
		}
	})
}

func TestRealMachine(t *testing.T) {
	s := metrics.New(metrics.Options{})
	// How much of the machine this process gets is up to others; that its work shows is not.
	deadline := time.Now().Add(time.Minute)
	var got metrics.Snapshot
	for got.CPUUsedPct == 0 && time.Now().Before(deadline) {
		for range 100_000_000 {
		}
		got = sample(t, s)
	}
	t.Logf("%+v", got)
	if got.CPUCount <= 0 || got.CPUCount > 4096 {
		t.Errorf("CPU count %v", got.CPUCount)
	}
	if got.CPUUsedPct <= 0 || got.CPUUsedPct > 100 {
		t.Errorf("CPU use %v %%, want more than 0 and at most 100", got.CPUUsedPct)
	}
	if got.MemTotalMiB <= 0 || got.MemUsedMiB <= 0 || got.MemUsedMiB > got.MemTotalMiB {
		t.Errorf("memory %v of %v MiB", got.MemUsedMiB, got.MemTotalMiB)
	}
	if age := time.Since(time.UnixMilli(got.Timestamp)); age < 0 || age > time.Minute {
		t.Errorf("timestamp is %v old", age)
	}
}

func TestSampleIsSafeForConcurrentUse(t *testing.T) {
	s := metrics.New(metrics.Options{})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				if got, err := s.Sample(); err != nil || got.CPUUsedPct < 0 || got.CPUUsedPct > 100 {
					t.Errorf("got %+v, %v", got, err)
				}
			}
		})
	}
	group.Wait()
}

func TestPrometheus(t *testing.T) {
	got := string(metrics.Prometheus(metrics.Snapshot{
		CPUCount: 1.5, CPUUsedPct: 12.25, MemTotalMiB: 512, MemUsedMiB: 0.5, MemCacheMiB: 2, DiskTotalMiB: 4096, DiskUsedMiB: 3, Timestamp: 1,
	}))
	want := `# HELP execd_cpu_count Cores that the sandbox may use.
# TYPE execd_cpu_count gauge
execd_cpu_count 1.5
# HELP execd_cpu_used_percent Part of these cores in use since the previous sample, 0 to 100.
# TYPE execd_cpu_used_percent gauge
execd_cpu_used_percent 12.25
# HELP execd_memory_total_bytes Memory that the sandbox may use.
# TYPE execd_memory_total_bytes gauge
execd_memory_total_bytes 536870912
# HELP execd_memory_used_bytes Memory in use, without page cache that can be dropped.
# TYPE execd_memory_used_bytes gauge
execd_memory_used_bytes 524288
# HELP execd_memory_cache_bytes Page cache of the sandbox.
# TYPE execd_memory_cache_bytes gauge
execd_memory_cache_bytes 2097152
# HELP execd_disk_total_bytes Size of the file system that has the sandbox's files.
# TYPE execd_disk_total_bytes gauge
execd_disk_total_bytes 4294967296
# HELP execd_disk_used_bytes Part of that file system in use.
# TYPE execd_disk_used_bytes gauge
execd_disk_used_bytes 3145728
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
