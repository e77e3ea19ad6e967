package metrics

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// memory returns the memory that the sandbox may use, the part in use, and the page cache, in
// bytes.
func (s *Sampler) memory() (total, used, cached uint64, err error) {
	machine, available, err := s.meminfo()
	if err != nil {
		return 0, 0, 0, err
	}
	limitFile, usageFile, idleField, cacheField := "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_cache"
	if s.group.memory.v2 {
		limitFile, usageFile, idleField, cacheField = "memory.max", "memory.current", "inactive_file", "file"
	}
	total = machine
	limit, limited := s.group.memory.smallest(func(dir string) (float64, bool) { return readNumber(dir, limitFile) })
	// Version 1 writes "no limit" as a number above any machine's memory.
	if limited && limit < float64(machine) {
		total = uint64(limit)
	}
	usage, ok := readNumber(s.group.memory.dir, usageFile)
	if !ok {
		// There is no group, or it is the topmost one of version 2, which does not count its
		// memory.
		return total, min(machine-available, total), 0, nil
	}
	idle, _ := readField(s.group.memory.dir, "memory.stat", idleField)
	cache, _ := readField(s.group.memory.dir, "memory.stat", cacheField)
	return total, uint64(max(usage-idle, 0)), uint64(max(cache, 0)), nil
}

// meminfo returns the machine's memory and what of it is available, in bytes.
func (s *Sampler) meminfo() (total, available uint64, err error) {
	path := filepath.Join(s.proc, "meminfo")
	err = eachLine(path, func(line string) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return
		}
		kib, _ := strconv.ParseUint(fields[1], 10, 64)
		switch fields[0] {
		case "MemTotal:":
			total = kib << 10
		case "MemAvailable:":
			available = kib << 10
		}
	})
	if err == nil && total == 0 {
		err = fmt.Errorf("%s has no MemTotal", path)
	}
	return total, min(available, total), err
}
