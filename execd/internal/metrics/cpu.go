package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// userTick is the unit of CPU times in /proc/stat. Linux has shown hundredths of a second to
// programs on every platform this runs on, whatever its internal clock is.
const userTick = 10 * time.Millisecond

// cpuCount is the number of cores that the quota, the CPU set and the machine allow, whichever is
// least.
func (s *Sampler) cpuCount() (float64, error) {
	online, _, err := s.procStat()
	if err != nil {
		return 0, err
	}
	count := float64(online)
	if set, ok := s.group.cpuset.smallest(cpusetSize); ok {
		count = min(count, set)
	}
	read := quotaV1
	if s.group.cpu.v2 {
		read = quotaV2
	}
	if quota, ok := s.group.cpu.smallest(read); ok {
		count = min(count, quota)
	}
	return count, nil
}

// quotaV2 reads cpu.max: "50000 100000" is half a core, "max 100000" is no limit.
func quotaV2(dir string) (float64, bool) {
	fields := strings.Fields(readText(dir, "cpu.max"))
	if len(fields) != 2 {
		return 0, false
	}
	quota, err := strconv.ParseFloat(fields[0], 64)
	period, err2 := strconv.ParseFloat(fields[1], 64)
	return quota / period, err == nil && err2 == nil && quota > 0 && period > 0
}

// quotaV1 reads the quota and its period; a quota of -1 is no limit.
func quotaV1(dir string) (float64, bool) {
	quota, ok := readNumber(dir, "cpu.cfs_quota_us")
	period, ok2 := readNumber(dir, "cpu.cfs_period_us")
	return quota / period, ok && ok2 && quota > 0 && period > 0
}

// cpusetSize counts the CPUs of the set that is in force. The names are those of version 2, version
// 1 and version 1 on old kernels.
func cpusetSize(dir string) (float64, bool) {
	for _, name := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"} {
		if n := countCPUs(readText(dir, name)); n > 0 {
			return float64(n), true
		}
	}
	return 0, false
}

// countCPUs counts a list such as "0-3,6"; a malformed one counts 0.
func countCPUs(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}
		if err != nil || last < first {
			return 0
		}
		n += last - first + 1
	}
	return n
}

// cpuUsed is the CPU time that the sandbox has used so far.
func (s *Sampler) cpuUsed() (time.Duration, error) {
	if group := s.group.cpuacct; group.v2 {
		if usec, ok := readField(group.dir, "cpu.stat", "usage_usec"); ok {
			return time.Duration(usec) * time.Microsecond, nil
		}
	} else if group.dir != "" {
		if nsec, ok := readNumber(group.dir, "cpuacct.usage"); ok {
			return time.Duration(nsec), nil
		}
	}
	_, used, err := s.procStat()
	return used, err
}

// procStat returns the number of CPUs that are online and the time they have worked, for the whole
// machine.
func (s *Sampler) procStat() (online int, used time.Duration, err error) {
	err = eachLine(filepath.Join(s.proc, "stat"), func(line string) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu"):
		case fields[0] == "cpu":
			// user nice system idle iowait irq softirq steal; guest time is part of user time
			// already.
			for _, i := range []int{1, 2, 3, 6, 7} {
				ticks, _ := strconv.ParseInt(fields[i], 10, 64)
				used += time.Duration(ticks) * userTick
			}
		default:
			online++
		}
	})
	if err == nil && online == 0 {
		err = fmt.Errorf("%s lists no CPU", filepath.Join(s.proc, "stat"))
	}
	return online, used, err
}

// readText returns the content of a small file of a group, or "" when it cannot be read (or dir is
// empty: no group). Which files exist depends on the version of the kernel and the controllers that
// are switched on.
func readText(dir, name string) string {
	if dir == "" {
		return ""
	}
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// readNumber reads a file that holds one number; "max" is none.
func readNumber(dir, name string) (float64, bool) {
	n, err := strconv.ParseFloat(readText(dir, name), 64)
	return n, err == nil
}

// readField reads one line of a file of "name number" lines.
func readField(dir, name, field string) (float64, bool) {
	for line := range strings.Lines(readText(dir, name)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == field {
			n, err := strconv.ParseFloat(fields[1], 64)
			return n, err == nil
		}
	}
	return 0, false
}
