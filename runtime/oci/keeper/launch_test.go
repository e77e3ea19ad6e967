package keeper_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/wait"
)

func TestEnds(t *testing.T) {
	h := newHost(t)
	tests := map[string]struct {
		spec spec
		kill bool
		want keeper.End
		log  string
	}{
		"success":      {spec: script("echo out; echo err >&2"), log: "out\nerr\n"},
		"failure":      {spec: script("exit 7"), want: keeper.End{ExitCode: 7}},
		"highest-code": {spec: script("echo -n x; exit 255"), want: keeper.End{ExitCode: 255}, log: "x"},
		"own-signal": {
			spec: spec{args: []string{"/bin/sh", "-c", "kill -TERM $$"}, hostPIDs: true}, want: keeper.End{ExitCode: 143, Signal: 15},
		},
		"killed": {spec: script("exec sleep 1000"), kill: true, want: keeper.End{ExitCode: 137, Signal: 9}},
		// The kernel's word counts, not that of the container.
		"false-exit-file": {spec: script("echo 3 >&3; exit 4"), want: keeper.End{ExitCode: 4}},
		"standard-input":  {spec: script("cat; exit 5"), want: keeper.End{ExitCode: 5}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			l := h.container(name, tt.spec)
			p := h.launch(l)
			if tt.kill {
				h.kill(p)
			}
			end := h.end(l)
			if end.ExitCode != tt.want.ExitCode || end.Signal != tt.want.Signal {
				t.Errorf("end %+v, want %+v", end, tt.want)
			}
			if end.At.Before(began) || end.At.After(time.Now()) {
				t.Errorf("ended at %v, after %v", end.At, began)
			}
			if got := read(t, l.Log); got != tt.log {
				t.Errorf("log %q, want %q", got, tt.log)
			}
		})
	}
}

// TestShort: also a container that ends before the keeper has its process id has an end and a log.
func TestShort(t *testing.T) {
	h := newHost(t)
	for i := range 20 {
		l := h.container("short-"+strconv.Itoa(i), script("echo out; exit "+strconv.Itoa(i)))
		h.launch(l)
		if end := h.end(l); end.ExitCode != i || end.Signal != 0 {
			t.Errorf("end %+v, want exit code %d", end, i)
		}
		if got := read(t, l.Log); got != "out\n" {
			t.Errorf("log %q", got)
		}
	}
}

// TestOverlay: upper layers hide lower ones, and the mount is left to the container alone.
func TestOverlay(t *testing.T) {
	h := newHost(t)
	lower := h.layer("low", map[string]string{"a": "low", "b": "low"})
	higher := h.layer("high: with, a colon"+strings.Repeat("x", 200), map[string]string{"b": "high"})
	s := script("cat a b; echo new > c; grep -c overlay /proc/mounts; exec sleep 1000")
	s.lower = []string{lower, higher}
	l := h.container("layers", s)
	h.launch(l)
	wait.Until(h.t, "the container has printed", func() bool { return read(t, l.Log) == "lowhigh1\n" })
	if got := read(t, filepath.Join(l.Overlay.Upper, "c")); got != "new\n" {
		t.Errorf("the upper layer has %q", got)
	}
	wait.Until(h.t, "no mount is left in the keeper's namespace", func() bool {
		return !strings.Contains(read(t, "/proc/"+strconv.Itoa(h.client.PID())+"/mountinfo"), h.directory)
	})
}

