package keeper_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/test/wait"
)

// TestOutputHeldByAnother: a process that has the FIFO of a container from it holds the kernel's
// lock of it, and goes on when the container has ended. The end is reported all the same, and the
// container can be forgotten and launched again; another keeper can begin. Once the process lets go
// nothing is left.
func TestOutputHeldByAnother(t *testing.T) {
	for name, replaced := range map[string]bool{"same keeper": false, "other keeper": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // both wait for the same time
			testHeldByAnother(t, replaced)
		})
	}
}

func testHeldByAnother(t *testing.T, replaced bool) {
	h := newHost(t)
	// Its own first process does not end while it has the FIFO: no process closes the last
	// descriptor of a pipe that is held.
	l := h.container("held", script("echo begins; exec sleep 1000 >/tmp/other 2>&1"))
	l.Overlay.Volatile = false // for the second launch
	p := h.launch(l)
	wait.Until(h.t, "the container has printed", func() bool {
		return read(t, l.Log) == "begins\n" && strings.HasPrefix(read(t, "/proc/"+strconv.Itoa(p.PID)+"/cmdline"), "sleep")
	})
	first := h.client.PID()
	release := h.hold(l.Output, first)
	began := time.Now()
	if replaced {
		h.replaceProgram(t)
		if err := h.client.Adopt(t.Context(), []keeper.Running{{Watched: l.Watched, Process: p}}); err != nil {
			t.Fatal(err)
		}
	}
	h.kill(p)
	if end := h.end(l); end.ExitCode != 137 {
		t.Errorf("end %+v", end)
	}
	again := h.container("held", script("echo again; exit 3"))
	if err := errors.Join(h.client.Forget(l.ID), wait.Command(t, l.Run[0], append(l.Run[1:3:3], "delete", l.ID)...).Run()); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.ends = map[string][]keeper.End{}
	h.mu.Unlock()
	h.launch(again)
	if end := h.end(again); end.ExitCode != 3 {
		t.Errorf("second end %+v", end)
	}
	if log := read(t, l.Log); !strings.HasSuffix(log, "again\n") {
		t.Errorf("the log has %q", log)
	}
	if err := h.client.Forget(l.ID); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > wait.Patience()/4 {
		t.Errorf("the two ends and the launch took %v", took)
	}

	release()
	current := h.client.PID()
	if replaced {
		wait.Until(h.t, "the first keeper ends", func() bool { return unix.Kill(first, 0) == unix.ESRCH })
	}
	for _, pid := range []int{current, os.Getpid()} {
		wait.Until(h.t, "the FIFO is closed", func() bool { return !h.has(pid, l.Output) })
	}
	if waiting(current) {
		t.Error("a thread of the keeper still waits")
	}
}

// hold makes this process hold the kernel's lock of a FIFO which has something in it, and returns
// when the process waits for that.
func (h *host) hold(path string, keeper int) (release func()) {
	h.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	fifo, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	for err == nil { // until the socket is full
		err = unix.Sendmsg(pair[0], make([]byte, 4096), nil, nil, unix.MSG_DONTWAIT)
	}
	if !errors.Is(err, unix.EAGAIN) {
		h.t.Fatal(err)
	}
	held, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(held)
		_, _ = unix.Splice(fifo, nil, pair[0], nil, 1<<16, 0)
	}()
	stop := make(chan struct{})
	go func() {
		defer close(written)
		for { // the keeper may be faster
			_, _ = unix.Write(fifo, []byte("x")) // waits as soon as it is held
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	release = sync.OnceFunc(func() {
		close(stop)
		unix.Close(pair[1]) // the other end gets EPIPE
		<-held
		<-written
		unix.Close(pair[0])
		unix.Close(fifo)
	})
	h.t.Cleanup(release)
	wait.Until(h.t, "the keeper waits", func() bool { return waiting(keeper) })
	return release
}

// waiting reports whether a thread of a process waits for something that no signal ends, and not
// just for a moment.
func waiting(pid int) bool {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	return slices.ContainsFunc(threads, func(path string) bool {
		return !wait.Within(10*time.Millisecond, func() bool {
			stat, err := os.ReadFile(path)
			return err != nil || !strings.Contains(string(stat), ") D ")
		})
	})
}

// has reports whether a process has a file open, also one that was removed.
func (h *host) has(pid int, file string) bool {
	h.t.Helper()
	directory := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, err := os.ReadDir(directory)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, entry := range entries {
		if target, _ := os.Readlink(filepath.Join(directory, entry.Name())); strings.TrimSuffix(target, " (deleted)") == file {
			return true
		}
	}
	return false
}
