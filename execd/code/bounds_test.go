package code_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/rs/zerolog"

	"sandbox.internal/execd/code"
	"sandbox.internal/test/wait"
)

// An execution can be read for as long as its log is kept; its kernel, with all its buffers, is not
// kept with it.
func TestAnEndedCellHoldsNoKernel(t *testing.T) {
	host := &fakeHost{}
	m := newManager(t, host)
	var kernels []weak.Pointer[fakeKernel]
	var ended []*code.Execution
	for range 10 {
		e := execute(t, m, code.Spec{Code: "say x", Language: "python"})
		awaitEnd(t, e)
		ended = append(ended, e)
	}
	host.mu.Lock()
	for _, k := range host.kernels[:10] { // the one after them is the spare
		kernels = append(kernels, weak.Make(k))
	}
	host.kernels = nil
	host.mu.Unlock()
	var held int
	wait.Until(t, "no kernel of an ended cell is held", func() bool {
		runtime.GC()
		held = 0
		for _, k := range kernels {
			if k.Value() != nil {
				held++
			}
		}
		return held == 0
	}, func() any { return fmt.Sprintf("%d of 10", held) })
	runtime.KeepAlive(ended)
}

// An interrupt that names an execution reaches that one alone, whether it has ended, waits or runs.
func TestAnInterruptReachesNoOtherCell(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id := newContext(t, m, "python")
	ended := execute(t, m, code.Spec{Code: "say x", ContextID: id})
	awaitEnd(t, ended)
	running := execute(t, m, code.Spec{Code: "wait", ContextID: id})
	started(t, running)
	waiting := execute(t, m, code.Spec{Code: "say x", ContextID: id})
	behind := execute(t, m, code.Spec{Code: "say x", ContextID: id})
	for _, e := range []*code.Execution{ended, waiting, waiting} {
		if err := m.Interrupt(t.Context(), e.ID()); err != nil {
			t.Fatal(err)
		}
	}
	if text, outcome := outcomeOf(t, waiting); text != "init error" || outcome.Error.Name != "KeyboardInterrupt" || outcome.Count != 0 {
		t.Errorf("the cell that waited: %s, %+v", text, outcome)
	}
	select {
	case <-running.Done():
		_, outcome := outcomeOf(t, running)
		t.Fatalf("the cell that was not interrupted: %+v", outcome.Error)
	default:
	}
	if err := m.Interrupt(t.Context(), running.ID()); err != nil {
		t.Fatal(err)
	}
	if _, outcome := outcomeOf(t, running); outcome.Error == nil || outcome.Error.Name != "KeyboardInterrupt" {
		t.Errorf("the cell that was interrupted: %+v", outcome.Error)
	}
	if text, outcome := outcomeOf(t, behind); outcome.Error != nil || outcome.Count != 3 {
		t.Errorf("the cell behind: %s, %+v", text, outcome)
	}
}

// An interrupt that comes before the kernel has the cell is not lost, and the kernel is not ended
// for it.
func TestAnInterruptThatComesBeforeTheKernelHasTheCell(t *testing.T) {
	host := &fakeHost{}
	host.early.Store(2)
	bubble(t, code.Options{Host: host}, func(t *testing.T, m *code.Manager) {
		id := newContext(t, m, "python")
		running := execute(t, m, code.Spec{Code: "wait", ContextID: id})
		started(t, running)
		if err := m.Interrupt(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		select {
		case <-running.Done():
		default:
			t.Fatal("the cell still runs")
		}
		if text, outcome := outcomeOf(t, running); outcome.Error == nil || outcome.Error.Name != "KeyboardInterrupt" {
			t.Errorf("the cell: %s, %+v", text, outcome.Error)
		}
		next := execute(t, m, code.Spec{Code: "wait", ContextID: id})
		started(t, next)
		time.Sleep(2 * code.InterruptPatience)
		if _, err := m.Context(id); err != nil {
			t.Errorf("the context: %v", err)
		}
	})
}

// bubble runs a test with a clock that jumps, and a manager with those options.
func bubble(t *testing.T, options code.Options, test func(t *testing.T, m *code.Manager)) {
	synctest.Test(t, func(t *testing.T) {
		options.LogLimit, options.SpoolDir, options.Logger, options.Clock = 1<<20, t.TempDir(), zerolog.Nop(), time.Now
		m := code.New(options)
		defer func() {
			m.Stop()
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}()
		test(t, m)
	})
}

// Time in which the sandbox is frozen is not the kernel's: its variables outlast a freeze of any
// length.
func TestAFreezeDoesNotUseUpTheInterruptPatience(t *testing.T) {
	var frozen atomic.Bool
	bubble(t, code.Options{Host: &fakeHost{uninterruptible: true}, Frozen: frozen.Load}, func(t *testing.T, m *code.Manager) {
		id := newContext(t, m, "python")
		running := execute(t, m, code.Spec{Code: "wait", ContextID: id})
		started(t, running)
		if err := m.Interrupt(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		frozen.Store(true)
		time.Sleep(time.Hour)
		if _, err := m.Context(id); err != nil {
			t.Fatalf("after a freeze: %v", err)
		}
		frozen.Store(false)
		time.Sleep(code.InterruptPatience - time.Second)
		if _, err := m.Context(id); err != nil {
			t.Fatalf("before the kernel's time is over: %v", err)
		}
		time.Sleep(2 * time.Second)
		if _, outcome := outcomeOf(t, running); outcome.Error == nil || !strings.Contains(outcome.Error.Value, "did not react") {
			t.Errorf("outcome: %+v", outcome.Error)
		}
	})
}

// A spare kernel that no cell has taken for a while is ended, and a later cell gets a new one.
func TestSparesExpire(t *testing.T) {
	host := &fakeHost{}
	bubble(t, code.Options{Host: host, SpareTime: time.Minute}, func(t *testing.T, m *code.Manager) {
		for range 2 {
			for range 3 {
				outcomeOf(t, execute(t, m, code.Spec{Code: "say x", Language: "python"}))
				time.Sleep(59 * time.Second)
				if living := host.living.Load(); living != 1 {
					t.Errorf("%d kernels are ready, want one", living)
				}
			}
			time.Sleep(2 * time.Second)
			if living := host.living.Load(); living != 0 {
				t.Errorf("%d kernels are left after a minute without a cell", living)
			}
		}
	})
}

// TestQueueIsBounded: a context holds so many waiting cells, and so much code of them, and no more.
func TestQueueIsBounded(t *testing.T) {
	m := newManager(t, &fakeHost{})
	for name, test := range map[string]struct {
		cell  string
		holds int
	}{
		"cells": {"say a", 1000},
		"bytes": {"say " + strings.Repeat("a", 16<<20-4), 4},
	} {
		t.Run(name, func(t *testing.T) {
			id := newContext(t, m, "python")
			running := execute(t, m, code.Spec{Code: "wait", ContextID: id})
			started(t, running)
			for range test.holds {
				execute(t, m, code.Spec{Code: test.cell, ContextID: id})
			}
			_, err := m.Execute(t.Context(), code.Spec{Code: test.cell, ContextID: id})
			if !errors.Is(err, code.ErrFull) || !strings.Contains(err.Error(), id) {
				t.Errorf("one more: %v", err)
			}
			if err := m.Interrupt(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			awaitEnd(t, running)
			awaitEnd(t, execute(t, m, code.Spec{Code: "number", Language: "python"}))
		})
	}
}
