package jupyter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
	"sandbox.internal/runtime/kernel/kerneltest"
)

// newDirect returns a host that uses the installed kernelspecs, and the folder for its temporary files, which must be empty at the end.
func newDirect(t *testing.T, options jupyter.DirectOptions) *jupyter.Direct {
	t.Helper()
	options.Env = append(os.Environ(), "EXECD_SECRET=x")
	options.Logger = zerolog.New(zerolog.NewTestWriter(t))
	options.TempDir = t.TempDir()
	host := jupyter.NewDirect(options)
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		if left, err := os.ReadDir(options.TempDir); err != nil || len(left) != 0 {
			t.Errorf("left in the folder for temporary files: %v, %v", left, err)
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

// processExists reports whether a process runs. One that is dead and that init has not yet waited for does not.
func processExists(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "State:\tZ")
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestDirect(t *testing.T) {
	kerneltest.Run(t, kerneltest.Options{
		Open:      func(t *testing.T) kernel.Host { return newDirect(t, jupyter.DirectOptions{}) },
		Languages: []kerneltest.Language{kerneltest.Python()},
		DeathTime: 2 * time.Second,
	})
}

func TestDirectFirstCellLosesNothing(t *testing.T) {
	host := newDirect(t, jupyter.DirectOptions{})
	k := startPython(t, host)
	if got := run(t, k, `import os; print("first", [v for v in os.environ if v.startswith("EXECD_")], os.getcwd() == os.environ["PWD"])`); got != "first [] True\n" {
		t.Errorf("got %q", got)
	}
}

func TestDirectLargeMessages(t *testing.T) {
	const size = 50 << 20
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	if got := run(t, k, fmt.Sprintf(`print("x" * %d)`, size)); len(got) != size+1 {
		t.Errorf("got %d bytes, want %d", len(got), size+1)
	}
}

// The number stays below the 1000 messages that ipykernel's socket holds for a reader that is behind. Above it a known defect shows:
// with 3000 displays and one other busy process on two cores, 1 run in 8 lost some in the middle, and the cell still completed
// (docs/decisions.md). Whoever raises the kernel's limit raises this number to 3000 again, where it began.
func TestDirectManySmallMessages(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	var numbers []string
	reply, err := k.Execute(t.Context(), `
from IPython.display import display
for i in range(900): display({"text/plain": str(i)}, raw=True)`, func(o kernel.Output) {
		if o.Type == kernel.OutputDisplay {
			numbers = append(numbers, string(o.Data["text/plain"]))
		}
	})
	if err != nil || reply.Error != nil {
		t.Fatal(err, reply.Error)
	}
	for i, number := range numbers {
		if number != strconv.Quote(strconv.Itoa(i)) {
			t.Fatalf("message %d is %s", i, number)
		}
	}
	if len(numbers) != 900 {
		t.Errorf("got %d messages of 900", len(numbers))
	}
}

func TestDirectInterruptReachesACellThatHasJustBegun(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	for range 5 {
		reply, err := k.Execute(t.Context(), "import time\nwhile True: time.sleep(1)", func(o kernel.Output) {
			if o.Type == kernel.OutputCount {
				if err := k.Interrupt(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil || reply.Error == nil || reply.Error.Name != "KeyboardInterrupt" {
			t.Errorf("reply: %+v, %v", reply.Error, err)
		}
	}
	if err := k.Interrupt(t.Context()); err != nil { // nothing runs
		t.Error(err)
	}
	if got := run(t, k, "print(1)"); got != "1\n" {
		t.Errorf("after interrupts: %q", got)
	}
}

func TestDirectAbandonedCellCanBeInterrupted(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := k.Execute(ctx, "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)", func(o kernel.Output) {
		if o.Type == kernel.OutputStdout {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if err := k.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := run(t, k, "print(2)"); got != "2\n" {
		t.Errorf("got %q", got)
	}
}

func TestDirectKernelKilledMidCell(t *testing.T) {
	host := newDirect(t, jupyter.DirectOptions{})
	k := startPython(t, host)
	child, err := strconv.Atoi(strings.TrimSpace(run(t, k, `import subprocess; child = subprocess.Popen(["sleep", "1000"]); print(child.pid)`)))
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	_, err = k.Execute(t.Context(), `import os, sys, time; print("last words", flush=True); time.sleep(0.3); os.kill(os.getpid(), 9)`, func(o kernel.Output) {
		said.WriteString(o.Text)
	})
	if !errors.Is(err, kernel.ErrDead) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	if said.String() != "last words\n" {
		t.Errorf("said: %q", said.String())
	}
	if _, open := <-k.Dead(); open {
		t.Error("Dead says something")
	}
	if _, err := k.Execute(t.Context(), "1", func(kernel.Output) {}); !errors.Is(err, kernel.ErrDead) {
		t.Errorf("execute: %v", err)
	}
	if err := k.Interrupt(t.Context()); !errors.Is(err, kernel.ErrDead) {
		t.Errorf("interrupt: %v", err)
	}
	if err := k.Stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	eventually(t, "the end of the kernel's child", func() bool { return !processExists(child) })
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
	go func() {
		_, err := k.Execute(t.Context(), `
import signal, time
for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)
print("busy", flush=True)
while True: time.sleep(1)`, func(o kernel.Output) {
			if o.Type == kernel.OutputStdout {
				close(busy)
			}
		})
		done <- err
	}()
	<-busy
	if err := k.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if processExists(pid) {
		t.Error("the process is still there")
	}
	if err := <-done; !errors.Is(err, kernel.ErrDead) {
		t.Errorf("the cell: %v", err)
	}
}

func TestDirectStopWithAnEndedContextKills(t *testing.T) {
	k := startPython(t, newDirect(t, jupyter.DirectOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = k.Stop(ctx)
	select {
	case <-k.Dead():
	case <-time.After(time.Second):
		t.Error("the kernel is alive")
	}
}

func TestDirectTwentyKernelsLeaveNothing(t *testing.T) {
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
	for range 10 {
		a, b := startPython(t, host), startPython(t, host)
		stop(a)
		stop(b)
	}
	if after := files(); after > before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

func TestDirectKernelOverTCP(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "kernel.py") // a name that does not say that it is ipykernel
	if err := os.WriteFile(script, []byte("import runpy; runpy.run_module('ipy'+'kernel_launcher', run_name='__main__')"), 0o600); err != nil {
		t.Fatal(err)
	}
	writeSpec(t, dir, "tcp", fmt.Sprintf(`{"argv": ["/usr/bin/python3", %q, "-f", "{connection_file}"], "language": "python", "interrupt_mode": "message"}`, script))
	host := newDirect(t, jupyter.DirectOptions{SearchPath: []string{dir}})
	k, err := host.Start(t.Context(), "tcp", kernel.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, k, "print(4)"); got != "4\n" {
		t.Errorf("got %q", got)
	}
	if err := k.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDirectTriesAgainWhenAPortWasTaken(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "unlucky", `{"argv": ["sh", "-c",
		"mkdir {resource_dir}/once 2>/dev/null && { echo 'Address already in use' >&2; exit 1; }; m=ipy; exec /usr/bin/python3 -m ${m}kernel_launcher -f {connection_file}"
	], "language": "python"}`)
	host := newDirect(t, jupyter.DirectOptions{SearchPath: []string{dir}})
	k, err := host.Start(t.Context(), "unlucky", kernel.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, k, "print(5)"); got != "5\n" {
		t.Errorf("got %q", got)
	}
}

func TestDirectStartFailures(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "exits", `{"argv": ["sh", "-c", "echo early; yes filler | head -n 5000; echo the reason >&2; exit 3"]}`)
	writeSpec(t, dir, "silent", `{"argv": ["sh", "-c", "echo still here; sleep 1000"]}`)
	writeSpec(t, dir, "missing", `{"argv": ["no-such-program-anywhere"]}`)
	host := newDirect(t, jupyter.DirectOptions{SearchPath: []string{dir}, StartTimeout: 300 * time.Millisecond})
	for _, test := range []struct {
		spec  string
		is    error
		says  []string
		never string
	}{
		{"exits", kernel.ErrStart, []string{"exit status 3", "the reason"}, "early"},
		{"silent", kernel.ErrStart, []string{"no answer within 300ms", "still here"}, ""},
		{"missing", kernel.ErrStart, []string{"no-such-program-anywhere"}, ""},
		{"unknown", kernel.ErrNoSpec, []string{`"unknown"`, "exits, missing, silent"}, ""},
	} {
		t.Run(test.spec, func(t *testing.T) {
			_, err := host.Start(t.Context(), test.spec, kernel.StartOptions{})
			if !errors.Is(err, test.is) {
				t.Fatalf("got %v", err)
			}
			for _, text := range test.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in: %v", text, err)
				}
			}
			if test.never != "" && strings.Contains(err.Error(), test.never) {
				t.Errorf("%q is in: %v", test.never, err)
			}
		})
	}

	t.Run("directory", func(t *testing.T) {
		_, err := host.Start(t.Context(), "silent", kernel.StartOptions{Dir: "/no/such/folder"})
		if !errors.Is(err, kernel.ErrStart) || !strings.Contains(err.Error(), "/no/such/folder") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := host.Start(ctx, "silent", kernel.StartOptions{}); !errors.Is(err, kernel.ErrStart) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestDirectCloseEndsStartsAndKernels(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "silent", `{"argv": ["sleep", "1000"]}`)
	host := newDirect(t, jupyter.DirectOptions{SearchPath: []string{dir, "/usr/share/jupyter/kernels"}})
	k := startPython(t, host)
	failed := make(chan error, 1)
	go func() {
		_, err := host.Start(t.Context(), "silent", kernel.StartOptions{})
		failed <- err
	}()
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	<-k.Dead()
	if err := <-failed; !errors.Is(err, kernel.ErrStart) && !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("the start under way: %v", err)
	}
	if _, err := host.Start(t.Context(), "python3", kernel.StartOptions{}); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("a start after the end: %v", err)
	}
}
