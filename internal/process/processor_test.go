package process_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/internal/process"
	"sandbox.internal/test/wait"
)

// firstProcessor is the first of a list, such as 0-3,8.
var firstProcessor = regexp.MustCompile(`^\d+`)

func TestOnOneProcessor(t *testing.T) {
	before := processors(t)
	if len(before) != 1 {
		t.Fatalf("the threads have the processors %q before", before)
	}
	process.OnOneProcessor(func() {
		if during := processors(t); len(during) != 1 || strings.ContainsAny(during[0], "-,") {
			t.Errorf("the threads have the processors %q, want one", during)
		}
		process.ReserveThreads(runtime.GOMAXPROCS(0), 5) // new ones
	})
	if after := processors(t); !slices.Equal(after, before) {
		t.Errorf("the threads have the processors %q after, and had %q", after, before)
	}
}

// TestOnOneProcessorKeepsWhatWasGiven: threads that may run on fewer processors than there are do
// not get more.
func TestOnOneProcessorKeepsWhatWasGiven(t *testing.T) {
	all := processors(t)
	keep := func(list string) {
		t.Helper()
		if output, err := wait.Command(t, "taskset", "--all-tasks", "--cpu-list", "--pid", list, strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	given := firstProcessor.FindString(all[0])
	keep(given)
	defer keep(all[0])
	process.OnOneProcessor(func() {})
	if after := processors(t); !slices.Equal(after, []string{given}) {
		t.Errorf("the threads have the processors %q after, and were given %s", after, given)
	}
}

// TestOnOneProcessorFollowsTheGroup: threads get the processors that their control group gets
// later, as those of a pod do.
func TestOnOneProcessorFollowsTheGroup(t *testing.T) {
	all := processors(t)
	own, root := cpusets(t)
	group := filepath.Join(root, "sandbox-test-"+rand.Text())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(folder, file, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, file), []byte(content), 0); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		write(own, "cgroup.procs", strconv.Itoa(os.Getpid()))
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	}()
	if mems, err := os.ReadFile(filepath.Join(root, "cpuset.mems")); err == nil { // version 1 has no default
		write(group, "cpuset.mems", string(mems))
	}
	write(group, "cpuset.cpus", firstProcessor.FindString(all[0]))
	write(group, "cgroup.procs", strconv.Itoa(os.Getpid()))
	process.OnOneProcessor(func() {})
	write(group, "cpuset.cpus", all[0])
	if after := processors(t); !slices.Equal(after, all) {
		t.Errorf("the threads have the processors %q, and their group %q", after, all)
	}
}

// cpusets returns the control group of this process that says which processors it may use, and the
// one at the top.
func cpusets(t *testing.T) (own, root string) {
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case slices.Contains(strings.Split(fields[1], ","), "cpuset"):
			return filepath.Join("/sys/fs/cgroup/cpuset", fields[2]), "/sys/fs/cgroup/cpuset"
		case fields[1] == "":
			own, root = filepath.Join("/sys/fs/cgroup", fields[2]), "/sys/fs/cgroup"
		}
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpuset"), 0); err != nil {
		t.Fatal(err)
	}
	return own, root
}

// processors returns the lists of processors that threads of this process may run on, each once.
func processors(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	var lists []string
	for _, file := range files {
		status, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
		list, _, _ = strings.Cut(list, "\n")
		if !slices.Contains(lists, list) {
			lists = append(lists, list)
		}
	}
	return lists
}
