package metrics

import (
	"bytes"
	"fmt"
	"strconv"
)

// Prometheus writes a snapshot in the Prometheus text format (version 0.0.4). The samples carry no
// timestamp: the scraper's own is the one that Prometheus wants.
func Prometheus(s Snapshot) []byte {
	var out bytes.Buffer
	gauge := func(name, help string, value float64) {
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s gauge\n%s %s\n",
			name, help, name, name, strconv.FormatFloat(value, 'f', -1, 64))
	}
	gauge("execd_cpu_count", "Cores that the sandbox may use.", s.CPUCount)
	gauge("execd_cpu_used_percent", "Part of these cores in use since the previous sample, 0 to 100.", s.CPUUsedPct)
	gauge("execd_memory_total_bytes", "Memory that the sandbox may use.", s.MemTotalMiB*mib)
	gauge("execd_memory_used_bytes", "Memory in use, without page cache that can be dropped.", s.MemUsedMiB*mib)
	gauge("execd_memory_cache_bytes", "Page cache of the sandbox.", s.MemCacheMiB*mib)
	gauge("execd_disk_total_bytes", "Size of the file system that has the sandbox's files.", s.DiskTotalMiB*mib)
	gauge("execd_disk_used_bytes", "Part of that file system in use.", s.DiskUsedMiB*mib)
	return out.Bytes()
}
