package terminal

import (
	"os/exec"
	"testing"

	"sandbox.internal/internal/process"
)

// TestTimeoutOfAProgramThatHasEnded: the program has ended by itself, and has not been waited for
// yet, when the timeout elapses.
func TestTimeoutOfAProgramThatHasEnded(t *testing.T) {
	t.Parallel()
	program := exec.Command("sh", "-c", "exit 3")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	process.AwaitExit(program.Process.Pid)
	terminal := &Terminal{process: program}
	terminal.expire()
	if terminal.timedOut || terminal.killing != nil {
		t.Errorf("timed out: %t, to be killed: %t", terminal.timedOut, terminal.killing != nil)
	}
	_ = program.Wait() // the exit code is its error
	terminal.reaped = true
	if terminal.expire(); terminal.timedOut {
		t.Error("timed out after it was waited for")
	}
}
