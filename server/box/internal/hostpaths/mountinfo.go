package hostpaths

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/server/lifecycle"
)

// A path can show what another one has without any symbolic link: a bind mount gives a directory a
// second name. So a path is also compared by where it lies in its file system.

// mountPoint is one line of /proc/self/mountinfo (proc(5)).
type mountPoint struct {
	device string // major:minor
	root   string // what of the file system is mounted
	at     string // where
	kind   string // of the file system
}

// kernelFileSystems are those that show the kernel's own state, wherever they are mounted.
var kernelFileSystems = []string{
	"binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "mqueue",
	"nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
}

// brokenByMounts returns [lifecycle.RuleNever] or [lifecycle.RuleSystem] for a path, with its links
// followed, that shows by a mount what cannot be mounted: the path itself or something mounted
// below it is a file system of the kernel, or overlaps a protected path in the same file system.
func (p Paths) brokenByMounts(path string) (rule string, err error) {
	mounts, err := mountPoints()
	if err != nil {
		return "", err
	}
	shown := []mountPoint{coveringMount(mounts, path).narrowed(path)}
	for _, m := range mounts {
		if m.at != path && lifecycle.PathWithin(m.at, path) {
			shown = append(shown, m)
		}
	}
	for _, m := range shown {
		if slices.Contains(kernelFileSystems, m.kind) {
			return lifecycle.RuleNever, nil
		}
		if m.shows(mounts, p.rules.Never) {
			return lifecycle.RuleNever, nil
		}
		if m.shows(mounts, p.rules.System()) {
			return lifecycle.RuleSystem, nil
		}
	}
	return "", nil
}

// shows reports whether a mount overlaps one of the paths in the same file system.
func (m mountPoint) shows(mounts []mountPoint, paths []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		protected := coveringMount(mounts, path).narrowed(path)
		return m.device == protected.device && overlap(m.root, protected.root)
	})
}

// narrowed is the mount of the path alone, which lies at or below the mount point.
func (m mountPoint) narrowed(path string) mountPoint {
	m.root = filepath.Join(m.root, strings.TrimPrefix(path, m.at))
	m.at = path
	return m
}

// coveringMount returns the mount that a path lies on: of several at one place the last hides the
// others.
func coveringMount(mounts []mountPoint, path string) mountPoint {
	var covering mountPoint
	for _, m := range mounts {
		if lifecycle.PathWithin(path, m.at) && len(m.at) >= len(covering.at) {
			covering = m
		}
	}
	return covering
}

func mountPoints() ([]mountPoint, error) {
	const table = "/proc/self/mountinfo"
	content, err := os.ReadFile(table)
	if err != nil {
		return nil, err
	}
	var mounts []mountPoint
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		separator := slices.Index(fields, "-")
		if len(fields) < 6 || separator < 6 || separator+1 >= len(fields) {
			return nil, fmt.Errorf("%s has a line of an unknown form", table)
		}
		mounts = append(mounts, mountPoint{device: fields[2], root: unescape(fields[3]), at: unescape(fields[4]), kind: fields[separator+1]})
	}
	return mounts, nil
}

// unescape undoes what the kernel does to white space and backslashes in the table.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
