package kerneltest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/runtime/kernel"
	"sandbox.internal/test/wait"
)

func (s suite) testVariablesPersist(t *testing.T) {
	k := s.start(t)
	first := run(t, k, s.language.SetX)
	second := run(t, k, s.language.PrintX)
	if text := second.text(kernel.OutputStdout); text != "41" {
		t.Errorf("x is %q in the next cell, want 41", text)
	}
	if first.reply.Count < 1 || second.reply.Count != first.reply.Count+1 {
		t.Errorf("the cells have the numbers %d and %d", first.reply.Count, second.reply.Count)
	}
}

// testPrepare: what is no cell has the same variables as cells, and says how it ended.
func (s suite) testPrepare(t *testing.T) {
	k := s.start(t)
	if reply, err := k.Prepare(wait.Context(t), s.language.SetX); err != nil || reply.Error != nil {
		t.Fatalf("%+v, %v", reply, err)
	}
	if text := run(t, k, s.language.PrintX).text(kernel.OutputStdout); text != "41" {
		t.Errorf("x is %q in the next cell, want 41", text)
	}
}

func (s suite) testKernelsAreIsolated(t *testing.T) {
	one, other := s.start(t), s.start(t)
	run(t, one, s.language.SetX)
	if text := run(t, other, s.language.PrintX).text(kernel.OutputStdout); strings.Contains(text, "41") {
		t.Errorf("a variable of one kernel is seen in another: %q", text)
	}
	if text := run(t, one, s.language.PrintX).text(kernel.OutputStdout); text != "41" {
		t.Errorf("x is %q, want 41", text)
	}
}

func (s suite) testManyLines(t *testing.T) {
	text := run(t, s.start(t), s.language.ManyLines).text(kernel.OutputStdout)
	const count = 100_000
	var want strings.Builder
	for i := range count {
		want.WriteString(strconv.Itoa(i))
		want.WriteByte('\n')
	}
	if text != want.String() {
		t.Errorf("%d bytes in %d lines, want %d in %d, in order", len(text), strings.Count(text, "\n"), want.Len(), count)
	}
}

// endless runs the endless cell until it has begun. The channel gets what Execute returned.
func (s suite) endless(t *testing.T, ctx context.Context, k kernel.Kernel) <-chan ended {
	t.Helper()
	begun, end := make(chan struct{}), make(chan ended, 1)
	go func() {
		printed := false
		reply, err := k.Execute(ctx, s.language.Endless, func(o kernel.Output) {
			if o.Type == kernel.OutputStdout && !printed {
				printed = true
				close(begun)
			}
		})
		end <- ended{reply, err}
	}()
	select {
	case <-begun:
	case early := <-end:
		t.Fatalf("the endless cell ended: %+v", early)
	case <-time.After(wait.Patience()):
		t.Fatal("the endless cell does not begin")
	}
	return end
}

type ended struct {
	reply kernel.Reply
	err   error
}

// await returns what Execute returned, which must come within the time.
func await(t *testing.T, end <-chan ended, limit time.Duration) ended {
	t.Helper()
	select {
	case e := <-end:
		return e
	case <-time.After(limit):
		t.Fatalf("Execute has not returned after %v", limit)
		panic("unreachable")
	}
}

func (s suite) testInterrupt(t *testing.T) {
	if s.language.NoInterrupt {
		return
	}
	k := s.start(t)
	if running, err := k.Interrupt(wait.Context(t)); running || err != nil {
		t.Errorf("interrupting an idle kernel: a cell runs: %t, %v", running, err)
	}
	run(t, k, s.language.SetX)
	if _, err := k.Interrupt(wait.Context(t)); err != nil {
		t.Errorf("interrupting after a cell: %v", err)
	}
	for range 2 {
		end := s.endless(t, t.Context(), k)
		if running, err := k.Interrupt(wait.Context(t)); !running || err != nil {
			t.Fatalf("interrupting a cell: it runs: %t, %v", running, err)
		}
		s.checkInterrupted(t, await(t, end, wait.Patience()))
		if text := run(t, k, s.language.PrintX).text(kernel.OutputStdout); text != "41" {
			t.Errorf("after the interrupt x is %q, want 41", text)
		}
	}
}

