package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// period is that of quotas of CPU time, in microseconds.
const period = 100_000

// limit writes the limits that the hierarchy is responsible for, and which devices are permitted.
func limit(h hierarchy, directory string, r engine.Resources, permitted []device) error {
	if h.version2 {
		return limit2(directory, r, permitted)
	}
	if err := inherit(h, directory); err != nil {
		return err
	}
	if h.has(memory) {
		if err := errors.Join(limitMemory1(directory, r.MemoryBytes), limitSockets1(directory, r.MemoryBytes)); err != nil {
			return err
		}
	}
	if h.has(cpu) {
		quota := "-1"
		if r.NanoCPUs > 0 {
			quota = strconv.FormatInt(quotaOf(r.NanoCPUs), 10)
		}
		if err := errors.Join(
			set(directory, "cpu.cfs_period_us", strconv.Itoa(period)),
			set(directory, "cpu.cfs_quota_us", quota),
		); err != nil {
			return err
		}
	}
	if h.has(pids) {
		if err := set(directory, "pids.max", atMost(r.PIDs)); err != nil {
			return err
		}
	}
	if h.has(devices) {
		return permitDevices1(directory, permitted)
	}
	return nil
}

// limitMemory1 limits memory, and memory with swap to the same: with swap on top the limit would
// not be one.
func limitMemory1(directory string, bytes int64) error {
	const limit, withSwap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	value := "-1"
	if bytes > 0 {
		value = strconv.FormatInt(bytes, 10)
	}
	// The limit with swap is never below the other one: it is lifted first. Kernels that do not
	// count swap lack the file.
	counted := true
	if err := write(directory, withSwap, "-1"); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		counted = false
	}
	if err := set(directory, limit, value); err != nil {
		return err
	}
	if !counted {
		return nil
	}
	return set(directory, withSwap, value)
}

// limitSockets1 limits what the kernel keeps for TCP and UDP sockets, which version 1 does not
// count as memory: to a quarter of that, about the part that Linux gives the sockets of a machine
// (tcp_mem and udp_mem).
func limitSockets1(directory string, bytes int64) error {
	const name = "memory.kmem.tcp.limit_in_bytes"
	value := strconv.FormatInt(bytes/4, 10)
	if bytes <= 0 {
		// The first write has the kernel count from then on, which costs time: only a limit that
		// was set is lifted.
		content, err := os.ReadFile(filepath.Join(directory, name))
		now, _ := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
		if err != nil || now > math.MaxInt64/2 {
			return nil
		}
		value = "-1"
	}
	err := set(directory, name, value)
	if errors.Is(err, fs.ErrNotExist) { // the kernel cannot limit them
		return nil
	}
	return err
}

func limit2(directory string, r engine.Resources, permitted []device) error {
	quota := "max"
	if r.NanoCPUs > 0 {
		quota = strconv.FormatInt(quotaOf(r.NanoCPUs), 10)
	}
	swap := "max"
	if r.MemoryBytes > 0 {
		swap = "0"
	}
	for _, file := range []struct {
		name, value string
		optional    bool // kernels may lack it
	}{
		{name: "memory.max", value: atMost(r.MemoryBytes)},
		{name: "memory.swap.max", value: swap, optional: true},
		{name: "cpu.max", value: quota + " " + strconv.Itoa(period)},
		{name: "pids.max", value: atMost(r.PIDs)},
	} {
		err := set(directory, file.name, file.value)
		if err != nil && !(file.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return permitDevices2(directory, permitted)
}

// quotaOf returns microseconds of CPU time per period. The kernel's least is a millisecond.
func quotaOf(nanoCPUs int64) int64 { return max(1000, nanoCPUs/(1e9/period)) }

func atMost(n int64) string {
	if n <= 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

// inherit gives a group of the controller cpuset its parent's processors and memory, without which
// no process can be in it.
func inherit(h hierarchy, directory string) error {
	if h.version2 || !h.has(cpuset) {
		return nil
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(directory), name))
		if err != nil {
			return err
		}
		if err := write(directory, name, strings.TrimSpace(string(value))); err != nil {
			return err
		}
	}
	return nil
}

// OOMKills returns how many processes of the group the kernel has killed for the group's memory.
func (g Group) OOMKills() (int64, error) {
	directory, h := g.in(memory)
	name := "memory.oom_control"
	if h.version2 {
		name = "memory.events"
	}
	value, err := field(directory, name, "oom_kill")
	if err != nil {
		return 0, fmt.Errorf("count OOM kills: %w", err)
	}
	return strconv.ParseInt(value, 10, 64)
}

// SharedBytes returns how much memory of the group is that of files in memory. The memory that
// gVisor gives its processes is such a file.
func (g Group) SharedBytes() (int64, error) {
	directory, h := g.in(memory)
	key := "total_shmem"
	if h.version2 {
		key = "shmem"
	}
	value, err := field(directory, "memory.stat", key)
	if err != nil {
		return 0, fmt.Errorf("count memory: %w", err)
	}
	return strconv.ParseInt(value, 10, 64)
}

// field reads a value from a file of lines "name value".
func field(directory, name, key string) (string, error) {
	path := filepath.Join(directory, name)
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == key {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s has no %s", path, key)
}

// set writes a limit: what the kernel finds impossible is the caller's request.
func set(directory, name, value string) error {
	err := write(directory, name, value)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) {
		return fmt.Errorf("%w: the kernel refuses %s = %s: %w", engine.ErrInvalid, name, value, err)
	}
	return err
}

// write writes to one of the kernel's files, never making one.
func write(directory, name, value string) error {
	file, err := os.OpenFile(filepath.Join(directory, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}
