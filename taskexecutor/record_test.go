package taskexecutor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/test/wait"
)

func TestDirectory(t *testing.T) {
	parent := t.TempDir()
	record := taskRecord{Name: "a-1", Task: tasks.Task{Command: []string{"x"}, Env: []tasks.EnvVar{{Name: "A", Value: "ü"}}}}
	f, err := newDirectory(parent, record)
	if err != nil {
		t.Fatal(err)
	}
	if f.name() != "a-1" {
		t.Errorf("the directory %s is about task %q", f, f.name())
	}
	if got, err := f.task(); err != nil || !reflect.DeepEqual(got, record) {
		t.Errorf("recorded %+v, read %+v, %v", record, got, err)
	}
	if s, err := f.load(); err != nil || s != (snapshot{}) {
		t.Errorf("a new task: %+v, %v", s, err)
	}

	lock, locked, err := f.lock()
	if err != nil || !locked {
		t.Fatalf("lock: %t, %v", locked, err)
	}
	if _, again, err := f.lock(); again || err != nil {
		t.Errorf("lock what is locked: %t, %v", again, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, locked, err = f.lock(); err != nil || !locked {
		t.Fatalf("lock what is free again: %t, %v", locked, err)
	}
	defer lock.Close()

	started := startedRecord{Shim: process.ID{PID: 7, Start: 1 << 60}, At: time.Now().UTC()}
	if err := write(string(f), startedFile, started); err != nil {
		t.Fatal(err)
	}
	if err := f.mark(deletedFile); err != nil {
		t.Fatal(err)
	}
	s, err := f.load()
	if err != nil || !s.deleted || s.started == nil || s.started.Shim != started.Shim || !s.started.At.Equal(started.At) {
		t.Errorf("written %+v, read %+v, %v", started, s, err)
	}

	// What a crash leaves of a directory that is being made or removed is no task.
	if err := os.Mkdir(filepath.Join(parent, ".b.1234"), 0o700); err != nil {
		t.Fatal(err)
	}
	if found, err := directories(parent); err != nil || len(found) != 1 || found[0] != f {
		t.Errorf("directories %v, %v", found, err)
	}
	if err := f.remove(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestDamaged: a record that cannot be read is never taken for one that is not there.
func TestDamaged(t *testing.T) {
	for _, name := range []string{startedFile, runningFile, endFile, deletedFile, readyFile} {
		for _, content := range []string{"", "{", `{"at":1}`, `{"at":"2026-01-01T00:00:00Z"} {}`, `{"unknown":1}`, "null x"} {
			f, err := newDirectory(t.TempDir(), taskRecord{Name: "a", Task: tasks.Task{Command: []string{"x"}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(string(f), name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := f.load(); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s with %q: %v", name, content, err)
			}
		}
	}
}

// TestLargestTask: whatever a body may have in it, what is recorded of it can be read.
func TestLargestTask(t *testing.T) {
	for _, char := range []string{"<", "\u2028", "\xff", "\x7f"} {
		word := strings.Repeat(char, (tasks.MaxBody-100)/len(char))
		body := `{"command":["` + word + `"]}`
		var task tasks.Task
		if err := decode([]byte(body), &task); err != nil {
			t.Fatal(err)
		}
		f, err := newDirectory(t.TempDir(), taskRecord{Name: "a", Task: task})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.task(); err != nil || !same(got.Task, task) {
			t.Errorf("%q: %v", char, err)
		}
	}
}

// TestDirectoryNotSynced: a record that may not survive is no task, now or later.
func TestDirectoryNotSynced(t *testing.T) {
	parent := t.TempDir()
	if err := errors.Join(os.Chown(parent, 65534, 65534), os.Chmod(filepath.Dir(parent), 0o711)); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	done := make(chan struct{})
	go func() { // as a user who may change the directory, and not open it to have it written
		defer close(done)
		runtime.LockOSThread() // and not unlocked: the thread ends here
		if err := errors.Join(os.Chmod(parent, 0o300), unix.Setfsuid(65534)); err != nil {
			t.Error(err)
			return
		}
		if f, err := newDirectory(parent, taskRecord{Name: "a", Task: tasks.Task{Command: []string{"x"}}}); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("the directory is %q, %v", f, err)
		}
	}()
	wait.For(t, "the end of the function", done)
	if found, err := directories(parent); err != nil || len(found) > 0 {
		t.Errorf("directories %q, %v", found, err)
	}
}

func FuzzTask(f *testing.F) {
	for _, seed := range []string{
		`{"command":["x"]}`, `{"command":["sh","-c"],"args":["a"],"env":[{"name":"A","value":"b"}],"workingDir":"/","timeoutSeconds":1,
		"readiness":{"port":80,"path":"/x"},"gracePeriodSeconds":0}`, `{"command":[]}`, `[]`, `null`, `{"command":["\u0000"]}`, `{} {}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var task tasks.Task
		if decode(data, &task) != nil || task.Validate() != nil {
			return
		}
		again, err := json.Marshal(task)
		if err != nil {
			t.Fatal(err)
		}
		var second tasks.Task
		if err := decode(again, &second); err != nil || !same(task, second) {
			t.Fatalf("%s becomes %+v, %v", again, second, err)
		}
		for _, word := range append(task.Command, task.Args...) {
			if bytes.ContainsRune([]byte(word), 0) {
				t.Fatalf("%q cannot be an argument", word)
			}
		}
	})
}

func TestParseCredentials(t *testing.T) {
	status := "Name:\tx\nUmask:\t0027\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t6 9 \nCapInh:\t0000000000000400\n" +
		"CapBnd:\t00000000a80425fb\nNoNewPrivs:\t1\n"
	want := credentials{uid: 2, gid: 6, groups: []int{6, 9}, umask: 0o27, inheritable: 0x400, bounding: 0xa80425fb, noNewPrivs: true}
	if c, err := parseCredentials(status); err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, field := range []string{"Umask", "Uid", "Gid", "CapInh", "CapBnd", "NoNewPrivs"} {
		if c, err := parseCredentials(strings.Replace(status, field, "Other", 1)); err == nil {
			t.Errorf("without %s: %+v", field, c)
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"A=1", "EXECD_ACCESS_TOKEN=x", "B=2=3", "A=4", "junk", "=x"}, []tasks.EnvVar{{Name: "B", Value: ""}, {Name: "C", Value: "="}})
	if want := []string{"A=4", "B=", "C=="}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
