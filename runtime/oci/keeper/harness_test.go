package keeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/overlay"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// keeperProgram is the program under test, as it ships but for its failpoints, which armed arms.
var (
	keeperProgram string
	armed         program.Failpoints
)

func TestMain(m *testing.M) {
	if directory := os.Getenv(serviceVariable); directory != "" {
		os.Exit(service(directory))
	}
	directory, err := os.MkdirTemp("", "keeper-program-")
	if err != nil {
		panic(err)
	}
	armed = program.Failpoints(filepath.Join(directory, "failpoints"))
	if err := program.BuildWithFailpoints(context.Background(), directory, armed, "sandbox.internal/server/cmd/sandbox-keeper"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	keeperProgram = filepath.Join(directory, "sandbox-keeper")
	code := m.Run()
	_ = os.RemoveAll(directory)
	os.Exit(code)
}

// host is a directory with a keeper and containers, all of which end with the test.
type host struct {
	t         testing.TB
	directory string
	options   keeper.Options
	client    *keeper.Client

	mu        sync.Mutex
	ends      map[string][]keeper.End
	processes []keeper.Process
}

func newHost(t testing.TB) *host {
	t.Helper()
	if _, err := exec.LookPath("crun"); err != nil {
		t.Fatal("these tests need crun: apt-get install crun busybox-static")
	}
	h := &host{t: t, directory: t.TempDir(), ends: map[string][]keeper.End{}}
	h.options = keeper.Options{
		Program: keeperProgram, Directory: filepath.Join(h.directory, "run"), Logger: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel),
		Exited: func(id string, end keeper.End) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ends[id] = append(h.ends[id], end)
		},
	}
	layer := h.layer("busybox", nil)
	for _, directory := range []string{"bin", "proc", "dev", "tmp", "sys"} {
		if err := os.MkdirAll(filepath.Join(layer, directory), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal("these tests need busybox-static: ", err)
	}
	if err := os.WriteFile(filepath.Join(layer, "bin/busybox"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, applet := range []string{"sh", "sleep", "seq", "usleep", "cat", "head", "yes", "grep"} {
		if err := os.Symlink("busybox", filepath.Join(layer, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(h.close)
	h.open()
	return h
}

// layer makes a lower layer with files.
func (h *host) layer(name string, files map[string]string) string {
	h.t.Helper()
	layer := filepath.Join(h.directory, "layers", name)
	if err := os.MkdirAll(layer, 0o755); err != nil {
		h.t.Fatal(err)
	}
	for path, content := range files {
		if err := os.WriteFile(filepath.Join(layer, path), []byte(content), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	return layer
}

// open connects a client, as a service does when it starts.
func (h *host) open() {
	h.t.Helper()
	client, err := keeper.Open(h.t.Context(), h.options)
	if err != nil {
		h.t.Fatal(err)
	}
	h.client = client
}

// close ends everything that the test has started, and checks that nothing is left.
func (h *host) close() {
	if h.client == nil {
		return
	}
	_ = h.client.Close()
	h.mu.Lock()
	processes := h.processes
	h.mu.Unlock()
	for _, p := range processes {
		h.kill(p)
	}
	// A keeper may have been started that no client connected to.
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		command, err := os.ReadFile(path)
		if pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && pid > 0 && strings.Contains(string(command), "--directory\x00"+h.directory+"/") {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	wait.Until(h.t, "no process is left", func() bool { return len(h.left()) == 0 })
	if printed := read(h.t, filepath.Join(h.options.Directory, "keeper.stderr")); printed != "" {
		h.t.Errorf("the keeper has printed:\n%s", printed)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), h.directory) {
		h.t.Errorf("mounts are left on the host: %v\n%s", err, mounts)
	}
}

// cgroup makes a cgroup in one hierarchy, of which the test removes all.
func (h *host) cgroup(name string) string {
	h.t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		root += "/pids"
	}
	parent := filepath.Join(root, "keeper-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(parent, 0o755); err == nil {
		h.t.Cleanup(func() { wait.Until(h.t, "the cgroup is removed", func() bool { return os.Remove(parent) == nil }) })
	} else if !errors.Is(err, fs.ErrExist) {
		h.t.Fatal(err)
	}
	directory := filepath.Join(parent, name)
	if err := os.Mkdir(directory, 0o755); err != nil {
		h.t.Fatal(err)
	}
	return directory
}

// left lists processes, zombies left out, that have to do with this host.
func (h *host) left() (found []string) {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), h.directory) {
			found = append(found, path)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.processes {
		if alive(p) {
			found = append(found, strconv.Itoa(p.PID))
		}
	}
	return found
}

// alive reports whether a process has not ended.
func alive(p keeper.Process) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	return fields[19] == strconv.FormatUint(p.StartTime, 10) && fields[0] != "Z" && fields[0] != "X"
}

func (h *host) kill(p keeper.Process) {
	if alive(p) {
		_ = unix.Kill(p.PID, unix.SIGKILL)
	}
}

// spec is what is special about a container.
type spec struct {
	args     []string
	hostPIDs bool // no PID namespace of its own
	lower    []string
	cgroupNS bool
}

func script(text string) spec { return spec{args: []string{"/bin/sh", "-c", text}} }

// container makes the bundle of a container that does not exist yet.
func (h *host) container(id string, s spec) keeper.Launch {
	h.t.Helper()
	directory := filepath.Join(h.directory, "containers", id)
	for _, name := range []string{"rootfs", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(directory, name), 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	type object map[string]any
	namespaces := []object{{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}}
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=64k"}},
	}
	if !s.hostPIDs {
		namespaces = append(namespaces, object{"type": "pid"})
	}
	if s.cgroupNS {
		namespaces = append(namespaces, object{"type": "cgroup"})
	}
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "args": s.args, "env": []string{"PATH=/bin"}, "cwd": "/", "noNewPrivileges": true,
		},
		"root": object{"path": "rootfs"}, "mounts": mounts, "linux": object{"namespaces": namespaces},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "config.json"), config, 0o600); err != nil {
		h.t.Fatal(err)
	}
	crun, err := exec.LookPath("crun")
	if err != nil {
		h.t.Fatal(err)
	}
	pidFile := filepath.Join(directory, "pid")
	return keeper.Launch{
		Watched: keeper.Watched{
			ID: id, Output: filepath.Join(directory, "output"), Log: filepath.Join(directory, "log"),
			ExitFile: filepath.Join(directory, "exit"), EndFile: filepath.Join(directory, "end.json"),
		},
		Overlay: overlay.Overlay{
			Lower: append([]string{filepath.Join(h.directory, "layers/busybox")}, s.lower...),
			Upper: filepath.Join(directory, "upper"), Work: filepath.Join(directory, "work"), Volatile: true,
		},
		Root: filepath.Join(directory, "rootfs"),
		Run: []string{
			crun, "--root", filepath.Join(h.options.Directory, "runtime"), "--cgroup-manager", "disabled",
			"run", "--detach", "--preserve-fds", "1", "--bundle", directory, "--pid-file", pidFile, id,
		},
		PIDFile: pidFile,
	}
}

// running joins launches with the first processes of their containers.
func running(launches []keeper.Launch, processes []keeper.Process) []keeper.Running {
	var all []keeper.Running
	for i, l := range launches {
		all = append(all, keeper.Running{Watched: l.Watched, Process: processes[i]})
	}
	return all
}

// launch launches a container, which must work.
func (h *host) launch(l keeper.Launch) keeper.Process {
	h.t.Helper()
	p, err := h.tryLaunch(l)
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

func (h *host) tryLaunch(l keeper.Launch) (keeper.Process, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), wait.Patience())
	defer cancel()
	p, err := h.client.Launch(ctx, l)
	if err == nil {
		h.mu.Lock()
		h.processes = append(h.processes, p)
		h.mu.Unlock()
	}
	return p, err
}

