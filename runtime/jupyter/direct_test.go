package jupyter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
	"sandbox.internal/runtime/kernel/kerneltest"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// newDirect returns a host that uses the installed kernelspecs, and the directory for its temporary
// files, which must be empty at the end.
func newDirect(t *testing.T, options jupyter.DirectOptions) *jupyter.Direct {
	t.Helper()
	options.Env = append(os.Environ(), "EXECD_SECRET=x")
	options.Logger = zerolog.New(zerolog.NewTestWriter(t))
	options.TempDir = t.TempDir()
	if options.StartTimeout == 0 { // a kernel starts in a second, and in more than a minute where others use the processors
		options.StartTimeout = wait.Patience()
	}
	host := jupyter.NewDirect(options)
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		if left, err := os.ReadDir(options.TempDir); err != nil || len(left) != 0 {
			t.Errorf("left in the directory for temporary files: %v, %v", left, err)
		}
	})
	return host
}

func startPython(t *testing.T, host *jupyter.Direct) kernel.Kernel {
	t.Helper()
	k, err := host.Start(t.Context(), "python3", kernel.StartOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// run executes a cell that must end well, and returns its stdout.
func run(t *testing.T, k kernel.Kernel, code string) string {
	t.Helper()
	var stdout strings.Builder
	reply, err := k.Execute(t.Context(), code, func(o kernel.Output) {
		if o.Type == kernel.OutputStdout {
			stdout.WriteString(o.Text)
		}
	})
	if err != nil || reply.Error != nil {
		t.Fatalf("%s: %v, %+v", code, err, reply.Error)
	}
	return stdout.String()
}

// processExists reports whether a process runs. One that has ended and that init has not yet waited
// for does not.
func processExists(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "State:\tZ")
}

func TestDirect(t *testing.T) {
	t.Parallel()
	kerneltest.Run(t, kerneltest.Options{
		Open:      func(t *testing.T) kernel.Host { return newDirect(t, jupyter.DirectOptions{}) },
		Languages: []kerneltest.Language{kerneltest.Python()},
		ExitTime:  wait.Patience(),
	})
}

func TestDirectSweepsUnusedDirectories(t *testing.T) {
	dir := t.TempDir()
	options := jupyter.DirectOptions{Env: os.Environ(), TempDir: dir, Logger: zerolog.Nop()}
	first := jupyter.NewDirect(options)
	k := startPython(t, first)
	// As an execd leaves it behind that was killed.
	left := filepath.Join(dir, "execd-kernel-1234")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "connection.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// What any user of the sandbox can put there, and what must not be waited for.
	if err := syscall.Mkfifo(filepath.Join(dir, "execd-kernel-fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "execd-kernels")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	second := jupyter.NewDirect(options)
	defer second.Close()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unused directory: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("the directory of another process: %v", err)
	}
	if got := run(t, k,
		"import os; print(os.path.exists(get_ipython().kernel.config.IPKernelApp.connection_file or '/'))"); got != "True\n" {
		t.Errorf("the kernel that runs: %q", got)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("in the directory: %v, %v", entries, err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
}

// TestDirectSweepsDeepDirectories: any user of the sandbox can make one of such a name.
func TestDirectSweepsDeepDirectories(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "execd-kernel-1234")
	if err := os.MkdirAll(filepath.Join(deep, strings.Repeat("d/", 1000)), 0o700); err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := syscall.Rlimit{Cur: uint64(len(open)) + 80, Max: before.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	host := jupyter.NewDirect(jupyter.DirectOptions{TempDir: dir, Logger: zerolog.Nop()})
	defer host.Close()
	if _, err := os.Stat(deep); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the deep directory: %v", err)
	}
}

func TestDirectInterruptReachesACellThatHasJustBegun(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	for i := range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		reply, err := k.Execute(ctx, "import time\nwhile True: time.sleep(1)",
			func(o kernel.Output) {
				if o.Type == kernel.OutputCount {
					if _, err := k.Interrupt(ctx); err != nil {
						t.Error(err)
					}
				}
			})
		if err != nil || reply.Error == nil || reply.Error.Name != "KeyboardInterrupt" {
			t.Fatalf("cell %d: %+v, %v", i, reply.Error, err)
		}
	}
	if _, err := k.Interrupt(t.Context()); err != nil { // nothing runs
		t.Error(err)
	}
	if got := run(t, k, "print(1)"); got != "1\n" {
		t.Errorf("after interrupts: %q", got)
	}
}

// TestDirectInterruptAtTheEndOfACell: a signal that comes when IPython has run the cell and is on
// its way back to ipykernel ends the cell with a reply.
func TestDirectInterruptAtTheEndOfACell(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	for _, event := range []string{"call", "return"} { // of IPython's function that triggers hooks
		t.Run(event, func(t *testing.T) {
			began := time.Now()
			reply, err := k.Execute(t.Context(), `
import signal, sys
def interrupt(frame, event, arg):
    if event == "`+event+`" and frame.f_code.co_name == "trigger":
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
print("ran")
sys.setprofile(interrupt)`, func(kernel.Output) {})
			if err != nil || reply.Error == nil || reply.Error.Name != "KeyboardInterrupt" {
				t.Errorf("%+v, %v", reply.Error, err)
			}
			// after 5 s it would be given up
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("the reply took %s", took)
			}
			if got := run(t, k, "print(1)"); got != "1\n" {
				t.Errorf("the next cell: %q", got)
			}
		})
	}
}

func TestDirectAbandonedCellCanBeInterrupted(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := k.Execute(ctx, "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)",
		func(o kernel.Output) {
			if o.Type == kernel.OutputStdout {
				cancel()
			}
		})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if _, err := k.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := run(t, k, "print(2)"); got != "2\n" {
		t.Errorf("got %q", got)
	}
}

func TestDirectKernelKilledMidCell(t *testing.T) {
	host := newDirect(t, jupyter.DirectOptions{})
	k := startPython(t, host)
	child, err := strconv.Atoi(strings.TrimSpace(run(t, k,
		`import subprocess; child = subprocess.Popen(["sleep", "1000"]); print(child.pid)`)))
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	_, err = k.Execute(t.Context(),
		`import os, sys, time; print("last words", flush=True); time.sleep(0.3); os.kill(os.getpid(), 9)`, func(o kernel.Output) {
			said.WriteString(o.Text)
		})
	if !errors.Is(err, kernel.ErrEnded) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	if said.String() != "last words\n" {
		t.Errorf("said: %q", said.String())
	}
	wait.For(t, "the end of the kernel", k.Done())
	if _, err := k.Execute(t.Context(), "1", func(kernel.Output) {}); !errors.Is(err,
		kernel.ErrEnded) {
		t.Errorf("execute: %v", err)
	}
	if _, err := k.Interrupt(t.Context()); !errors.Is(err, kernel.ErrEnded) {
		t.Errorf("interrupt: %v", err)
	}
	if err := k.Stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	wait.Until(t, "the end of the kernel's child", func() bool { return !processExists(child) })
	if got := run(t, startPython(t, host), "print(3)"); got != "3\n" {
		t.Errorf("the next kernel: %q", got)
	}
}

func TestDirectStopEndsABusyKernelThatIgnoresSignals(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	pid, err := strconv.Atoi(strings.TrimSpace(run(t, k, "import os; print(os.getpid())")))
	if err != nil {
		t.Fatal(err)
	}
	busy, done := make(chan struct{}), make(chan error, 1)
	report := sync.OnceFunc(func() { close(busy) }) // a line may come in more than one piece
	go func() {
		_, err := k.Execute(t.Context(), `
import signal, time
for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)
print("busy", flush=True)
while True: time.sleep(1)`, func(o kernel.Output) {
			if o.Type == kernel.OutputStdout {
				report()
			}
		})
		done <- err
	}()
	wait.For(t, "the cell to be busy", busy)
	if err := k.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if processExists(pid) {
		t.Error("the process is still there")
	}
	if err := wait.For(t, "the end of the execution", done); !errors.Is(err, kernel.ErrEnded) {
		t.Errorf("the cell: %v", err)
	}
}

func TestDirectStopWithAnEndedContextKills(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = k.Stop(ctx)
	wait.For(t, "the end of the kernel", k.Done())
}

func TestDirectKernelsLeaveNothing(t *testing.T) {
	host := newDirect(t, jupyter.DirectOptions{})
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	stop := func(k kernel.Kernel) {
		pid, err := strconv.Atoi(strings.TrimSpace(run(t, k, "import os; print(os.getpid())")))
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			t.Errorf("process %d is left, or its zombie is", pid)
		}
	}
	stop(startPython(t, host)) // opens what stays open, such as the poller
	before := files()
	for range random.Long(3, 10) { // one file that stays is one too many
		a, b := startPython(t, host), startPython(t, host)
		stop(a)
		stop(b)
	}
	if after := files(); after > before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

// TestDirectInterruptAtTheFirstInstructionOfACell: since Python 3.11 that is in line 0, whose
// traceback IPython cannot format.
func TestDirectInterruptAtTheFirstInstructionOfACell(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	run(t, k, `
import signal, sys
def interrupt(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "<module>" and "ipykernel" in frame.f_code.co_filename:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
sys.setprofile(interrupt)`)
	reply, err := k.Execute(t.Context(), "print('ran')", func(o kernel.Output) {
		if o.Type == kernel.OutputStdout || o.Type == kernel.OutputStderr {
			t.Errorf("the cell has printed %+v", o)
		}
	})
	if err != nil || reply.Error == nil || reply.Error.Name != "KeyboardInterrupt" {
		t.Errorf("%+v, %v", reply.Error, err)
	}
}
