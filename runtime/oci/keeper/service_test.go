package keeper_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/wait"
)

// serviceVariable makes the test binary a service that launches a container.
const serviceVariable = "KEEPER_TEST_SERVICE"

// service launches the container of a directory, prints its process, and waits to be killed.
func service(directory string) int {
	h := &host{directory: directory}
	h.options = keeper.Options{Program: os.Getenv(serviceVariable + "_PROGRAM"), Directory: filepath.Join(directory, "run")}
	client, err := keeper.Open(context.Background(), h.options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	h.t = &testing.B{} // only for failures, which end the process
	p, err := client.Launch(context.Background(), h.container("of-service", script(serviceScript)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(client.PID(), p.PID, p.StartTime)
	select {}
}

const serviceScript = "while [ ! -e /tmp/go ]; do usleep 1000; done; seq 1 1000; exit 51"

// TestServiceKilled: keeper and containers go on when the service and everything in its process
// group is killed.
func TestServiceKilled(t *testing.T) {
	h := newHost(t)
	_ = h.client.Close()
	pid := h.client.PID()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil { // so that the service starts one
		t.Fatal(err)
	}
	wait.Until(h.t, "the keeper has ended", func() bool { return !alivePID(pid) })
	command := wait.Command(t, "/proc/self/exe")
	command.Env = append(os.Environ(), serviceVariable+"="+h.directory, serviceVariable+"_PROGRAM="+keeperProgram)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	var p keeper.Process
	if _, scanned := fmt.Sscan(line, &pid, &p.PID, &p.StartTime); scanned != nil {
		t.Fatal(line, err, scanned)
	}
	h.processes = append(h.processes, p)
	if err := unix.Kill(-command.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, output)
	_ = command.Wait()
	if !alive(p) || !alivePID(pid) {
		t.Fatalf("container %v, keeper %v", alive(p), alivePID(pid))
	}
	h.goOn(p)
	l := h.container("of-service", script(serviceScript))
	wait.Until(h.t, "the end is recorded", func() bool { _, err := keeper.ReadEnd(l.EndFile); return err == nil })
	h.open()
	if h.client.PID() != pid {
		t.Errorf("keeper %d, want %d", h.client.PID(), pid)
	}
	// The same launch again, as by a service that was killed before it got the answer, finds the
	// container.
	if again := h.launch(l); again != p {
		t.Errorf("process %+v, want %+v", again, p)
	}
	if end := h.end(l); end.ExitCode != 51 {
		t.Errorf("end %+v", end)
	}
	if log := read(t, l.Log); strings.Count(log, "\n") != 1000 {
		t.Errorf("%d lines", strings.Count(log, "\n"))
	}
}

func alivePID(pid int) bool {
	start, err := keeper.ReadStart(pid)
	return err == nil && alive(keeper.Process{PID: pid, StartTime: start})
}
