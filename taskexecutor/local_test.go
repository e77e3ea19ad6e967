package taskexecutor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/test/wait"
)

// local is an executor of the tests' process, whose shims are the test binary. Its main container
// is a process in a mount namespace of its own, which sees the files of the test.
type local struct {
	*Executor
	t    *testing.T
	main int // process id
	log  string
	stop func() // ends the executor; its tasks get their grace
}

// startLocal starts an executor with its records in a directory. playing is what the main container
// plays: nothing, or TitledMain.
func startLocal(t *testing.T, dir string, playing ...string) *local {
	t.Helper()
	l := &local{t: t, log: filepath.Join(t.TempDir(), "log")}
	log, err := os.OpenFile(l.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = log // which shims inherit
	t.Cleanup(func() {
		os.Stderr = stderr
		log.Close()
		if t.Failed() {
			t.Logf("the log:\n%s", l.said())
		}
	})
	marker := "SANDBOX_MAIN=" + uuid.NewString()
	l.main = startMain(t, marker, playing...)
	l.Executor, err = New(Options{StateDir: dir, MainMarker: marker, Logger: zerolog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- l.Run(ctx, func() { close(ready) }) }()
	wait.For(t, "the start of the executor", ready)
	stopped := false
	l.stop = func() {
		cancel()
		if stopped {
			return
		}
		stopped = true
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(l.stop)
	return l
}

// startMain starts the process of a main container and returns its id.
func startMain(t *testing.T, marker string, playing ...string) int {
	t.Helper()
	command := exec.Command("sh", "-c", "echo; exec sleep infinity")
	if len(playing) > 0 {
		command = exec.Command("/proc/self/exe", playing...)
	}
	command.Env = []string{"PATH=" + os.Getenv("PATH"), marker, "FROM=main"}
	command.Dir = t.TempDir()
	command.Stderr = os.Stderr
	// A group, because it may have a child.
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Setpgid: true}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatalf("these tests need root: %v", err)
	}
	t.Cleanup(func() {
		_ = process.SignalGroup(command.Process.Pid, unix.SIGKILL)
		_ = command.Wait()
	})
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the main container does not start: %v", err)
	}
	return command.Process.Pid
}

func (l *local) said() string {
	data, err := os.ReadFile(l.log)
	if err != nil {
		l.t.Error(err)
	}
	return string(data)
}

// says waits until the log has a text.
func (l *local) says(text string) {
	l.t.Helper()
	wait.Until(l.t, "the log has "+text, func() bool { return strings.Contains(l.said(), text) })
}

// put makes a task that needs no grace, and returns its directory.
func (l *local) put(name, script string) directory {
	l.t.Helper()
	none := int64(0)
	return l.putTask(name, tasks.Task{Command: []string{"sh", "-c", script}, GracePeriodSeconds: &none})
}

func (l *local) putTask(name string, task tasks.Task) directory {
	l.t.Helper()
	if _, err := l.Put(name, task); err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries[name].directory
}

// until waits for a status of a task.
func (l *local) until(name, what string, holds func(tasks.Status) bool) tasks.Status {
	l.t.Helper()
	var status tasks.Status
	wait.Until(l.t, name+" "+what, func() bool {
		var err error
		if status, err = l.Get(name); err != nil {
			l.t.Fatal(err)
		}
		return holds(status)
	})
	return status
}

func (l *local) is(name string, state tasks.State) tasks.Status {
	l.t.Helper()
	return l.until(name, "is "+string(state), func(s tasks.Status) bool { return s.State == state })
}

// nudge has the executor look at a task's records.
func (l *local) nudge(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[name].wake()
}

// smallDisk mounts a file system for a test. It needs root, like the executor.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("this test mounts a small file system, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all but a number of the files that a file system has room for, and returns what gives
// more of them back.
func fill(t *testing.T, dir string, spare int) (free func(n int)) {
	t.Helper()
	var fillers []string
	free = func(n int) {
		t.Helper()
		for ; n > 0; n-- {
			if err := os.Remove(fillers[len(fillers)-1]); err != nil {
				t.Fatal(err)
			}
			fillers = fillers[:len(fillers)-1]
		}
	}
	for {
		name := filepath.Join(dir, fmt.Sprintf("filler-%d", len(fillers)))
		err := os.WriteFile(name, nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fillers = append(fillers, name)
	}
	free(spare)
	return free
}

// What a main container may play.
const (
	// TitledMain has overwritten its environment to show a title, and has a child with the marker.
	TitledMain = "play-titled-main"
	// HugeMain calls a large piece of its memory its environment, which begins with the marker.
	HugeMain = "play-huge-main"
)

// PlayMain plays a main container for as long as the test wants, and writes a line when it does.
func PlayMain(args []string) int {
	var err error
	switch args[0] {
	case TitledMain:
		err = overwriteEnviron()
	case HugeMain:
		err = enlargeEnviron([]byte(args[1] + "\x00"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println()
	time.Sleep(time.Hour) // until the test kills the program
	return 0
}

func overwriteEnviron() error {
	child := exec.Command("sleep", "infinity")
	child.Env, child.Dir = os.Environ(), "/"
	if err := child.Start(); err != nil {
		return err
	}
	fields, err := statFields()
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = memory.WriteAt(make([]byte, fields[51]-fields[50]), int64(fields[50]))
	return err
}

// memoryMap is struct prctl_mm_map of Linux.
type memoryMap struct {
	startCode, endCode, startData, endData, startBrk, brk, startStack, argStart, argEnd, envStart, envEnd uint64

	auxv     uintptr
	auxvSize uint32
	exe      int32
}

func enlargeEnviron(content []byte) error {
	memory, err := unix.Mmap(-1, 0, 16<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	copy(memory, content)
	fields, err := statFields()
	if err != nil {
		return err
	}
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	m := memoryMap{
		startCode: fields[26], endCode: fields[27], startData: fields[45], endData: fields[46], startBrk: fields[47], brk: uint64(brk),
		startStack: fields[28], argStart: fields[48], argEnd: fields[49], envStart: start, envEnd: start + uint64(len(memory)), exe: -1,
	}
	return unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0)
}

// statFields returns the fields of /proc/self/stat by the numbers that proc_pid_stat(5) gives them;
// those that are no numbers are 0.
func statFields() ([]uint64, error) {
	data, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return nil, err
	}
	text := string(data)
	fields := make([]uint64, 3) // 0 is none, and what is cut off begins with the third
	for _, word := range strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) {
		n, _ := strconv.ParseUint(word, 10, 64)
		fields = append(fields, n)
	}
	return fields, nil
}
