// Package load measures how busy this machine is.
package load

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/server/lifecycle"
)

// Sampler measures a machine. It belongs to one goroutine.
type Sampler struct {
	proc      string // where the kernel's files are
	directory string // whose file system is measured
	before    times
}

// times are the processor times of /proc/stat, in the kernel's unit.
type times struct {
	busy, all uint64
	cpus      int
}

// New returns a sampler of this machine and of the file system that holds a directory.
func New(directory string) (*Sampler, error) { return newSampler("/proc", directory) }

func newSampler(proc, directory string) (*Sampler, error) {
	s := &Sampler{proc: proc, directory: directory}
	if _, err := s.disk(); err != nil {
		return nil, err
	}
	var err error
	s.before, err = s.times()
	return s, err
}

func (s *Sampler) disk() (disk unix.Statfs_t, err error) {
	if err := unix.Statfs(s.directory, &disk); err != nil {
		return disk, fmt.Errorf("measure the file system of %s: %w", s.directory, err)
	}
	return disk, nil
}

// Sample measures. The use of the processors is the one since the sample before, or since New.
func (s *Sampler) Sample() (lifecycle.HostLoad, error) {
	now, err := s.times()
	if err != nil {
		return lifecycle.HostLoad{}, err
	}
	load := lifecycle.HostLoad{CPUs: now.cpus}
	if all := now.all - s.before.all; now.all > s.before.all && now.busy >= s.before.busy {
		load.CPUUsedPercent = min(100, 100*float64(now.busy-s.before.busy)/float64(all))
	}
	s.before = now
	if load.MemoryTotalBytes, load.MemoryUsedBytes, err = s.memory(); err != nil {
		return lifecycle.HostLoad{}, err
	}
	disk, err := s.disk()
	if err != nil {
		return lifecycle.HostLoad{}, err
	}
	size := int64(disk.Bsize)
	// What is kept for root is neither used nor to be had.
	load.DiskUsedBytes = int64(disk.Blocks-disk.Bfree) * size
	load.DiskTotalBytes = load.DiskUsedBytes + int64(disk.Bavail)*size
	return load, nil
}

// times reads the first line of /proc/stat, which adds all processors up, and counts the lines of
// the others.
func (s *Sampler) times() (times, error) {
	text, err := os.ReadFile(filepath.Join(s.proc, "stat"))
	if err != nil {
		return times{}, err
	}
	var found times
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		if fields[0] != "cpu" {
			found.cpus++
			continue
		}
		// user nice system idle iowait irq softirq steal; guests are in user already.
		for i, field := range fields[1:min(len(fields), 9)] {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return times{}, fmt.Errorf("%s/stat: %w", s.proc, err)
			}
			found.all += n
			if i != 3 && i != 4 {
				found.busy += n
			}
		}
	}
	if found.all == 0 || found.cpus == 0 {
		return times{}, fmt.Errorf("%s/stat: has no processors", s.proc)
	}
	return found, nil
}

// AvailableMemory returns how much of the machine's memory is available, in percent.
func (s *Sampler) AvailableMemory() (percent float64, err error) {
	total, used, err := s.memory()
	if err != nil {
		return 0, err
	}
	return 100 * float64(total-used) / float64(total), nil
}

// memory reads /proc/meminfo. Page cache that can be dropped is not used.
func (s *Sampler) memory() (total, used int64, err error) {
	text, err := os.ReadFile(filepath.Join(s.proc, "meminfo"))
	if err != nil {
		return 0, 0, err
	}
	values := map[string]int64{"MemTotal:": -1, "MemAvailable:": -1}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if _, wanted := values[fields[0]]; !wanted {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s/meminfo: %w", s.proc, err)
		}
		values[fields[0]] = kib << 10
	}
	total, available := values["MemTotal:"], values["MemAvailable:"]
	if total < 0 || available < 0 {
		return 0, 0, errors.New(s.proc + "/meminfo: lacks MemTotal or MemAvailable")
	}
	return total, max(0, total-available), nil
}
