// Package taskexecutor is the task-executor: it runs tasks in the main container of its pod, and
// survives its own end without losing or repeating one. docs/kubernetes-resources.md describes what
// that takes; package internal/tasks is its interface.
//
// # Who runs what
//
//	task-executor-init            first process of the container; starts the executor again
//	├── task-executor             this package's Executor: HTTP, records, decisions
//	├── task-executor shim        one for each task: Shim; when the executor ends it stays
//	│   └── the task's process    first Enter, then the task's program
//	└── ...
//
// The executor decides what is to be, the shim what is. They share nothing but files (record.go),
// of which each side writes its own, and two signals. So a new executor has the state of the last
// one as soon as it has read them.
package taskexecutor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
)

// Failpoints of the executor.
const (
	LoadedFailpoint      = "task.loaded"       // it has read what is recorded, and does not answer yet
	RecordedFailpoint    = "task.recorded"     // a new task is recorded, and its client has no answer
	ShimStartedFailpoint = "task.shim-started" // the shim of a task was started, and may have recorded nothing yet
	EndedFailpoint       = "task.ended"        // the end of a task is recorded, and no status says so yet
)

// maxTasks bounds how many tasks an executor keeps, ended ones that have not been deleted included.
const maxTasks = 256

// Options say how an executor works.
type Options struct {
	// StateDir is the directory for what must survive the executor. It should survive its container
	// as well.
	StateDir string
	// MainMarker is the variable, NAME=VALUE, by which the main container's processes are known.
	MainMarker string
	// Init is the process id of the container's first process, to which processes fall whose shim
	// has ended; 0 when there is none.
	Init int
	// Logger reports what happens to tasks.
	Logger zerolog.Logger
}

// Executor runs tasks. Methods may be called concurrently.
type Executor struct {
	Options
	exe    string
	lock   *os.File // of the state directory, until the process ends or Run returns
	socket *net.UnixConn

	// changing is held by whoever adds a task or asks for the end of some; it may wait for a disk.
	changing sync.Mutex

	mu        sync.Mutex
	running   bool // between the beginning of Run and its end
	resetting bool
	resets    int // how many have begun
	entries   map[string]*entry
	version   int64
	changed   chan struct{} // closed and replaced with every new version

	stopping   chan struct{} // closed when tasks are to end because the executor does
	background sync.WaitGroup
}

// entry is one task. Its fields are guarded by the executor's mutex, but for those that never
// change.
type entry struct {
	directory directory
	name      string
	task      tasks.Task
	damage    error         // why taskFile cannot be read
	wakeup    chan struct{} // one element: the directory or what is asked for has changed
	gone      chan struct{} // closed when the task is forgotten

	status   tasks.Status
	deleting bool
	kill     bool // without grace
}

func newEntry(f directory, name string, task tasks.Task) *entry {
	return &entry{
		directory: f, name: name, task: task, wakeup: make(chan struct{}, 1), gone: make(chan struct{}),
		status: tasks.Status{Name: name, State: tasks.Pending, Reason: tasks.ReasonStarting},
	}
}

func (t *entry) wake() {
	select {
	case t.wakeup <- struct{}{}:
	default:
	}
}

