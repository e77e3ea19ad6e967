package process_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/internal/process"
	"sandbox.internal/test/wait"
)

func TestPreferForOOMKill(t *testing.T) {
	command := wait.Command(t, "sleep", "60")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	own, before := score(t, os.Getpid()), score(t, command.Process.Pid)
	if own != before {
		t.Fatalf("the process has %d, and this one %d", before, own)
	}
	process.PreferForOOMKill(command.Process.Pid)
	if got, want := score(t, command.Process.Pid), min(own+500, 1000); got != want {
		t.Errorf("the process has %d, want %d", got, want)
	}
	if got := score(t, os.Getpid()); got != own {
		t.Errorf("this process has %d, it had %d", got, own)
	}
	process.PreferForOOMKill(1 << 30) // none
}

func score(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return score
}
