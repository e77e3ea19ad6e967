package process_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/test/wait"
)

func TestIdentity(t *testing.T) {
	t.Parallel()
	command := sleeper(t)
	id, err := process.Identify(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if stat, err := process.ReadStat(process.Directory(id.PID)); err != nil || stat.Parent != os.Getpid() || stat.Ended() {
		t.Errorf("the stat of the process is %+v, %v", stat, err)
	}
	if all, err := process.List(); err != nil || !slices.Contains(all, id.PID) {
		t.Errorf("process %d is not among %v, %v", id.PID, all, err)
	}
	other := process.ID{PID: id.PID, Start: id.Start + 1}
	if _, err := other.Open(); !errors.Is(err, process.ErrEnded) {
		t.Errorf("a descriptor of a process that had the number before: %v, want ErrEnded", err)
	}

	pidfd, err := id.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	ended := process.Ended(pidfd)
	select {
	case <-ended:
		t.Fatal("the process has ended before it was signalled")
	default:
	}
	if err := process.Send(pidfd, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of the process", ended)
	if stat, err := process.ReadStat(process.Directory(id.PID)); err != nil || !stat.Ended() {
		t.Errorf("the stat of the process is %+v, %v, want one that has ended", stat, err)
	}
	command.Wait() // reports the signal
	if err := process.Send(pidfd, unix.SIGKILL); err != nil {
		t.Errorf("a signal for a process that has ended: %v", err)
	}
	if _, err := process.Identify(id.PID); !errors.Is(err, process.ErrEnded) {
		t.Errorf("identify a process that is gone: %v, want ErrEnded", err)
	}
	if _, err := id.Open(); !errors.Is(err, process.ErrEnded) {
		t.Errorf("a descriptor of a process that is gone: %v, want ErrEnded", err)
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 0 0\n"
	if s, err := process.ParseStat([]byte(line)); err != nil || s != (process.Stat{State: 'S', Parent: 7, Start: 123456}) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "42", "42 (a) S 7", strings.Replace(line, "123456", "x", 1), strings.Replace(line, " 7 ", " x ", 1)} {
		if s, err := process.ParseStat([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, s)
		}
	}
}
