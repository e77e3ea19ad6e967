package thread_test

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/thread"
)

// TestRun: nothing of the process has what a function has made of its thread, also when the caller
// is on the first thread.
func TestRun(t *testing.T) {
	before := hostname(t)
	var seen string
	for range 200 {
		thread.Run(func() {
			if unix.Gettid() == os.Getpid() {
				t.Error("the function runs on the first thread")
			}
			if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
				t.Error(err)
				return
			}
			if err := unix.Sethostname([]byte("on-a-thread")); err != nil {
				t.Error(err)
			}
			seen = hostname(t)
		})
		if seen != "on-a-thread" {
			t.Fatalf("on the thread, the host's name is %q", seen)
		}
	}
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name, err := os.Readlink("/proc/self/task/" + entry.Name() + "/ns/uts")
		if err == nil && name != own { // a thread of the Go runtime may end meanwhile
			t.Errorf("thread %s is in %s, the process is in %s", entry.Name(), name, own)
		}
	}
	if after := hostname(t); after != before {
		t.Errorf("the host's name was %q and is %q", before, after)
	}
}

// TestFirstThread: a caller that keeps the first thread is served by another one.
func TestFirstThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ran int
	thread.Run(func() { ran = unix.Gettid() })
	if ran == 0 || ran == unix.Gettid() {
		t.Errorf("the function ran on thread %d, the caller's is %d", ran, unix.Gettid())
	}
	if unix.Access("/proc/self/task/"+strconv.Itoa(ran), unix.F_OK) == nil {
		t.Errorf("thread %d is still there", ran)
	}
}

func hostname(t *testing.T) string {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Error(err)
	}
	return unix.ByteSliceToString(name.Nodename[:])
}