func TestFailures(t *testing.T) {
	h := newHost(t)
	tests := map[string]struct {
		change func(*keeper.Launch)
		stage  keeper.Stage
		text   string
		code   bool
	}{
		"output":   {func(l *keeper.Launch) { l.Output = l.Output + "/x" }, keeper.StageOutput, "mkfifo", false},
		"no-fifo":  {func(l *keeper.Launch) { l.Output = filepath.Dir(l.Output) + "/config.json" }, keeper.StageOutput, "not a FIFO", false},
		"layer":    {func(l *keeper.Launch) { l.Overlay.Lower = []string{"/no/such"} }, keeper.StageMount, "/no/such", false},
		"upper":    {func(l *keeper.Launch) { l.Overlay.Upper = "/proc" }, keeper.StageMount, "overlay", false},
		"program":  {func(l *keeper.Launch) { l.Run[0] = "/no/such" }, keeper.StageRun, "/no/such", false},
		"relative": {func(l *keeper.Launch) { l.Run[0] = "crun" }, keeper.StageRun, "absolute", false},
		"bundle":   {func(l *keeper.Launch) { l.Run = append(l.Run, "--bundle", "/no/such") }, keeper.StageRun, "", true},
		"cgroup":   {func(l *keeper.Launch) { l.CgroupDirectories = []string{"/no/such"} }, keeper.StageRun, "/no/such", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := h.container("failure-"+name, script("exec sleep 1000"))
			tt.change(&l)
			_, err := h.tryLaunch(l)
			var failure *keeper.RuntimeError
			if !errors.As(err, &failure) {
				t.Fatalf("error %v", err)
			}
			if failure.Stage != tt.stage || !strings.Contains(failure.Stderr, tt.text) || (failure.ExitCode != 0) != tt.code {
				t.Errorf("failure %+v, want stage %s and %q", failure, tt.stage, tt.text)
			}
			if strings.Contains(read(t, "/proc/"+strconv.Itoa(h.client.PID())+"/mountinfo"), h.directory) {
				t.Error("a mount is left")
			}
			if children := read(t, "/proc/"+strconv.Itoa(h.client.PID())+"/task/"+strconv.Itoa(h.client.PID())+"/children"); children != "" {
				t.Errorf("children are left: %s", children)
			}
		})
	}
	t.Run("program of the container", func(t *testing.T) {
		l := h.container("no-program", spec{args: []string{"/no/such"}})
		_, err := h.tryLaunch(l)
		var failure *keeper.RuntimeError
		if !errors.As(err, &failure) || failure.ExitCode == 0 || !strings.Contains(failure.Stderr, "/no/such") {
			t.Errorf("error %v", err)
		}
		if log := read(t, l.Log); log != "" {
			t.Errorf("the log has %q", log)
		}
	})
}

// TestCancel: a runtime that hangs is killed when the caller gives up.
func TestCancel(t *testing.T) {
	h := newHost(t)
	l := h.container("hangs", script("exit 1"))
	l.Run = []string{"/bin/sleep", "1000"}
	l.Overlay.Volatile = false // for the second launch
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := h.client.Launch(ctx, l)
	if !errors.Is(err, engine.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the launch took %v", took)
	}
	if children := read(t, "/proc/"+strconv.Itoa(h.client.PID())+"/task/"+strconv.Itoa(h.client.PID())+"/children"); children != "" {
		t.Errorf("children are left: %s", children)
	}
	// The id is free.
	h.launch(h.container("hangs", script("exit 1")))
}

