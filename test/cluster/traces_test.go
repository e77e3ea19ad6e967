package cluster_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

// traces is everything that a cluster was seen to have of the host. Other tests run beside this one
// and come and go with processes, mounts, networks and rules of theirs: that is why the whole host
// before and after cannot be compared.
type traces struct {
	directory string
	settings  map[string]string // what up.sh decided
	processes map[int]string    // when each began, by number
	links     map[string]string // the index of each, by name
	sockets   []string
}

// tracesOf lists the traces of a running cluster.
func tracesOf(t *testing.T, c *cluster.Cluster) traces {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.Directory, "settings"))
	if err != nil {
		t.Fatal(err)
	}
	seen := traces{directory: c.Directory, settings: map[string]string{}, processes: map[int]string{},
		links: map[string]string{}}
	for _, field := range strings.Fields(string(content)) {
		name, value, _ := strings.Cut(field, "=")
		seen.settings[name] = value
	}
	for _, pid := range append(processesNaming(t, c.Directory), processesIn(seen.cgroups())...) {
		if began, running := beginning(pid); running {
			seen.processes[pid] = began
		}
	}
	bridge := filepath.Join("/sys/class/net", seen.settings["bridge"])
	for _, link := range append(glob(t, bridge+"/brif/*"), glob(t, bridge)...) {
		if index, err := os.ReadFile(filepath.Join("/sys/class/net", filepath.Base(link),
			"ifindex")); err == nil {
			seen.links[filepath.Base(link)] = string(index)
		}
	}
	for _, file := range glob(t,
		filepath.Join(c.Directory, "run/containerd/io.containerd.runtime.v2.task/*/*/address")) {
		address, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		seen.sockets = append(seen.sockets, strings.TrimPrefix(string(address), "unix://"))
	}
	return seen
}

// left lists what is still there, by kind.
func (s traces) left(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	add := func(kind string, what ...string) {
		if len(what) > 0 {
			found[kind] = append(found[kind], what...)
		}
	}
	for pid, then := range s.processes {
		if began, running := beginning(pid); running && began == then {
			add("process", fmt.Sprint(pid))
		}
	}
	for _, pid := range processesNaming(t, s.directory) {
		add("process", fmt.Sprint(pid))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	add("mount", linesWith(mounts, s.directory+"/")...)
	for name, index := range s.links {
		if now, err := os.ReadFile(filepath.Join("/sys/class/net", name, "ifindex")); err == nil &&
			string(now) == index {
			add("link", name)
		}
	}
	if s.settings["mode"] == string(cluster.Node) {
		for _, table := range []string{"filter", "nat", "mangle", "raw"} {
			rules, err := wait.Command(t, "iptables-save", "-t", table).CombinedOutput()
			if err != nil {
				t.Fatalf("iptables-save: %v\n%s", err, rules)
			}
			add("rule", linesWith(rules, s.settings["bridge"]+" ", s.settings["subnet"],
				s.settings["service"]+"/")...)
		}
		add("record of a network", glob(t, "/var/lib/cni/results/"+s.settings["bridge"]+"-*")...)
	}
	add("control group", s.cgroups()...)
	for _, log := range glob(t, "/var/log/containers/*") {
		if target, err := os.Readlink(log); err == nil && strings.HasPrefix(target, s.directory+"/") {
			add("name of a log", log)
		}
	}
	for _, socket := range s.sockets {
		if _, err := os.Lstat(socket); err == nil {
			add("socket", socket)
		}
	}
	if _, err := os.Lstat(s.directory); err == nil {
		add("directory", s.directory)
	}
	return found
}

func (s traces) cgroups() []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, _ := filepath.Glob(pattern + s.settings["cgroup"]) // the pattern is a good one
		found = append(found, groups...)
	}
	return found
}

// processesNaming returns the processes whose command line names a file in the directory.
func processesNaming(t *testing.T, directory string) []int {
	t.Helper()
	var found []int
	for _, file := range glob(t, "/proc/[0-9]*/cmdline") {
		var pid int
		content, err := os.ReadFile(file)
		if _, scan := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err == nil && scan == nil &&
			bytes.Contains(content, []byte(directory+"/")) {
			found = append(found, pid)
		}
	}
	return found
}

// processesIn returns the processes of control groups and of those below them.
func processesIn(groups []string) []int {
	var found []int
	for _, group := range groups {
		_ = filepath.WalkDir(group, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return nil // a group may have gone meanwhile
			}
			content, _ := os.ReadFile(path)
			for _, line := range strings.Fields(string(content)) {
				var pid int
				if _, err := fmt.Sscan(line, &pid); err == nil && !slices.Contains(found, pid) {
					found = append(found, pid)
				}
			}
			return nil
		})
	}
	return found
}

// beginning returns when a process began, in ticks, and whether it lives: one that has ended and
// waits for its parent does not.
func beginning(pid int) (began string, running bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// from the state on
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	return fields[19], fields[0] != "Z" && fields[0] != "X"
}

func linesWith(content []byte, parts ...string) []string {
	var found []string
	for line := range strings.Lines(string(content)) {
		if slices.ContainsFunc(parts,
			func(part string) bool { return strings.Contains(line, part) }) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
