package freeze_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/test/wait"
)

// The sandbox of these tests is what descends from the test's own process, so no two of them run at
// the same time.

func TestMain(m *testing.M) {
	switch os.Getenv("TEST_PROCESS") {
	case "parent":
		os.Exit(parentOfZombie())
	case "wait":
		fmt.Println("ready")
		awaitEnd()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// parentOfZombie starts a child, says its pid, and never waits for it. A shell may do that as soon
// as a child has ended, and os.Process could when it is collected.
func parentOfZombie() int {
	pid, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(pid)
	awaitEnd()
	return 0
}

// awaitEnd returns when the test that has started this process closes its standard input, or is
// gone.
func awaitEnd() { _, _ = os.Stdin.Read(make([]byte, 1)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run starts a shell script that says a line when it is ready, in a session of its own, and ends
// all of it with the test.
func run(t *testing.T, script string) (pid int, said string) {
	t.Helper()
	return launch(t, exec.Command("/bin/sh", "-c", script))
}

// runSelf is run for this test's binary, as the process of TestMain with that name.
func runSelf(t *testing.T, name string) (pid int, said string) {
	t.Helper()
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), "TEST_PROCESS="+name)
	stdin, err := command.StdinPipe()
	must(t, err)
	t.Cleanup(func() { stdin.Close() })
	return launch(t, command)
}

func launch(t *testing.T, command *exec.Cmd) (pid int, said string) {
	t.Helper()
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	stdout, stdoutWriter, err := os.Pipe()
	must(t, err)
	command.Stdout = stdoutWriter
	must(t, command.Start())
	t.Cleanup(func() {
		syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		stdout.Close()
		command.Wait()
	})
	stdoutWriter.Close()
	must(t, stdout.SetReadDeadline(wait.Deadline()))
	said, err = bufio.NewReader(stdout).ReadString('\n')
	must(t, err)
	return command.Process.Pid, strings.TrimSpace(said)
}

// states are those of a process's threads.
func states(t *testing.T, pid int) string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	must(t, err)
	var all []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		all = append(all, text[bytes.LastIndexByte(text, ')')+2])
	}
	return string(all)
}

func stopped(t *testing.T, pid int) bool { return strings.Trim(states(t, pid), "TZ") == "" }

// halted also holds of a shell that waits for a child which was stopped between its vfork and its
// execve: it stops before it comes out.
func halted(t *testing.T, pid int) bool { return strings.Trim(states(t, pid), "TZD") == "" }

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

func newFreezer(t *testing.T, state *os.File) *freeze.Freezer {
	t.Helper()
	f, err := freeze.New(freeze.Options{State: state})
	must(t, err)
	return f
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Size()
}

func TestProcessesStopAndGoOn(t *testing.T) {
	ticks := filepath.Join(t.TempDir(), "ticks")
	must(t, os.WriteFile(ticks, nil, 0o600))
	// A parent, and a child that forks all the time.
	parent, child := run(t, `(while :; do /bin/echo x >>`+ticks+`; done) & echo $!; wait`)
	wait.Until(t, "the child works", func() bool { return size(t, ticks) > 10 })

	f := newFreezer(t, nil)
	for range 5 { // whatever the child is at just then
		must(t, f.Freeze(t.Context()))
		must(t, f.Freeze(t.Context())) // again, which changes nothing
		before := size(t, ticks)
		if !halted(t, parent) || !halted(t, number(t, child)) {
			t.Fatalf("frozen, the parent's threads are %q and the child's %q", states(t, parent), states(t, number(t, child)))
		}
		if _, err := f.Enter(); err == nil {
			t.Fatal("processes may be started in a frozen sandbox")
		}
		if after := size(t, ticks); after != before {
			t.Fatalf("a frozen process wrote %d bytes", after-before)
		}
		must(t, f.Thaw())
		must(t, f.Thaw())
		wait.Until(t, "the child works again", func() bool { return size(t, ticks) > before })
	}
	leave, err := f.Enter()
	must(t, err)
	leave()
}

func TestStoppedBeforeStaysStopped(t *testing.T) {
	one, _ := run(t, "echo ready; while :; do sleep 1; done")
	two, _ := run(t, "echo ready; while :; do sleep 1; done")
	must(t, syscall.Kill(one, syscall.SIGSTOP))
	wait.Until(t, "one is stopped", func() bool { return stopped(t, one) })

	state, err := os.Create(filepath.Join(t.TempDir(), "state"))
	must(t, err)
	defer state.Close()
	must(t, newFreezer(t, state).Freeze(t.Context()))

	// The daemon is killed, and the next one is asked to freeze once more.
	second := newFreezer(t, state)
	if !second.Frozen() {
		t.Fatal("the next daemon does not report the sandbox as frozen")
	}
	must(t, second.Freeze(t.Context()))

	third := newFreezer(t, state)
	must(t, third.Thaw())
	wait.Until(t, "two runs", func() bool { return !stopped(t, two) })
	if !stopped(t, one) {
		t.Errorf("who had been stopped before was continued: %q", states(t, one))
	}
	if newFreezer(t, state).Frozen() {
		t.Error("the next daemon takes the sandbox for frozen")
	}
}

func TestContinuedByItsOwnerIsOurs(t *testing.T) {
	pid, _ := run(t, "echo ready; while :; do sleep 1; done")
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	wait.Until(t, "it is stopped", func() bool { return stopped(t, pid) })
	f := newFreezer(t, nil)
	must(t, f.Freeze(t.Context()))
	must(t, syscall.Kill(pid, syscall.SIGCONT))
	must(t, f.Freeze(t.Context()))
	if !halted(t, pid) {
		t.Fatalf("a process that was continued from outside runs in a frozen sandbox: %q", states(t, pid))
	}
	must(t, f.Thaw())
	wait.Until(t, "it runs", func() bool { return !stopped(t, pid) })
}

func TestZombiesAndStrangersAreLeftAlone(t *testing.T) {
	// A process that starts a child and does not wait for it.
	pid, zombie := runSelf(t, "parent")
	wait.Until(t, "the child is a zombie", func() bool { return states(t, number(t, zombie)) == "Z" })
	f, err := freeze.New(freeze.Options{Root: pid})
	must(t, err)
	must(t, f.Freeze(t.Context())) // nothing descends from it but the zombie
	if stopped(t, pid) {
		t.Error("the root itself was stopped")
	}
	must(t, f.Thaw())
}

func TestFreezeWaitsForThoseWhoStartProcesses(t *testing.T) {
	f := newFreezer(t, nil)
	leave, err := f.Enter()
	must(t, err)
	frozen := make(chan error, 1)
	go func() { frozen <- f.Freeze(t.Context()) }()
	pid, _ := run(t, "echo ready; while :; do sleep 1; done")
	select {
	case <-frozen:
		t.Error("the freeze did not wait")
	default:
	}
	leave()
	must(t, wait.For(t, "the freeze", frozen))
	if !halted(t, pid) {
		t.Errorf("the process that was started meanwhile runs: %q", states(t, pid))
	}
	must(t, f.Thaw())
}

func TestThreads(t *testing.T) {
	pid, _ := runSelf(t, "wait") // this test's binary has threads
	f := newFreezer(t, nil)
	must(t, f.Freeze(t.Context()))
	if got := states(t, pid); len(got) < 2 || strings.Trim(got, "T") != "" {
		t.Errorf("the threads are %q", got)
	}
	must(t, f.Thaw())
}
