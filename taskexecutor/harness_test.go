package taskexecutor_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/taskexecutor"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// TestMain also is the shims, the tasks and the main containers of the executors that are part of
// the tests' process (local_test.go).
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case taskexecutor.ShimCommand:
			os.Exit(taskexecutor.Shim(os.Args[2:]))
		case taskexecutor.EnterCommand:
			os.Exit(taskexecutor.Enter(os.Args[2:]))
		case taskexecutor.TitledMain, taskexecutor.HugeMain:
			os.Exit(taskexecutor.PlayMain(os.Args[1:]))
		}
	}
	code := m.Run()
	if built.tag != "" {
		if out, err := run(context.Background(), "docker", "image", "rm", built.tag); err != nil {
			fmt.Fprintf(os.Stderr, "clean up: %v\n%s", err, out)
			code = max(code, 1)
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const token = "the-token-of-the-executor"

// pod is what a kubelet makes of a pod that shares its process namespace: a container that only
// waits, whose namespaces the main container and the executor join.
type pod struct {
	*tasks.Client
	t        *testing.T
	pids     string // namespace of processes
	name     string
	main     string // containers
	executor string
	pause    string
	address  string
	armed    program.Failpoints // with podOptions.failpoints
}

// podOptions are what differs between tests.
type podOptions struct {
	main    []string // further arguments of `docker run` for the main container
	command []string // what the main container runs
	noPause bool     // the main container's process is process 1
	idle    bool     // the executor is not waited for
	marker  string
	caps    []string // instead of the one that the document demands
	// failpoints lets the test arm failpoints of the executor.
	failpoints bool
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := run(t.Context(), name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

func run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*wait.Patience())
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

// failpoints is the directory of the executor's failpoints in its container, where it is mounted
// when a test has some.
const failpoints = "/failpoints"

// built is the executor's image, made from the working tree once.
var built struct {
	once sync.Once
	tag  string
	err  error
}

func image(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		directory, err := os.MkdirTemp("", "task-executor")
		if err == nil {
			defer os.RemoveAll(directory)
			built.tag, err = makeImage(directory)
		}
		built.err = err
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.tag
}

func makeImage(directory string) (string, error) {
	if err := program.BuildWithFailpoints(context.Background(), directory, failpoints,
		"sandbox.internal/taskexecutor/cmd/task-executor", "sandbox.internal/taskexecutor/cmd/task-executor-init"); err != nil {
		return "", err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"task-executor", "task-executor-init"} {
		data, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			return "", err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return "", err
		}
		if _, err := w.Write(data); err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	tag := "sandbox/task-executor-test:" + uuid.NewString()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	defer cancel()
	load := exec.CommandContext(ctx, "docker", "import", "-c", `ENTRYPOINT ["/task-executor-init", "/task-executor"]`, "-", tag)
	load.Stdin = &archive
	if out, err := load.CombinedOutput(); err != nil {
		return "", fmt.Errorf("docker import (the tests need a Docker Engine): %w\n%s", err, out)
	}
	return tag, nil
}

// start makes a pod and waits until its executor answers.
func start(t *testing.T, o podOptions) *pod {
	t.Helper()
	built := image(t)
	name := "task-test-" + uuid.NewString()[:8]
	p := &pod{t: t, name: name, main: name + "-main", executor: name + "-executor", pause: name + "-pause"}
	if o.marker == "" {
		o.marker = tasks.MainMarker
	}
	if o.command == nil {
		o.command = []string{"sleep", "infinity"}
	}
	if o.caps == nil {
		o.caps = []string{"--cap-add", "SYS_PTRACE"}
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := run(context.Background(), "docker", "logs", "--tail", "80", p.executor)
			t.Logf("the executor's log:\n%s", logs)
		}
		for _, container := range []string{p.executor, p.main, name + "-pause"} {
			p.cleanUp("rm", "-f", "-v", container)
		}
		p.cleanUp("volume", "rm", "-f", p.name)
	})
	command(t, "docker", "volume", "create", p.name)
	publish := []string{"-p", "127.0.0.1::" + strconv.Itoa(tasks.Port)}
	var own []string // what makes the main container own the namespaces, or join them
	if o.noPause {
		p.pause, own = p.main, publish
	} else {
		args := append([]string{"run", "-d", "--init", "--ipc", "shareable", "--name", p.pause}, publish...)
		command(t, "docker", append(args, "sandbox/base:dev", "sleep", "infinity")...)
		own = []string{"--pid", "container:" + p.pause, "--network", "container:" + p.pause, "--ipc", "container:" + p.pause}
	}
	args := append([]string{"run", "-d", "--name", p.main, "-e", "SANDBOX_MAIN=1"}, own...)
	args = append(append(args, o.main...), "sandbox/base:dev")
	command(t, "docker", append(args, o.command...)...)
	if !o.noPause {
		o.caps = append(o.caps, "--ipc", "container:"+p.pause)
	}
	var err error
	if p.pids, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.host(p.pause))); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"run", "-d", "--name", p.executor, "--pid", "container:" + p.pause, "--network", "container:" + p.pause,
		"-v", p.name + ":/var/lib/task-executor", "-e", "TASK_EXECUTOR_TOKEN=" + token, "-e", "TASK_EXECUTOR_MAIN_MARKER=" + o.marker}, o.caps...)
	if o.failpoints {
		p.armed = program.Failpoints(t.TempDir())
		args = append(args, "-v", string(p.armed)+":"+failpoints)
	}
	command(t, "docker", append(args, built)...)
	p.address = strings.Fields(command(t, "docker", "port", p.pause, strconv.Itoa(tasks.Port)))[0]
	transport := &http.Transport{DisableKeepAlives: true}
	p.Client = &tasks.Client{BaseURL: "http://" + p.address, Token: token, HTTP: &http.Client{Transport: transport, Timeout: 2 * wait.Patience()}}
	if !o.idle {
		p.answers()
	}
	return p
}

