package metrics

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// cgroups are the control groups that this process is in, one per resource: with version 1 each can
// be in another tree, and on mixed systems some are version 1 and others version 2.
type cgroups struct {
	cpu     cgroup // quota
	cpuacct cgroup // use
	cpuset  cgroup
	memory  cgroup
}

// cgroup is the directory of one group. The zero value is no group.
type cgroup struct {
	dir string // where this process is
	top string // the highest directory of the tree that is visible, at or above dir
	v2  bool
}

// findCgroups reads which groups the process is in, and where they are mounted.
func findCgroups(proc, prefix string) (cgroups, error) {
	own, err := ownPaths(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return cgroups{}, err
	}
	mounts, err := cgroupMounts(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return cgroups{}, err
	}
	find := func(controller string) cgroup {
		if path, ok := own[controller]; ok {
			for _, m := range mounts {
				if !m.v2 && slices.Contains(m.controllers, controller) {
					return m.locate(prefix, path)
				}
			}
		}
		if path, ok := own[""]; ok {
			for _, m := range mounts {
				if m.v2 {
					return m.locate(prefix, path)
				}
			}
		}
		return cgroup{}
	}
	return cgroups{cpu: find("cpu"), cpuacct: find("cpuacct"), cpuset: find("cpuset"), memory: find("memory")}, nil
}

// ownPaths returns the path of this process's group by controller; version 2 has the empty name. A
// kernel without control groups has no such file: the result is empty then.
func ownPaths(file string) (map[string]string, error) {
	paths := map[string]string{}
	err := eachLine(file, func(line string) {
		// 4:memory:/docker/1234 and 0::/
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 {
			return
		}
		for name := range strings.SplitSeq(fields[1], ",") {
			paths[name] = fields[2]
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		return paths, nil
	}
	return paths, err
}

// mount is one mounted tree of control groups.
type mount struct {
	root        string // which directory of the tree is mounted; a container sees its own only
	point       string
	controllers []string
	v2          bool
}

func cgroupMounts(file string) ([]mount, error) {
	var mounts []mount
	err := eachLine(file, func(line string) {
		// 35 31 0:32 /docker/1234 /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
		left, right, ok := strings.Cut(line, " - ")
		place, source := strings.Fields(left), strings.Fields(right)
		if !ok || len(place) < 5 || len(source) < 3 {
			return
		}
		m := mount{root: place[3], point: place[4], controllers: strings.Split(source[2], ",")}
		switch source[0] {
		case "cgroup":
		case "cgroup2":
			m.v2 = true
		default:
			return
		}
		mounts = append(mounts, m)
	})
	return mounts, err
}

// locate finds the directory of the group path in this mount. A path outside of what is mounted
// (seen from another namespace) means that the mount's own root is the nearest group there is to
// see.
func (m mount) locate(prefix, path string) cgroup {
	top := filepath.Join(prefix, m.point)
	group := cgroup{dir: top, top: top, v2: m.v2}
	rest, inside := strings.CutPrefix(path, strings.TrimSuffix(m.root, "/"))
	if !inside || strings.HasPrefix(rest, "/..") || (rest != "" && rest[0] != '/') {
		return group
	}
	dir := filepath.Join(top, rest)
	if _, err := os.Stat(dir); err == nil {
		group.dir = dir
	}
	return group
}

// smallest applies read to the group and to those above it that are visible, and returns the least
// value: the limit of a group above holds as well. ok is false when there is none.
func (c cgroup) smallest(read func(dir string) (float64, bool)) (least float64, ok bool) {
	if c.dir == "" {
		return 0, false
	}
	for dir := c.dir; ; dir = filepath.Dir(dir) {
		if value, found := read(dir); found && (!ok || value < least) {
			least, ok = value, true
		}
		if dir == c.top {
			return least, ok
		}
	}
}

// eachLine calls do for every line of a file.
func eachLine(path string, do func(line string)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20) // mountinfo lines of overlay file systems with many layers are long
	for lines.Scan() {
		do(lines.Text())
	}
	return lines.Err()
}
