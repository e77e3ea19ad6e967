package keeper_test

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/wait"
)

// TestOutputSurvivesKills: every byte that a container prints is in its log, in order, however
// often the keeper is killed meanwhile.
func TestOutputSurvivesKills(t *testing.T) {
	h := newHost(t)
	l := h.container("prints", script("seq 1 600000; seq 600001 1200000"))
	h.launch(l)
	kills := 0
	for ; kills < 20 && alive(h.processes[0]); kills++ {
		pid := h.client.PID()
		h.killKeeper()
		h.otherKeeper(pid)
	}
	if end := h.end(l); end.ExitCode != 0 {
		t.Errorf("end %+v", end)
	}
	t.Logf("%d kills", kills)
	log, err := os.Open(l.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	lines := bufio.NewScanner(log)
	n := 0
	for lines.Scan() {
		if n++; lines.Text() != strconv.Itoa(n) {
			t.Fatalf("line %d is %q", n, lines.Text())
		}
	}
	if n != 1_200_000 {
		t.Errorf("%d lines", n)
	}
}

// TestLogIsBounded: what is kept of a flood is its end.
func TestLogIsBounded(t *testing.T) {
	h := newHost(t)
	l := h.container("flood", script("seq 1 2000000"))
	l.LogBytes = 100_000
	h.launch(l)
	seen := int64(0)
	wait.Until(h.t, "the flood has ended", func() bool {
		for _, path := range []string{l.Log, l.Log + ".1"} {
			if info, err := os.Stat(path); err == nil {
				seen = max(seen, info.Size())
			}
		}
		_, err := keeper.ReadEnd(l.EndFile)
		return err == nil
	})
	h.end(l)
	if seen > l.LogBytes {
		t.Errorf("a file of the log had %d bytes, want at most %d", seen, l.LogBytes)
	}
	older, newer := read(t, l.Log+".1"), read(t, l.Log)
	if int64(len(older)) != l.LogBytes || int64(len(newer)) > l.LogBytes {
		t.Errorf("the log has %d and %d bytes, want %d and at most as many", len(older), len(newer), l.LogBytes)
	}
	lines := strings.Split(strings.TrimSuffix(older+newer, "\n"), "\n")
	for i := range lines[1:] { // the first one is cut
		if want := strconv.Itoa(2_000_000 - i); lines[len(lines)-1-i] != want {
			t.Fatalf("line %d from the end is %q, want %q", i, lines[len(lines)-1-i], want)
		}
	}
}

// TestWritersWait: a container waits for a keeper that does not read, and loses nothing.
func TestWritersWait(t *testing.T) {
	h := newHost(t)
	l := h.container("waits", script("echo begins; usleep 100000; seq 1 100000; exit 6"))
	p := h.launch(l)
	if err := unix.Kill(h.client.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	output, err := os.OpenFile(l.Output, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	wait.Until(h.t, "the FIFO is full", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(output.Fd()), Events: unix.POLLOUT}}, 0)
		return err == nil && n == 0
	})
	if !alive(p) {
		t.Error("the container has not waited")
	}
	if err := unix.Kill(h.client.PID(), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if end := h.end(l); end.ExitCode != 6 {
		t.Errorf("end %+v", end)
	}
	if log := read(t, l.Log); strings.Count(log, "\n") != 100_001 {
		t.Errorf("%d lines", strings.Count(log, "\n"))
	}
}
