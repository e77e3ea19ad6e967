package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// inspect reads what limits the process: self is its directory in /proc, cgroup where control
// groups are mounted.
func inspect(self, cgroup string) (Confinement, error) {
	status, err := os.ReadFile(filepath.Join(self, "status"))
	if err != nil {
		return Confinement{}, err
	}
	confinement := Confinement{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "NoNewPrivs":
			confinement.NoNewPrivileges = value == "1"
		case "Seccomp":
			if confinement.Seccomp, err = strconv.Atoi(value); err != nil {
				return Confinement{}, fmt.Errorf("seccomp mode: %w", err)
			}
		}
	}
	confinement.AppArmor = profile(self)
	confinement.CPUCores, err = quota(self, cgroup)
	return confinement, err
}

// profile returns the AppArmor profile. The newer file is AppArmor's alone, the older one is
// whatever security module's is first.
func profile(self string) string {
	for _, name := range []string{"attr/apparmor/current", "attr/current"} {
		if content, err := os.ReadFile(filepath.Join(self, name)); err == nil {
			return strings.Trim(string(content), "\x00\n ")
		}
	}
	return ""
}

// quota returns the quota of CPU time in cores, 0 when there is none. A container sees its own
// control group at the top of the mount; one that sees the whole tree finds its group by the path
// in /proc/self/cgroup.
func quota(self, cgroup string) (float64, error) {
	v1, v2, err := groups(self)
	if err != nil {
		return 0, err
	}
	for _, dir := range []string{filepath.Join(cgroup, "cpu", v1), filepath.Join(cgroup, "cpu")} {
		period, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_period_us"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		amount, err2 := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us"))
		if err := errors.Join(err, err2); err != nil {
			return 0, err
		}
		return cores(string(amount), string(period))
	}
	for _, dir := range []string{filepath.Join(cgroup, v2), cgroup} {
		content, err := os.ReadFile(filepath.Join(dir, "cpu.max"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		amount, period, _ := strings.Cut(string(content), " ")
		return cores(amount, period)
	}
	return 0, nil
}

// groups returns the paths of the process's control groups: version 1's for CPU time, and version
// 2's.
func groups(self string) (v1, v2 string, err error) {
	content, err := os.ReadFile(filepath.Join(self, "cgroup"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without control groups has no such file
		return "", "", err
	}
	for line := range strings.Lines(string(content)) {
		// 4:cpu,cpuacct:/docker/1234 and 0::/
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) != 3:
		case fields[0] == "0" && fields[1] == "":
			v2 = fields[2]
		default:
			for controller := range strings.SplitSeq(fields[1], ",") {
				if controller == "cpu" {
					v1 = fields[2]
				}
			}
		}
	}
	return v1, v2, nil
}

// cores divides a quota by its period, both in microseconds. The kernel writes -1 or "max" for no
// quota.
func cores(amount, period string) (float64, error) {
	amount, period = strings.TrimSpace(amount), strings.TrimSpace(period)
	if amount == "max" || amount == "-1" {
		return 0, nil
	}
	a, err := strconv.ParseFloat(amount, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err := errors.Join(err, err2); err != nil || p <= 0 {
		return 0, fmt.Errorf("quota of CPU time %q of %q: %w", amount, period, err)
	}
	return a / p, nil
}