// testInterruptAtOnce interrupts a cell that may not have begun: it must not get away.
func (s suite) testInterruptAtOnce(t *testing.T) {
	if s.language.NoInterrupt {
		return
	}
	k := s.start(t)
	end := make(chan ended, 1)
	called := make(chan struct{})
	go func() {
		close(called)
		reply, err := k.Execute(t.Context(), s.language.Endless, func(kernel.Output) {})
		end <- ended{reply, err}
	}()
	<-called
	// An Interrupt before Execute finds nothing to do; so it is repeated until it has.
	var interrupted ended
	wait.Until(t, "the interrupted cell ends", func() bool {
		if _, err := k.Interrupt(wait.Context(t)); err != nil {
			t.Fatal(err)
		}
		select {
		case interrupted = <-end:
			return true
		case <-time.After(time.Second): // until the next Interrupt
			return false
		}
	})
	s.checkInterrupted(t, interrupted)
	run(t, k, s.language.SetX)
}

func (s suite) checkInterrupted(t *testing.T, e ended) {
	t.Helper()
	if e.err != nil {
		t.Fatalf("the interrupted cell: %v", e.err)
	}
	if raised := e.reply.Error; raised == nil || (s.language.InterruptName != "" && raised.Name != s.language.InterruptName) {
		t.Errorf("the interrupted cell raised %+v, want %s", raised, s.language.InterruptName)
	}
}

func (s suite) testCancelledExecute(t *testing.T) {
	k := s.start(t)
	run(t, k, s.language.SetX)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := s.endless(t, ctx, k)
	cancel()
	if e := await(t, end, wait.Patience()); !errors.Is(e.err, context.Canceled) {
		t.Errorf("Execute whose context ended: %+v", e)
	}
	select {
	case <-k.Done():
		t.Fatal("the kernel died with the context of a cell")
	default:
	}
	if s.language.NoInterrupt {
		return
	}
	if _, err := k.Interrupt(wait.Context(t)); err != nil {
		t.Fatal(err)
	}
	if text := run(t, k, s.language.PrintX).text(kernel.OutputStdout); text != "41" {
		t.Errorf("in the cell after that x is %q, want 41 and nothing of the other cell", text)
	}
}

func (s suite) testKilledKernel(t *testing.T) {
	for name, busy := range map[string]bool{"busy": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			k := s.start(t)
			pid := s.process(t, k)
			var end <-chan ended
			if busy {
				end = s.endless(t, t.Context(), k)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if busy {
				if e := await(t, end, s.exitTime); !errors.Is(e.err, kernel.ErrEnded) {
					t.Errorf("the cell of a killed kernel: %+v, want ErrEnded", e)
				}
			}
			s.checkEnded(t, k)
			awaitEnd(t, pid)
		})
	}
}

func (s suite) checkEnded(t *testing.T, k kernel.Kernel) {
	t.Helper()
	select {
	case <-k.Done():
	case <-time.After(s.exitTime):
		t.Fatalf("the kernel's death is not known after %v", s.exitTime)
	}
	if _, err := k.Execute(wait.Context(t), s.language.SetX, func(kernel.Output) {}); !errors.Is(err, kernel.ErrEnded) {
		t.Errorf("Execute of an ended kernel: %v, want ErrEnded", err)
	}
	if _, err := k.Interrupt(wait.Context(t)); !errors.Is(err, kernel.ErrEnded) {
		t.Errorf("Interrupt of an ended kernel: %v, want ErrEnded", err)
	}
	if err := k.Stop(wait.Context(t)); err != nil {
		t.Errorf("Stop of an ended kernel: %v", err)
	}
}

func (s suite) testStop(t *testing.T) {
	for name, busy := range map[string]bool{"busy": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			k := s.start(t)
			pid := s.process(t, k)
			var end <-chan ended
			if busy {
				end = s.endless(t, t.Context(), k)
			}
			if err := k.Stop(wait.Context(t)); err != nil {
				t.Fatal(err)
			}
			if runs(pid) {
				t.Errorf("process %d of the stopped kernel still runs", pid)
			}
			// An endless cell may see an interrupt before its kernel ends.
			if busy {
				if e := await(t, end, s.exitTime); !errors.Is(e.err, kernel.ErrEnded) && e.reply.Error == nil {
					t.Errorf("the cell of a stopped kernel: %+v", e)
				}
			}
			s.checkEnded(t, k)
		})
	}
}

func (s suite) testWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	k, err := s.host.Start(wait.Context(t), s.language.Spec, kernel.StartOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.TrimSpace(run(t, k, s.language.PrintDirectory).text(kernel.OutputStdout)); text != dir {
		t.Errorf("the kernel is in %q, want %q", text, dir)
	}
	if err := k.Stop(wait.Context(t)); err != nil {
		t.Error(err)
	}
}
