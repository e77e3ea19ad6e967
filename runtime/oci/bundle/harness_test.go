package bundle_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/cgroup"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// programs is the directory of the probe, made once.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// Containers' first processes become children of this one.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	directory, err := os.MkdirTemp("", "bundle-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(directory) }()
	programs = directory
	if err := program.Build(context.Background(), directory, "sandbox.internal/runtime/oci/bundle/probe"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// enter is a script that goes where the keeper starts runtimes: into the control groups of its
// arguments up to --, in a mount namespace without version 2 beside version 1, which crun refuses.
const enter = `
mount --make-rslave /
if [ -d /sys/fs/cgroup/memory ] && [ -d /sys/fs/cgroup/unified ]; then umount /sys/fs/cgroup/unified; fi
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done
shift
exec "$@"
`

// box is a container for tests.
type box struct {
	in        bundle.Input
	group     cgroup.Group
	directory string
	root      string
	process   *os.Process
	output    string
	// plainSeccomp is whether the runtime compiles the seccomp profile.
	plainSeccomp bool
}

// serviceDrops are the capabilities that the service takes from sandboxes by default.
var serviceDrops = []string{
	"AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_TIME",
	"SYS_TTY_CONFIG",
}

// layer makes the image: the probe, and accounts.
func layer(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1001::/srv/worker:/bin/sh\n",
		"etc/group":  "root:x:0:\nworker:x:1001:\nstaff:x:50:worker\n",
	} {
		write(t, filepath.Join(directory, name), content)
	}
	content, err := os.ReadFile(filepath.Join(programs, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(directory, "probe"), string(content))
	if err := os.Chmod(filepath.Join(directory, "probe"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	return directory
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// runtimeOf finds a runtime; without crun and runc nothing here is tested, so that is an error.
func runtimeOf(t *testing.T, name string) bundle.Runtime {
	t.Helper()
	found, err := bundle.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// newBox makes everything of a container but the container. The network is one of its own with
// nothing but a loopback interface.
func newBox(t *testing.T, runtime bundle.Runtime, spec engine.ContainerSpec) *box {
	t.Helper()
	image := layer(t)
	tree, err := cgroup.Open("bundle-test-" + strings.ToLower(rand.Text()))
	if err != nil {
		t.Fatal(err)
	}
	id := strings.ToLower(rand.Text())
	group, err := tree.Make(id, spec.Resources)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Network == "" {
		spec.Network = engine.NetworkNone
	}
	etc := t.TempDir()
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		write(t, filepath.Join(etc, name), "the "+name+" of "+id)
	}
	b := &box{
		in: bundle.Input{
			ID: id, Spec: spec, Layers: []string{image}, RootFS: image, CgroupsPath: group.Path(),
			EtcDirectory: etc, Runtime: runtime,
		},
		group: group, directory: t.TempDir(), root: t.TempDir(),
	}
	b.output = filepath.Join(b.directory, "output")
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
		if b.process != nil {
			_, _ = b.process.Wait()
		}
		if arguments := runtime.DeleteArgs(b.root, id); arguments != nil {
			if output, err := wait.Command(t, arguments[0], arguments[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%v: %v: %s", arguments, err, output)
			}
		}
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// runtime runs a command of the runtime.
func (b *box) runtime(t *testing.T, arguments []string) error {
	t.Helper()
	script := []string{"-c", enter, "enter"}
	if !b.in.Runtime.JoinsCgroup {
		script = append(script, b.group.Directories()...)
	}
	command := wait.Command(t, "sh", append(append(script, "--"), arguments...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	output, err := os.OpenFile(b.output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	command.Stdout, command.Stderr = output, output
	if err := command.Run(); err != nil {
		text, _ := os.ReadFile(b.output)
		return fmt.Errorf("%v: %w: %s", arguments, err, text)
	}
	return nil
}

// start creates and starts the container.
func (b *box) start(t *testing.T) error {
	t.Helper()
	if err := bundle.Write(b.directory, b.in); err != nil {
		return err
	}
	if b.plainSeccomp {
		if err := withoutProgram(b.directory); err != nil {
			return err
		}
	}
	pidFile := filepath.Join(b.directory, "pid")
	if err := b.runtime(t, b.in.Runtime.RunArgs(b.root, b.directory, pidFile, b.in.ID, false)); err != nil {
		return err
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	b.process, err = os.FindProcess(pid)
	return err
}

// report runs the probe in the container.
func (b *box) report(t *testing.T, paths ...string) report {
	t.Helper()
	b.in.Spec.Entrypoint = append([]string{"/probe"}, paths...)
	if err := b.start(t); err != nil {
		t.Fatal(err)
	}
	var state *os.ProcessState
	var err error
	// A runtime that runs the container in one command may still be its parent for a moment.
	wait.Until(t, "the container becomes a child of this process", func() bool {
		state, err = b.process.Wait()
		return !errors.Is(err, unix.ECHILD)
	})
	if err != nil {
		t.Fatal(err)
	}
	b.process = nil
	text, err := os.ReadFile(b.output)
	if err != nil {
		t.Fatal(err)
	}
	if state.ExitCode() != 0 {
		t.Fatalf("the probe ended with %s: %s", state, text)
	}
	return decode(t, text)
}

// wait starts the probe to stay until the test ends.
func (b *box) wait(t *testing.T) {
	t.Helper()
	b.in.Spec.Entrypoint = []string{"/probe", "wait"}
	if err := b.start(t); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the probe runs", func() bool {
		text, _ := os.ReadFile(b.output)
		return bytes.Contains(text, []byte("ready"))
	})
}

// report is the probe's.
type report struct {
	Status             map[string]string
	Mounts             map[string]string
	Devices            map[string]string
	Rlimits            map[string][2]uint64
	Readable, Writable []string
	Cgroup             string
	Limits             map[string]string
	Env                []string
	Hostname, Cwd      string
	UID, GID           int
	Groups             []int
	Files              map[string]string
	Opened             map[string]string
	Sysctls            map[string]string
}

func decode(t *testing.T, text []byte) report {
	t.Helper()
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	slices.Sort(r.Env)
	return r
}
