package supervisor_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/test/wait"
)

// openTerminal returns both ends of a new pseudo terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var index int
	var setup error
	if err := raw.Control(func(fd uintptr) {
		if setup = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); setup == nil {
			index, setup = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil || setup != nil {
		t.Fatal(err, setup)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", index), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestTerminalBelongsToTheEntrypoint(t *testing.T) {
	t.Parallel()
	master, slave := openTerminal(t)
	const script = `
		trap 'n=$((n+1)); echo interrupt $n' INT
		trap 'echo hangup' HUP
		: < /dev/tty && echo controlling terminal
		while :; do read line; [ "$line" = quit ] && exit 11; done`
	s := start(t, plan{Entrypoint: shell(script)}, func(cmd *exec.Cmd) {
		cmd.Stdin, cmd.Stdout = slave, slave
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	})
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	if err := master.SetReadDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	screen := bufio.NewReader(master)
	expect := func(want string) {
		t.Helper()
		line, err := screen.ReadString('\n')
		if err != nil || !strings.HasSuffix(strings.TrimSpace(line), want) {
			t.Fatalf("the terminal shows %q (%v), want %q", line, err, want)
		}
	}
	expect("controlling terminal")
	for _, key := range []string{"interrupt 1", "interrupt 2"} {
		if _, err := master.WriteString("\x03"); err != nil {
			t.Fatal(err)
		}
		expect(key)
	}
	if _, err := master.WriteString("quit\n"); err != nil {
		t.Fatal(err)
	}
	if got := s.wait(); got != 11 {
		t.Errorf("exit code %d, want 11", got)
	}
}
