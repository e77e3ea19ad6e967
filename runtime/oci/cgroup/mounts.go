package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Controllers that every container needs. On version 2 freezing and devices need none.
const (
	memory  = "memory"
	cpu     = "cpu"
	cpuset  = "cpuset"
	pids    = "pids"
	freezer = "freezer"
	devices = "devices"
)

// supervisor is the group into which this process moves itself, below a group that was delegated to
// it: version 2 wants processes in the leaves only.
const supervisor = "supervisor"

// host is what the machine has mounted.
type host struct {
	version string
	mounts  []mount
}

type mount struct {
	point       string
	own         string // this process's group, below the point
	controllers []string
	version2    bool
}

// mounted finds the hierarchies of the host.
func mounted() (host, error) {
	own, err := ownGroups("/proc/self/cgroup")
	if err != nil {
		return host{}, err
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return host{}, err
	}
	defer func() { _ = file.Close() }()
	return findMounts(file, own)
}

// findMounts reads mountinfo. Where version 1 has the controllers, an empty tree of version 2
// beside it is left out: nothing of a container is decided there.
func findMounts(mountinfo io.Reader, own map[string]string) (host, error) {
	var v1, v2 []mount
	known := map[string]bool{} // a hierarchy can be mounted several times: the first counts
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		m, root, ok := parseMount(lines.Text())
		key := strings.Join(m.controllers, ",")
		if !ok || known[key] {
			continue
		}
		known[key] = true
		m.own = below(own[key], root)
		if m.version2 {
			v2 = append(v2, m)
		} else {
			v1 = append(v1, m)
		}
	}
	if err := lines.Err(); err != nil {
		return host{}, err
	}
	has := func(controller string) bool {
		return slices.ContainsFunc(v1, func(m mount) bool {
			return slices.Contains(m.controllers, controller)
		})
	}
	if !has(memory) {
		if len(v2) == 0 {
			return host{}, errors.New("neither version 1 nor version 2 is mounted")
		}
		return host{version: "2", mounts: v2[:1]}, nil
	}
	for _, controller := range []string{cpu, pids, freezer, devices} {
		if !has(controller) {
			return host{}, fmt.Errorf("version 1 is mounted without the controller %s", controller)
		}
	}
	return host{version: "1", mounts: v1}, nil
}

// parseMount reads a line of mountinfo (proc(5)); ok is whether it is of a hierarchy.
func parseMount(line string) (m mount, root string, ok bool) {
	left, right, _ := strings.Cut(line, " - ")
	before, after := strings.Fields(left), strings.Fields(right)
	if len(before) < 6 || len(after) < 3 {
		return mount{}, "", false
	}
	m.point, root = before[4], before[3]
	switch after[0] {
	case "cgroup2":
		m.version2 = true
		return m, root, true
	case "cgroup":
		for option := range strings.SplitSeq(after[2], ",") {
			switch option {
			case "rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode",
				"favordynmods":
			default:
				if !strings.HasPrefix(option, "release_agent=") {
					m.controllers = append(m.controllers, option)
				}
			}
		}
		slices.Sort(m.controllers)
		return m, root, true
	}
	return mount{}, "", false
}

// ownGroups reads a process's groups by their controllers, comma separated in order; "" is version
// 2.
func ownGroups(file string) (map[string]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 {
			controllers := strings.Split(fields[1], ",")
			slices.Sort(controllers)
			own[strings.Join(controllers, ",")] = fields[2]
		}
	}
	return own, nil
}

// below returns the path of a group below the root that a mount shows.
func below(group, root string) string {
	rest, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
	if !ok {
		return "/"
	}
	return filepath.Join("/", rest)
}

// open makes the directory of the name.
func (m mount) open(name string) (hierarchy, error) {
	h, err := m.make("/", name)
	switch {
	case err == nil:
		return h, nil
	case m.own == "/" && !m.version2, !refused(err):
		return hierarchy{}, err
	}
	// The root is not ours: a service to which a group was delegated (systemd's Delegate=), or a
	// container.
	base := m.own
	if m.version2 {
		if base, err = m.leave(); err != nil {
			return hierarchy{}, err
		}
	}
	return m.make(base, name)
}

func refused(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) ||
		errors.Is(err, unix.EBUSY)
}

func (m mount) make(base, name string) (hierarchy, error) {
	h := hierarchy{
		directory: filepath.Join(m.point, base, name), path: filepath.Join(base, name),
		controllers: m.controllers, version2: m.version2,
	}
	parent := filepath.Join(m.point, base)
	if m.version2 {
		if err := delegate(parent); err != nil {
			return h, err
		}
	}
	if err := makeDirectory(h.directory); err != nil {
		return h, err
	}
	if m.version2 {
		return h, delegate(h.directory)
	}
	return h, inherit(h, h.directory)
}

// makeDirectory makes a group that every user may read, whatever the service's mask is: a
// container's root with users of its own owns no file of the host. Making a group that exists
// succeeds.
func makeDirectory(directory string) error {
	if err := os.Mkdir(directory, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(directory, 0o755) //nolint:gosec // it has no secret
}

// delegate gives the groups in the directory the controllers of version 2.
func delegate(directory string) error {
	for _, controller := range []string{memory, cpu, pids} {
		enabled, err := os.ReadFile(filepath.Join(directory, "cgroup.subtree_control"))
		if err != nil {
			return err
		}
		if slices.Contains(strings.Fields(string(enabled)), controller) {
			continue
		}
		if err := write(directory, "cgroup.subtree_control", "+"+controller); err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("the controller %s cannot be had below %s: %w", controller, directory, err)
			}
			return err
		}
	}
	// Kernels and delegations may lack it, and nothing is limited by it.
	_ = write(directory, "cgroup.subtree_control", "+"+cpuset)
	return nil
}

// leave moves the processes of the group that was delegated to this one into a leaf, and returns
// the group, which then may have groups with controllers.
func (m mount) leave() (string, error) {
	base := m.own
	if filepath.Base(base) == supervisor { // done by an earlier process
		return filepath.Dir(base), nil
	}
	directory := filepath.Join(m.point, base)
	leaf := filepath.Join(directory, supervisor)
	if err := makeDirectory(leaf); err != nil {
		return "", err
	}
	members, err := processes(directory)
	if err != nil {
		return "", err
	}
	for _, pid := range members {
		if err := write(leaf, procs, fmt.Sprint(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return "", err
		}
	}
	return base, nil
}
