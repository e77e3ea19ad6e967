package load

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// proc makes a directory with the kernel's files.
func proc(t *testing.T, stat, meminfo string) string {
	t.Helper()
	directory := t.TempDir()
	put(t, directory, "stat", stat)
	put(t, directory, "meminfo", meminfo)
	return directory
}

func put(t *testing.T, directory, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	stat = "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 50 0 25 400 25 0 0 0 0 0\n" +
		"cpu1 50 0 25 400 25 0 0 0 0 0\nintr 1\n"
	meminfo = "MemTotal:        1024 kB\nMemFree:           1 kB\nMemAvailable:     256 kB\n"
)

func TestSample(t *testing.T) {
	directory := proc(t, stat, meminfo)
	s, err := newSampler(directory, directory)
	if err != nil {
		t.Fatal(err)
	}
	load, err := s.Sample()
	if err != nil || load.CPUs != 2 || load.CPUUsedPercent != 0 {
		t.Errorf("nothing has passed: %+v, %v", load, err)
	}
	if load.MemoryTotalBytes != 1<<20 || load.MemoryUsedBytes != 768<<10 {
		t.Errorf("%+v", load)
	}
	if percent, err := s.AvailableMemory(); err != nil || percent != 25 {
		t.Errorf("%v %% of the memory are available, %v", percent, err)
	}
	if load.DiskUsedBytes <= 0 || load.DiskTotalBytes <= load.DiskUsedBytes {
		t.Errorf("%+v", load)
	}
	// 40 of 100 are busy; those that wait for a disk are not.
	put(t, directory, "stat", "cpu  110 10 60 850 60 5 4 1 0 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\n")
	load, err = s.Sample()
	if want := 100 * 40.0 / 100; err != nil || math.Abs(load.CPUUsedPercent-want) > 0.01 {
		t.Errorf("%v %%, %v; want %v", load.CPUUsedPercent, err, want)
	}
	// Counters that went back, as those of waiting for a disk do.
	put(t, directory, "stat", stat)
	if load, err = s.Sample(); err != nil || load.CPUUsedPercent != 0 {
		t.Errorf("%+v, %v", load, err)
	}
}

func TestBrokenFiles(t *testing.T) {
	for name, files := range map[string][2]string{
		"no processors": {"intr 1\n", meminfo},
		"no number":     {"cpu a b c d e\ncpu0 1 1 1 1\n", meminfo},
		"no memory":     {stat, "MemFree: 1 kB\n"},
		"odd memory":    {stat, "MemTotal: x kB\n"},
	} {
		directory := proc(t, files[0], files[1])
		s, err := newSampler(directory, directory)
		if err == nil {
			_, err = s.Sample()
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	directory := proc(t, stat, meminfo)
	if _, err := newSampler(directory, directory+"/none"); err == nil {
		t.Error("a directory that is not there has a file system")
	}
}

// TestThisMachine: the real files are as they are read.
func TestThisMachine(t *testing.T) {
	s, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	load, err := s.Sample()
	if err != nil || load.CPUs < runtime.NumCPU() || load.CPUUsedPercent < 0 ||
		load.CPUUsedPercent > 100 || load.MemoryTotalBytes <= load.MemoryUsedBytes {
		t.Errorf("%+v, %v", load, err)
	}
}