// end waits until the end of a container is reported, and checks that it is reported once and
// recorded.
func (h *host) end(l keeper.Launch) keeper.End {
	h.t.Helper()
	var ends []keeper.End
	wait.Until(h.t, "the end of "+l.ID+" is reported", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		ends = h.ends[l.ID]
		return len(ends) > 0
	})
	if len(ends) != 1 {
		h.t.Errorf("%s: ends %v, want one", l.ID, ends)
	}
	recorded, err := keeper.ReadEnd(l.EndFile)
	if err != nil {
		h.t.Fatal(err)
	}
	if got := ends[0]; got.ExitCode != recorded.ExitCode || got.Signal != recorded.Signal || !got.At.Equal(recorded.At) {
		h.t.Errorf("%s: end %+v, the file has %+v", l.ID, got, recorded)
	}
	return ends[0]
}

// killKeeper sends SIGKILL to the keeper.
func (h *host) killKeeper() {
	h.t.Helper()
	pid := 0
	wait.Until(h.t, "the client has a keeper", func() bool { pid = h.client.PID(); return pid != 0 })
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		h.t.Fatal(err)
	}
}

// otherKeeper waits until the client is connected to another keeper than that one.
func (h *host) otherKeeper(than int) int {
	h.t.Helper()
	pid := 0
	wait.Until(h.t, "the client has another keeper", func() bool { pid = h.client.PID(); return pid != 0 && pid != than })
	return pid
}

// read returns the content of a file, "" when there is none.
func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}
