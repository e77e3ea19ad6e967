package taskexecutor

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/test/wait"
)

// TestEndOnAFullDisk: how a task ended is recorded once there is room for it.
func TestEndOnAFullDisk(t *testing.T) {
	disk, proceed := smallDisk(t, "nr_inodes=64"), filepath.Join(t.TempDir(), "proceed")
	l := startLocal(t, disk)
	l.put("task", "while ! test -e "+proceed+"; do sleep 0.01; done; exit 7")
	l.is("task", tasks.Running)
	free := fill(t, disk, 0)
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.says(endFile) // in the shim's error
	free(4)
	status := l.until("task", "ends", tasks.Status.Ended)
	if status.Reason != tasks.ReasonExited || *status.ExitCode != 7 {
		t.Errorf("the status is %+v", status)
	}
}

// TestStopOnAFullDisk: a shim that is to end its task at once does not wait for room.
func TestStopOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, "nr_inodes=64")
	l := startLocal(t, disk)
	f := l.put("task", "sleep 1000")
	l.is("task", tasks.Running)
	s, err := f.load()
	if err != nil {
		t.Fatal(err)
	}
	fill(t, disk, 0)
	shim, err := s.started.Shim.Open()
	if err != nil {
		t.Fatal(err)
	}
	ended := process.Ended(shim)
	defer func() { wait.For(t, "the end of the shim", ended) }()
	defer shim.Close()
	if err := process.Send(shim, signalKill); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the shim has ended", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// TestStateOnAFullDisk: that a task runs, and that it is ready, is recorded once there is room for
// it.
func TestStateOnAFullDisk(t *testing.T) {
	var ready atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	disk := smallDisk(t, "nr_inodes=64")
	l := startLocal(t, disk)
	const started = 4 // the directory, taskFile, lockFile, startedFile
	free := fill(t, disk, started)
	task := tasks.Task{Command: []string{"sleep", "1000"}, Readiness: &tasks.Readiness{Port: server.Listener.Addr().(*net.TCPAddr).Port}}
	l.putTask("task", task)
	l.says(runningFile)
	if status, err := l.Get("task"); err != nil || status.State != tasks.Pending {
		t.Errorf("the status is %+v, %v", status, err)
	}
	free(1)
	l.is("task", tasks.Running)
	ready.Store(true)
	l.says("cannot write the ready record")
	free(1)
	l.until("task", "is ready", func(s tasks.Status) bool { return s.Ready })
	free(4) // for its end
}

// TestUnreadable: a record that cannot be read for a while damages nothing.
func TestUnreadable(t *testing.T) {
	l := startLocal(t, t.TempDir())
	f := l.put("task", "sleep 1000")
	l.is("task", tasks.Running)
	block := func() {
		t.Helper()
		if err := os.Mkdir(filepath.Join(string(f), readyFile), 0o700); err != nil {
			t.Fatal(err)
		}
		l.nudge("task")
	}
	block()
	if status := l.is("task", tasks.Unknown); status.Reason != tasks.ReasonRecordDamaged || !strings.Contains(status.Message, readyFile) {
		t.Errorf("the status is %+v", status)
	}
	if err := os.Remove(filepath.Join(string(f), readyFile)); err != nil {
		t.Fatal(err)
	}
	l.is("task", tasks.Running)

	// It can be ended meanwhile, too.
	s, err := f.load()
	if err != nil {
		t.Fatal(err)
	}
	block()
	l.is("task", tasks.Unknown)
	gone, err := l.Delete("task")
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "it is gone", func() bool {
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
	if p, err := process.Identify(s.running.Process.PID); err == nil && p == s.running.Process {
		t.Error("the process of the task runs")
	}
}

// TestDirectoryThatIsGone: what a removal that failed has left behind is forgotten.
func TestDirectoryThatIsGone(t *testing.T) {
	l := startLocal(t, t.TempDir())
	f := l.put("task", "exit 0")
	l.is("task", tasks.Succeeded)
	left := filepath.Join(filepath.Dir(string(f)), hidden+f.base())
	if err := os.Rename(string(f), left); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.entries["task"].deleting = true
	l.mu.Unlock()
	l.nudge("task")
	wait.Until(t, "the task is forgotten", func() bool {
		_, err := l.Get("task")
		return tasks.HasCode(err, tasks.CodeNotFound)
	})
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the rest is there: %v", err)
	}
}

// TestSecondRecord: of two records with one name, that of the task which may run counts.
func TestSecondRecord(t *testing.T) {
	for _, first := range []bool{true, false} {
		dir := t.TempDir()
		parent := filepath.Join(dir, "tasks")
		if err := os.Mkdir(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		record := func(suffix string) directory {
			f, err := newDirectory(parent, taskRecord{Name: "task", Task: tasks.Task{Command: []string{"x"}}})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(parent, "task."+suffix) // they are read in this order
			if err := os.Rename(string(f), path); err != nil {
				t.Fatal(err)
			}
			return directory(path)
		}
		one, other := record("0"), record("1")
		if !first {
			one, other = other, one
		}
		if err := write(string(one), startedFile, startedRecord{Shim: process.ID{PID: 1 << 30, Start: 1}}); err != nil {
			t.Fatal(err)
		}
		e, err := New(Options{StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if got := e.entries["task"].directory; got != one {
			t.Errorf("the first was started: %t; the task is %s", first, got)
		}
		if _, err := os.Stat(string(other)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the first was started: %t; the other record is there: %v", first, err)
		}
		if err := errors.Join(e.socket.Close(), e.lock.Close()); err != nil {
			t.Error(err)
		}
	}
}
