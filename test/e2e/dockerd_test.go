package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// privateEngine is a Docker Engine of a test's own, which can be killed. It shares nothing with the
// one of the other tests: it has its own bridge, directories and socket, leaves the host's packet
// filter alone, and all of it is gone at the end of the test.
type privateEngine struct {
	directory string
	bridge    string
	subnet    string // the bridge's address and prefix
	// published is the address that services on this engine have to publish on: every engine counts
	// ports from the same one on, so another one could take those of containers that survive this
	// one's death.
	published string
	args      []string
	log       conformance.Journal

	process *exec.Cmd // nil while it is not running
	ended   chan struct{}
}

var privateEngines atomic.Int32

// startEngine returns a running engine with the images that sandboxes of these tests are made of.
func startEngine(t *testing.T, args ...string) *privateEngine {
	t.Helper()
	number := int(privateEngines.Add(1))
	// The socket's path must be short. The directory is not the test's own, which would be removed
	// before the engine has ended.
	directory, err := os.MkdirTemp("", "sbx-engine-")
	if err != nil {
		t.Fatal(err)
	}
	e := &privateEngine{
		directory: directory,
		bridge:    fmt.Sprintf("sbx%d-%d", os.Getpid(), number), // at most 15 bytes
		subnet:    fmt.Sprintf("10.%d.%d.1/24", 200+os.Getpid()%50, (os.Getpid()/50+number)%250),
		published: fmt.Sprintf("127.%d.%d.%d", 200+os.Getpid()%50, (os.Getpid()/50)%250,
			10+number%200),
		args: args,
	}
	t.Cleanup(func() { e.destroy(t) })
	e.ip(t, "link", "add", e.bridge, "type", "bridge")
	e.ip(t, "address", "add", e.subnet, "dev", e.bridge)
	e.ip(t, "link", "set", e.bridge, "up")
	e.boot(t)
	e.load(t, execdImage, busyboxImage)
	return e
}

func (e *privateEngine) ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := wait.Command(t, "ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (e *privateEngine) host() string { return "unix://" + filepath.Join(e.directory, "s") }

// boot starts the engine, for the first time or again on the same directories, and returns when it
// answers.
func (e *privateEngine) boot(t *testing.T) {
	t.Helper()
	args := append([]string{
		"--host", e.host(), "--data-root", filepath.Join(e.directory, "data"), "--exec-root",
		filepath.Join(e.directory, "exec"),
		"--pidfile", filepath.Join(e.directory, "pid"), "--config-file",
		filepath.Join(e.directory, "none.json"),
		"--bridge", e.bridge, "--iptables=false", "--ip6tables=false", "--ip-forward=false",
		"--ip-masq=false",
		"--containerd-namespace", e.bridge, "--containerd-plugins-namespace", e.bridge + "-plugins",
	}, e.args...)
	if err := os.WriteFile(filepath.Join(e.directory, "none.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Of one that was killed. The engine would wait for these processes, whose numbers may be
	// reused by now.
	for _, stale := range []string{"pid", "exec/containerd/containerd.pid"} {
		_ = os.Remove(filepath.Join(e.directory, stale))
	}
	command := exec.Command("dockerd", args...)
	command.Stdout, command.Stderr = &e.log, &e.log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	e.process, e.ended = command, make(chan struct{})
	go func(ended chan struct{}) {
		_ = command.Wait() // it is killed
		close(ended)
	}(e.ended)
	client, err := docker.New(docker.Options{Host: e.host(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	wait.Until(t, "the engine answers", func() bool {
		select {
		case <-e.ended:
			t.Fatalf("the engine ended:\n%s", e.log.Tail(30))
		default:
		}
		_, err := client.Info(wait.Context(t))
		return err == nil
	})
}

// end ends the engine by a signal and returns when its process is gone, and the containerd that it
// brought along.
func (e *privateEngine) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	_ = e.process.Process.Signal(signal) // its only error is that the process has ended
	wait.For(t, "the end of the engine", e.ended)
	e.process = nil
	daemon := filepath.Join(e.directory, "exec/containerd/containerd.toml")
	wait.Until(t, "the engine's containerd has ended",
		func() bool { return len(processesWith(t, daemon)) == 0 })
}

// docker runs Docker's tool against this engine.
func (e *privateEngine) docker(t *testing.T, stdin io.Reader, args ...string) string {
	t.Helper()
	command := wait.Command(t, "docker", append([]string{"--host", e.host()}, args...)...)
	command.Stdin = stdin
	out, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// load brings images from the engine of the other tests.
func (e *privateEngine) load(t *testing.T, images ...string) {
	t.Helper()
	var archive bytes.Buffer
	command := wait.Command(t, "docker", append([]string{"save"}, images...)...)
	command.Stdout = &archive
	if err := command.Run(); err != nil {
		t.Fatalf("docker save: %v", err)
	}
	e.docker(t, &archive, "load", "--quiet")
}

// destroy removes everything of the engine: containers, processes, mounts, files, the bridge.
func (e *privateEngine) destroy(t *testing.T) {
	if t.Failed() {
		t.Logf("the engine's log:\n%s", e.log.Tail(60))
	}
	select {
	case <-e.ended:
		e.process = nil // it did not start
	default:
	}
	if e.process != nil {
		if ids := strings.Fields(e.docker(t, nil, "ps", "--all", "--quiet")); len(ids) > 0 {
			e.docker(t, nil, append([]string{"rm", "--force"}, ids...)...)
		}
		e.end(t, syscall.SIGTERM)
	}
	// What outlives an engine that was killed: the shims of its containers, and with them the
	// containers.
	for _, pid := range processesWith(t, e.directory) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // may have ended meanwhile
	}
	wait.Until(t, "no process of the engine is left",
		func() bool { return len(processesWith(t, e.directory)) == 0 })
	for _, mount := range mountsUnder(t, e.directory) {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", mount, err)
		}
	}
	if err := os.RemoveAll(e.directory); err != nil {
		t.Error(err)
	}
	e.ip(t, "link", "delete", e.bridge)
}

// processesWith returns the processes whose command line names the file or directory.
func processesWith(t *testing.T, directory string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, file := range files {
		var pid int
		content, err := os.ReadFile(file)
		if _, scan := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err == nil && scan == nil &&
			bytes.Contains(content, []byte(directory)) && pid != os.Getpid() {
			found = append(found, pid)
		}
	}
	return found
}

// mountsUnder returns the mount points in the directory, the innermost first.
func mountsUnder(t *testing.T, directory string) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 4 &&
			strings.HasPrefix(fields[4], directory+"/") {
			found = append([]string{fields[4]}, found...)
		}
	}
	return found
}

// listens reports whether the engine's socket takes connections; a test uses it to be sure that the
// outage is one.
func (e *privateEngine) listens() bool {
	connection, err := net.DialTimeout("unix", filepath.Join(e.directory, "s"), time.Second)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}
