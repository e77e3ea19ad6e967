package process_test

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"

	"sandbox.internal/internal/process"
	"sandbox.internal/test/wait"
)

// sleeper starts a process that leads a session of its own and does not end by itself.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	command := exec.Command("sleep", "3600")
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill() // fails where the test has ended it
		command.Wait()
	})
	return command
}

func TestEndOfAChild(t *testing.T) {
	t.Parallel()
	command := sleeper(t)
	pid := command.Process.Pid
	if process.HasExited(pid) {
		t.Fatal("the process has exited before it was signalled")
	}
	if err := process.SignalGroup(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	process.AwaitExit(pid)
	if !process.HasExited(pid) {
		t.Error("the process has not exited, though AwaitExit has returned")
	}
	if err := command.Wait(); command.ProcessState == nil {
		t.Fatalf("the process was waited for before: %v", err)
	}
	status := command.ProcessState.Sys().(syscall.WaitStatus)
	if code := process.ExitCode(status); code != 143 {
		t.Errorf("exit code is %d, want 143", code)
	}
}

func TestGroupRuns(t *testing.T) {
	t.Parallel()
	leader := exec.Command("sh", "-c", "sleep 3600 & exec true")
	leader.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	pid := leader.Process.Pid
	process.AwaitExit(pid)
	if !process.GroupRuns(pid) {
		t.Error("the process that the leader left is not found")
	}
	if err := process.SignalGroup(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a group without a process that runs is empty", func() bool { return !process.GroupRuns(pid) })
	if err := leader.Wait(); err != nil {
		t.Error(err)
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	err := wait.Command(t, "sh", "-c", "exit 42").Run()
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		t.Fatal(err)
	}
	if code := process.ExitCode(ended.Sys().(syscall.WaitStatus)); code != 42 {
		t.Errorf("exit code is %d, want 42", code)
	}
}