// TestManyAtOnce: launches and ends of many callers.
func TestManyAtOnce(t *testing.T) {
	h := newHost(t)
	var callers sync.WaitGroup
	const count = 40
	launches := make([]keeper.Launch, count)
	for i := range launches {
		launches[i] = h.container("many-"+strconv.Itoa(i), script("echo "+strconv.Itoa(i)+"; exit "+strconv.Itoa(i)))
	}
	for i := range launches {
		callers.Go(func() {
			if _, err := h.tryLaunch(launches[i]); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	for i, l := range launches {
		if end := h.end(l); end.ExitCode != i {
			t.Errorf("container %d: %+v", i, end)
		}
		if log := read(t, l.Log); log != strconv.Itoa(i)+"\n" {
			t.Errorf("container %d: log %q", i, log)
		}
	}
}

// TestForget: neither the end nor the output of a forgotten container is of interest.
func TestForget(t *testing.T) {
	h := newHost(t)
	l := h.container("forgotten", script("exec sleep 1000"))
	p := h.launch(l)
	keeperFiles := "/proc/" + strconv.Itoa(h.client.PID()) + "/fd"
	uses := func() bool {
		entries, err := os.ReadDir(keeperFiles)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			target, _ := os.Readlink(filepath.Join(keeperFiles, e.Name()))
			return target == l.Output
		})
	}
	if !uses() {
		t.Fatal("the keeper does not have the FIFO")
	}
	if err := h.client.Forget(l.ID); err != nil {
		t.Fatal(err)
	}
	if uses() {
		t.Error("the keeper still has the FIFO")
	}
	h.kill(p)
	// The end of a later one is reported after that of the first would have been.
	later := h.container("later", script("exit 0"))
	h.launch(later)
	h.end(later)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ends := h.ends[l.ID]; len(ends) > 0 {
		t.Errorf("the end of the forgotten container was reported: %v", ends)
	}
}

// TestCgroups: the first process is in the CgroupDirectories, and its cgroup namespace begins
// there.
func TestCgroups(t *testing.T) {
	h := newHost(t)
	root := "/sys/fs/cgroup"
	hierarchies := []string{""}
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		hierarchies = []string{"pids", "freezer"}
	}
	name := "keeper-test-" + strconv.Itoa(os.Getpid())
	var directories []string
	for _, hierarchy := range hierarchies {
		directory := filepath.Join(root, hierarchy, name)
		if err := os.Mkdir(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { wait.Until(h.t, "the cgroup is removed", func() bool { return os.Remove(directory) == nil }) })
		directories = append(directories, directory)
	}
	want := ":/" + name + "\n"
	s := script("cat /proc/self/cgroup; exec sleep 1000")
	s.cgroupNS = true
	l := h.container("entered", s)
	l.CgroupDirectories = directories
	p := h.launch(l)
	if got := read(t, "/proc/"+strconv.Itoa(p.PID)+"/cgroup"); strings.Count(got, want) != len(directories) {
		t.Errorf("cgroups %q, want %q %d times", got, want, len(directories))
	}
	for _, directory := range directories {
		wait.Until(h.t, "the first process is the only one in "+directory, func() bool {
			return slices.Equal(strings.Fields(read(t, directory+"/cgroup.procs")), []string{strconv.Itoa(p.PID)})
		})
	}
	wait.Until(h.t, "the container has printed", func() bool { return read(t, l.Log) != "" })
	if seen := read(t, l.Log); strings.Contains(seen, "..") {
		t.Errorf("the container sees %q", seen)
	}
	h.kill(p)
	h.end(l)
}

// TestKeeperMovesToItsCgroup: a keeper does not end with the cgroup of the service.
func TestKeeperMovesToItsCgroup(t *testing.T) {
	h := newHost(t)
	directory := h.cgroup("keeper")
	t.Cleanup(func() {
		h.close()
		h.client = nil
		h.emptyCgroup(directory)
	})
	_ = h.client.Close()
	h.options.Directory += "-other"
	h.options.CgroupDirectories = []string{directory}
	h.open()
	own := ":" + strings.TrimPrefix(strings.TrimPrefix(directory, "/sys/fs/cgroup"), "/pids") + "\n"
	if got := read(t, "/proc/"+strconv.Itoa(h.client.PID())+"/cgroup"); !strings.Contains(got, own) {
		t.Errorf("the keeper is in %q", got)
	}
}

// TestMountsStayWithTheKeeper: the keeper's namespace gets the host's mounts, and on a hybrid host
// has no cgroups of version 2.
func TestMountsStayWithTheKeeper(t *testing.T) {
	h := newHost(t)
	mounts := read(t, "/proc/"+strconv.Itoa(h.client.PID())+"/mountinfo")
	if strings.Contains(mounts, "shared:") || strings.Contains(mounts, "/sys/fs/cgroup/unified") {
		t.Errorf("the keeper's mounts:\n%s", mounts)
	}
	own, other := mountNamespace(t, os.Getpid()), mountNamespace(t, h.client.PID())
	if own == other {
		t.Error("the keeper is in the mount namespace of this process")
	}
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(h.client.PID()) + "/task/*")
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, thread := range threads {
		if ns, err := os.Readlink(thread + "/ns/mnt"); err == nil && ns != other {
			t.Errorf("thread %s is in %s, not in %s", thread, ns, other)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		var info unix.Statfs_t
		if err := unix.Statfs("/sys/fs/cgroup/unified", &info); err != nil || info.Type != unix.CGROUP2_SUPER_MAGIC {
			t.Errorf("the host's own was unmounted: %v", err)
		}
	}
}

func mountNamespace(t *testing.T, pid int) string {
	t.Helper()
	ns, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
