package oci_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

// TestHeldOutput: a container that holds the kernel's lock of its output, so that whatever touches
// the pipe cannot even be killed, costs no other its log or its end, and neither keeper nor service
// is kept from ending and beginning.
func TestHeldOutput(t *testing.T) {
	s := newSite(t, "crun")
	h := &held{T: t, site: s, engine: s.mustOpen(t)}
	t.Cleanup(h.free)
	h.imageID = loadProbe(t, h.engine)
	h.neighbour = start(t, h.engine, probe(h.imageID, "count"))
	h.check("before")
	h.holder = start(t, h.engine, probe(h.imageID, "hold"))
	h.untilStuck()
	h.check("beside it")

	h.within("Close", func() { closeEngine(t, h.engine) })
	h.reopen()
	h.check("after another Open")

	first := keeperOf(t, s)
	killKeeper(t, s)
	h.check("with another keeper")

	h.within("Close", func() { closeEngine(t, h.engine) })
	second := keeperOf(t, s)
	killKeeper(t, s)
	h.reopen()
	h.untilStuck()
	h.check("after another Open, with another keeper")

	removed := start(t, h.engine, probe(h.imageID, "hold"))
	h.within("Remove", func() { remove(t, h.engine, removed) })

	// Once its processes have ended nothing of all that is left.
	printed := lastCount(t, h.engine, h.holder)
	h.within("Stop", func() {
		if err := h.engine.Stop(t.Context(), h.holder, 0); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	if c := inspect(t, h.engine, h.holder); c.Status != engine.StatusExited {
		t.Errorf("the holder is %s, want exited", c.Status)
	}
	if last := lastCount(t, h.engine, h.holder); last <= printed {
		t.Errorf("the log of the holder ends with %d, as before, without the rest of the pipe", last)
	}
	for _, keeper := range []int{first, second} {
		wait.Until(t, "the earlier keeper has ended", func() bool { return unix.Kill(keeper, 0) == unix.ESRCH })
	}
	wait.Until(t, "no thread of the keeper waits", func() bool { return !h.waits(keeperOf(t, s)) })
	h.check("afterwards")
	remove(t, h.engine, h.holder)
	for _, pid := range []int{keeperOf(t, s), os.Getpid()} {
		wait.Until(t, "its files are closed", func() bool { return h.filesOf(pid) == 0 })
	}
	removeAll(t, h.engine)
	closeEngine(t, h.engine)
	h.engine = nil
	s.checkNothingLeft(t)
}

// held is a site with two containers, one of which holds its output.
type held struct {
	*testing.T
	site
	engine                     *oci.Engine // nil while there is none
	imageID, neighbour, holder string
}

// free lets everything go on that waits for the holder, also when the test has failed.
func (h *held) free() {
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range groups {
		content, err := os.ReadFile(path) // an error is that of a process that has ended
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && pid > 1 && h.holder != "" && strings.Contains(string(content), h.holder) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	if h.engine != nil {
		_ = h.engine.Close()
	}
}

// check looks at what must work whatever the holder does.
func (h *held) check(when string) {
	h.Helper()
	printed := lastCount(h.T, h.engine, h.neighbour)
	wait.Until(h, "another container prints "+when, func() bool { return lastCount(h.T, h.engine, h.neighbour) > printed })
	id := start(h, h.engine, probe(h.imageID, "print", "out:word"))
	wait.Until(h, "another container ends "+when, func() bool { return inspect(h, h.engine, id).Status == engine.StatusExited })
	if log, err := h.engine.Logs(h.Context(), id, 10); err != nil || log != "word\n" {
		h.Errorf("another container %s has the log %q, %v", when, log, err)
	}
	if h.holder != "" {
		inspect(h, h.engine, h.holder)
	}
	if h.waits(os.Getpid()) {
		h.Errorf("a thread of the service waits %s", when)
	}
	h.within("Remove", func() { remove(h.T, h.engine, id) })
}

// untilStuck returns when a thread of the keeper waits for the holder.
func (h *held) untilStuck() {
	h.Helper()
	wait.Until(h, "a thread of the keeper waits", func() bool { return h.waits(keeperOf(h.T, h.site)) })
}

// waits reports whether a thread of a process waits for what no signal ends, and not just for the
// disk: for half a second.
func (h *held) waits(pid int) bool {
	h.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		h.Fatal(err)
	}
	return slices.ContainsFunc(threads, func(path string) bool {
		return !wait.Within(500*time.Millisecond, func() bool {
			stat, err := os.ReadFile(path)
			return err != nil || !strings.Contains(string(stat), ") D ")
		})
	})
}

// filesOf counts the files of the holder that a process has open.
func (h *held) filesOf(pid int) (count int) {
	h.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		h.Fatal(err)
	}
	for _, path := range files {
		if target, err := os.Readlink(path); err == nil && strings.Contains(target, h.holder) {
			count++
		}
	}
	return count
}

func (h *held) reopen() {
	h.Helper()
	h.engine = nil
	var opened *oci.Engine
	h.within("Open", func() {
		var err error
		if opened, err = h.open(context.WithoutCancel(h.Context()), zerolog.NewTestWriter(h)); err != nil {
			h.Errorf("open: %v", err)
		}
	})
	if h.engine = opened; opened == nil {
		h.FailNow()
	}
}

func (h *held) within(what string, call func()) {
	h.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	wait.For(h, "the return of "+what, done)
}