// New takes the state directory and reads what is recorded there. Tasks are not touched before Run.
// It fails when this process lacks what it needs to run tasks, and when another executor uses the
// directory.
func New(o Options) (_ *Executor, err error) {
	if err := checkSystem(); err != nil {
		return nil, err
	}
	e := &Executor{
		Options: o, stopping: make(chan struct{}), entries: make(map[string]*entry), changed: make(chan struct{}),
		// Later than every version of an executor before.
		version: time.Now().UnixMicro(),
	}
	if e.exe, err = os.Executable(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(e.tasksDir(), 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(o.StateDir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	lock, locked, err := tryLock(lock)
	if err == nil && !locked {
		err = errors.New("another task-executor uses it")
	}
	if err != nil {
		return nil, fmt.Errorf("lock the state directory %s: %w", o.StateDir, err)
	}
	e.lock = lock
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := e.load(); err != nil {
		return nil, fmt.Errorf("read the state directory: %w", err)
	}
	failpoint.Hit(LoadedFailpoint)
	path := socketPath(o.StateDir)
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	e.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	return e, err
}

func (e *Executor) tasksDir() string { return filepath.Join(e.StateDir, "tasks") }

func (e *Executor) load() error {
	found, err := directories(e.tasksDir())
	if err != nil {
		return err
	}
	for _, f := range found {
		record, err := f.task()
		if err == nil && record.Name != f.name() {
			err = fmt.Errorf("record names task %q", record.Name)
		}
		t := newEntry(f, f.name(), record.Task)
		t.damage = err
		snapshot, err := f.load()
		if err == nil {
			t.deleting = snapshot.deleted
			t.status = e.statusOf(t, snapshot, nil)
		}
		if other := e.entries[t.name]; other != nil {
			// One of them could be neither recorded nor removed (newDirectory). What may run is the
			// task.
			if snapshot.started == nil {
				t, other = other, t
			}
			discarded, err := other.directory.discard()
			if err == nil && !discarded {
				t, other = other, t
				_, err = other.directory.discard()
			}
			if err != nil {
				return fmt.Errorf("remove the second record of task %s: %w", other.name, err)
			}
		}
		e.entries[t.name] = t
	}
	return nil
}

// checkSystem finds out at the start what would otherwise make every task fail.
func checkSystem() error {
	own, err := process.Identify(os.Getpid())
	if err != nil {
		return err
	}
	pidfd, err := own.Open()
	if err != nil {
		return fmt.Errorf("descriptors of processes do not work, which need Linux 5.10 or later: %w", err)
	}
	pidfd.Close()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	var missing []string
	for _, needed := range []struct {
		bit  int
		name string
	}{
		{unix.CAP_SYS_PTRACE, "SYS_PTRACE"}, {unix.CAP_SYS_CHROOT, "SYS_CHROOT"}, {unix.CAP_SETPCAP, "SETPCAP"},
		{unix.CAP_SETUID, "SETUID"}, {unix.CAP_SETGID, "SETGID"}, {unix.CAP_KILL, "KILL"},
	} {
		if data[needed.bit/32].Effective&(1<<(needed.bit%32)) == 0 {
			missing = append(missing, needed.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("capabilities are missing: %s; run the container as root and add SYS_PTRACE (the others are among the default ones) "+
			"to its securityContext.capabilities", strings.Join(missing, ", "))
	}
	return nil
}

// Run calls ready and looks after the tasks until ctx ends. Then it ends them, each with its grace,
// and returns. The executor cannot be used again.
func (e *Executor) Run(ctx context.Context, ready func()) error {
	e.sweep()
	var listener sync.WaitGroup
	listener.Go(e.listen)
	e.mu.Lock()
	e.running = true
	for _, t := range e.entries {
		e.background.Go(func() { e.manage(t) })
	}
	known := len(e.entries)
	e.mu.Unlock()
	e.Logger.Info().Int("tasks", known).Msg("the task-executor looks after its tasks")
	ready()

	<-ctx.Done()
	// With this lock held, no task is in the middle of being added.
	e.changing.Lock()
	e.mu.Lock()
	e.running = false
	close(e.stopping)
	e.mu.Unlock()
	e.changing.Unlock()
	e.background.Wait()
	err := e.socket.Close()
	listener.Wait()
	return errors.Join(err, e.lock.Close())
}

// listen receives from shims that something has changed.
func (e *Executor) listen() {
	for buffer := make([]byte, 512); ; {
		n, err := e.socket.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		e.mu.Lock()
		if t := e.entries[directory(buffer[:n]).name()]; t != nil {
			t.wake()
		}
		e.mu.Unlock()
	}
}

// Put makes sure that the task exists. It returns when the task is recorded for good; it is
// started, once, after that.
func (e *Executor) Put(name string, task tasks.Task) (tasks.Status, error) {
	if err := errors.Join(tasks.CheckName(name), task.Validate()); err != nil {
		return tasks.Status{}, refuse(tasks.CodeInvalidRequest, "%v", err)
	}
	e.mu.Lock()
	resetting, resets := e.resetting, e.resets
	e.mu.Unlock()
	if resetting {
		return tasks.Status{}, refuse(tasks.CodeResetting, "a reset is going on")
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	e.mu.Lock()
	t, count, running := e.entries[name], len(e.entries), e.running
	resetting = e.resets != resets // it waited for the reset, and is of the time before
	var status tasks.Status
	if t != nil {
		status = t.reported()
	}
	e.mu.Unlock()
	switch {
	case !running:
		return tasks.Status{}, refuse(tasks.CodeStopping, "the task-executor is about to end")
	case resetting:
		return tasks.Status{}, refuse(tasks.CodeResetting, "a reset has begun meanwhile")
	case t != nil && status.Deleting:
		return tasks.Status{}, refuse(tasks.CodeTaskDeleting, "task %s is still ending", name)
	case t != nil && !same(t.task, task):
		return tasks.Status{}, refuse(tasks.CodeTaskDiffers, "there is another task %s: delete it first, or choose another name", name)
	case t != nil:
		return status, nil
	case count >= maxTasks:
		return tasks.Status{}, refuse(tasks.CodeTooManyTasks, "there are %d tasks already: delete those that have ended", count)
	}
	f, err := newDirectory(e.tasksDir(), taskRecord{Name: name, Task: task})
	if err != nil {
		return tasks.Status{}, fmt.Errorf("record task %s: %w", name, err)
	}
	failpoint.Hit(RecordedFailpoint)
	t = newEntry(f, name, task)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.entries[name] = t
	e.bumpVersion()
	e.background.Go(func() { e.manage(t) })
	return t.status, nil
}

// same compares tasks as they are recorded.
func same(a, b tasks.Task) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// Get returns the status of a task.
func (e *Executor) Get(name string) (tasks.Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.entries[name]; t != nil {
		return t.reported(), nil
	}
	return tasks.Status{}, refuse(tasks.CodeNotFound, "there is no task %q", name)
}

// List returns the status of all tasks, and a channel that is closed when it is not the truth any
// more.
func (e *Executor) List() (tasks.List, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := tasks.List{Version: e.version, Items: make([]tasks.Status, 0, len(e.entries))}
	for _, name := range slices.Sorted(maps.Keys(e.entries)) {
		list.Items = append(list.Items, e.entries[name].reported())
	}
	return list, e.changed
}

// Delete asks for the end of a task. The channel is closed when the task is forgotten; it is nil
// when there is none.
func (e *Executor) Delete(name string) (<-chan struct{}, error) {
	e.changing.Lock()
	defer e.changing.Unlock()
	e.mu.Lock()
	t := e.entries[name]
	e.mu.Unlock()
	if t == nil {
		return nil, nil
	}
	return t.gone, e.ask(t, false)
}

// ask records that a task is to end, so that it will whatever happens, and signals it. The caller
// holds changing.
func (e *Executor) ask(t *entry, kill bool) error {
	e.mu.Lock()
	asked := t.deleting
	e.mu.Unlock()
	if !asked {
		if err := t.directory.mark(deletedFile); err != nil {
			select {
			case <-t.gone:
				return nil
			default:
			}
			return fmt.Errorf("record the end of task %s: %w", t.name, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !asked {
		t.deleting = true
		e.bumpVersion()
	}
	t.kill = t.kill || kill
	t.wake()
	return nil
}

// reported is the status with what was asked for. The caller holds the mutex.
func (t *entry) reported() tasks.Status {
	status := t.status
	status.Deleting = t.deleting
	return status
}

// bumpVersion begins a new version, and notifies those that wait for it. The caller holds the
// mutex.
func (e *Executor) bumpVersion() {
	e.version++
	close(e.changed)
	e.changed = make(chan struct{})
}

// refuse makes the error of a request that cannot be fulfilled.
func refuse(code, format string, args ...any) error {
	return &tasks.Error{Status: statuses[code], Code: code, Message: fmt.Sprintf(format, args...)}
}
