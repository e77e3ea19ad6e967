package e2b

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestEndedProcessesAreForgotten: after their time, and by their number, with what they hold.
func TestEndedProcessesAreForgotten(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newProcesses(func() time.Time { return now })
	begin := func(pid int, tag string) *started {
		t.Helper()
		s, failed := p.reserve(processConfig{Cmd: "true", Args: []string{strings.Repeat("x", 1000)}}, tag)
		if failed != nil {
			t.Fatal(failed)
		}
		p.add(s, process{pid: pid})
		return s
	}
	known := func(pid int) bool {
		_, failed := p.find(selector{PID: new(number(pid))})
		return failed == nil
	}
	end := endOf(syscall.WaitStatus(3<<8), true)
	first := begin(1, "a")
	p.finish(first, end)
	now = now.Add(endKept - time.Second)
	if found, failed := p.find(selector{Tag: new("a")}); failed != nil || found.end == nil || found.end.ExitCode != 3 {
		t.Errorf("%+v, %v", found, failed)
	}
	second := begin(2, "b")
	p.finish(second, end)
	now = now.Add(time.Second)
	if known(1) || !known(2) {
		t.Error("the first one is not forgotten, or the second one is")
	}

	// A process that ends before it was added, and one whose number another one has by then.
	early, _ := p.reserve(processConfig{}, "")
	p.finish(early, end)
	p.add(early, process{pid: 3})
	old := begin(4, "")
	later := begin(4, "")
	p.finish(old, end)
	if found, failed := p.find(selector{PID: new(number(4))}); failed != nil || found.end != nil {
		t.Errorf("%+v, %v instead of the later process", found, failed)
	}
	p.finish(later, end)
	for i := range maxEnded {
		p.finish(begin(100+i, strconv.Itoa(i)), end)
	}
	if len(p.ended) != maxEnded || len(p.byPID) != maxEnded || known(3) || known(4) {
		t.Errorf("%d ends are kept, of %d processes", len(p.ended), len(p.byPID))
	}
	now = now.Add(endKept)
	if known(100) || len(p.ended) != 0 || len(p.byPID) != 0 || p.size != 0 {
		t.Errorf("%d ends of %d processes are kept, with %d bytes", len(p.ended), len(p.byPID), p.size)
	}
}

// TestProcessesAreBounded: in bytes; those that have ended make room.
func TestProcessesAreBounded(t *testing.T) {
	p := newProcesses(func() time.Time { return time.Unix(1000, 0) })
	const parts = 8
	large := processConfig{Envs: map[string]string{"A": strings.Repeat("x", maxProcessBytes/parts-2*processOverhead)}}
	tag := strings.Repeat("x", maxProcessBytes/parts-2*processOverhead)
	ended, _ := p.reserve(processConfig{}, tag)
	p.add(ended, process{pid: 1})
	p.finish(ended, endEvent{})
	for i := range parts {
		s, failed := p.reserve(large, "")
		if failed != nil {
			t.Fatalf("process %d: %v", i, failed)
		}
		p.add(s, process{pid: 2 + i})
	}
	if _, failed := p.find(selector{PID: new(number(1))}); failed == nil {
		t.Error("the one that has ended made no room")
	}
	s, failed := p.reserve(large, "")
	if failed == nil || failed.Code != codeResourceExhausted {
		t.Fatalf("one more: %+v, %v", s, failed)
	}
	if s, failed = p.reserve(processConfig{}, ""); failed != nil {
		t.Errorf("a small one more: %v", failed)
	}
	p.release(s)
	for _, s := range p.byPID {
		p.finish(s, endEvent{})
	}
	if limit := (parts + 1) * 2 * processOverhead; p.size > limit {
		t.Errorf("%d bytes are held for ends without tags", p.size)
	}
}

// TestEnds: the words of E2B, which are those of Go.
func TestEnds(t *testing.T) {
	for name, test := range map[string]struct {
		status syscall.WaitStatus
		known  bool
		want   endEvent
	}{
		"0":       {0, true, endEvent{Exited: true, Status: "exit status 0"}},
		"255":     {255 << 8, true, endEvent{ExitCode: 255, Exited: true, Status: "exit status 255", Error: "exit status 255"}},
		"killed":  {9, true, endEvent{ExitCode: -1, Status: "signal: killed", Error: "signal: killed"}},
		"core":    {11 | 0x80, true, endEvent{ExitCode: -1, Status: "signal: segmentation fault (core dumped)", Error: "signal: segmentation fault (core dumped)"}},
		"unknown": {0, false, endEvent{ExitCode: -1, Status: "exit status unknown", Error: "exit status unknown"}},
	} {
		if got := endOf(test.status, test.known); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