func (p *pod) cleanUp(args ...string) {
	if out, err := run(context.Background(), "docker", args...); err != nil && !strings.Contains(out, "No such") {
		p.t.Errorf("clean up: docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// answers waits until the executor answers.
func (p *pod) answers() {
	p.t.Helper()
	wait.Succeeds(p.t, "the executor answers", func() error { _, err := p.List(p.t.Context()); return err })
}

// put is Put of what must be accepted. An executor that is being started again is waited for.
func (p *pod) put(name string, task tasks.Task) {
	p.t.Helper()
	wait.Succeeds(p.t, "put "+name, func() error { _, err := p.Put(p.t.Context(), name, task); return err })
}

// until waits for a status of a taskexecutor.
func (p *pod) until(name, what string, holds func(tasks.Status) bool) tasks.Status {
	p.t.Helper()
	var status tasks.Status
	wait.Succeeds(p.t, name+" "+what, func() (err error) {
		if status, err = p.Get(p.t.Context(), name); err == nil && !holds(status) {
			err = fmt.Errorf("status is %+v", status)
		}
		return err
	})
	return status
}

func (p *pod) ends(name string) tasks.Status {
	p.t.Helper()
	return p.until(name, "ends", tasks.Status.Ended)
}

func (p *pod) runs(name string) tasks.Status {
	p.t.Helper()
	return p.until(name, "runs", func(s tasks.Status) bool { return s.State == tasks.Running })
}

// ended checks how a task has ended.
func (p *pod) ended(name string, state tasks.State, reason string) tasks.Status {
	p.t.Helper()
	status := p.ends(name)
	if status.State != state || status.Reason != reason || status.Ready || status.FinishedAt == nil {
		p.t.Errorf("task %s is %+v; want %s, reason %q", name, status, state, reason)
	}
	return status
}

// sh runs a shell command in the main container.
func (p *pod) sh(script string) string {
	p.t.Helper()
	return command(p.t, "docker", "exec", p.main, "bash", "-c", script)
}

// prints waits until a shell command in the main container prints something.
func (p *pod) prints(script, want string) {
	p.t.Helper()
	wait.Succeeds(p.t, script, func() error {
		out, err := run(p.t.Context(), "docker", "exec", p.main, "bash", "-c", script)
		if strings.TrimSpace(out) != want {
			return fmt.Errorf("script prints %q, want %q (%v)", out, want, err)
		}
		return nil
	})
}

func shell(script string) tasks.Task {
	return tasks.Task{Command: []string{"bash", "-c", script}}
}

func grace(t tasks.Task, seconds int64) tasks.Task {
	t.GracePeriodSeconds = &seconds
	return t
}

// host returns the process id, as the test sees it, of a container's first process.
func (p *pod) host(container string) int {
	p.t.Helper()
	pid, err := strconv.Atoi(command(p.t, "docker", "inspect", "-f", "{{.State.Pid}}", container))
	if err != nil || pid == 0 {
		p.t.Fatalf("container %s does not run (%v)", container, err)
	}
	return pid
}

// processes returns the ids, as the test sees them, of the processes of the pod whose command line
// contains all the words.
func (p *pod) processes(words ...string) []int {
	p.t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		p.t.Error(err)
	}
	var found []int
	for _, name := range names {
		if seen, err := os.Readlink(name + "/ns/pid"); err != nil || seen != p.pids {
			continue
		}
		data, err := os.ReadFile(name + "/cmdline")
		line := strings.ReplaceAll(strings.TrimRight(string(data), "\x00"), "\x00", " ")
		matches := err == nil && line != ""
		for _, word := range words {
			matches = matches && strings.Contains(line, word)
		}
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil && matches {
			found = append(found, pid)
		}
	}
	return found
}

// theExecutor waits for the one process of the executor itself, and shim for that of a task's shim.
func (p *pod) theExecutor() int {
	p.t.Helper()
	return p.one(func() []int {
		parent := fmt.Sprintf("PPid:\t%d\n", p.host(p.executor))
		var found []int
		for _, pid := range p.processes("/task-executor") {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			line, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && err2 == nil && strings.Contains(string(status), parent) && string(line) == "/task-executor\x00" {
				found = append(found, pid)
			}
		}
		return found
	})
}

func (p *pod) shim(name string) int {
	p.t.Helper()
	return p.one(func() []int { return p.processes("/task-executor shim", "/tasks/"+name+".") })
}

func (p *pod) one(find func() []int) int {
	p.t.Helper()
	var found []int
	wait.Succeeds(p.t, "there is one such process", func() error {
		if found = find(); len(found) != 1 {
			return fmt.Errorf("there are %d", len(found))
		}
		return nil
	})
	return found[0]
}

func (p *pod) signal(pid int, sig syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		p.t.Fatalf("%s to %d: %v", sig, pid, err)
	}
}

// vanishes waits until no process has such a command line.
func (p *pod) vanishes(words ...string) {
	p.t.Helper()
	wait.Succeeds(p.t, fmt.Sprintf("no process is left of %q", words), func() error {
		if found := p.processes(words...); len(found) > 0 {
			return fmt.Errorf("there are %d", len(found))
		}
		return nil
	})
}

func cmdline(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(data), err
}
