package code_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"sandbox.internal/execd/code"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/execd/internal/oomkill"
	"sandbox.internal/runtime/kernel"
)

func TestEventsOfACellAreInOrder(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id := newContext(t, m, "Python")
	for _, test := range []struct{ code, want, raised string }{
		{"say a\nb\nc", "init execution_count:1 stdout:a stdout:b stdout:c execution_complete", ""},
		{"raise", "init execution_count:2 error", "ValueError"},
		{"", "init execution_count:3 execution_complete", ""},
		{"lose a picture", "init execution_count:4 status:output is missing here: a picture error", "ValueError"},
	} {
		got, outcome := outcomeOf(t, execute(t, m, code.Spec{Code: test.code, ContextID: id}))
		if got != test.want {
			t.Errorf("%q: %s, want %s", test.code, got, test.want)
		}
		if test.raised != "" && (outcome.Error == nil || outcome.Error.Name != test.raised || len(outcome.Error.Traceback) != 1) {
			t.Errorf("%q: outcome %+v", test.code, outcome)
		}
	}
}

func TestCellsOfAContextRunInOrder(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id := newContext(t, m, "python")
	first := execute(t, m, code.Spec{Code: "wait", ContextID: id})
	started(t, first)
	var queued []*code.Execution
	for range 10 {
		queued = append(queued, execute(t, m, code.Spec{Code: "say x", ContextID: id}))
	}
	if err := m.Interrupt(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, outcome := outcomeOf(t, first); outcome.Error == nil || outcome.Error.Name != "KeyboardInterrupt" {
		t.Errorf("the interrupted cell: %+v", outcome)
	}
	for i, e := range queued {
		if _, outcome := outcomeOf(t, e); outcome.Error != nil || outcome.Count != i+2 {
			t.Errorf("cell %d ran as number %d: %+v", i, outcome.Count, outcome.Error)
		}
	}
}

// Cells that name no context but the default one of their language share its variables, also those
// that come together, until it ends.
func TestCellsShareTheDefaultContext(t *testing.T) {
	host := &fakeHost{}
	m := newManager(t, host)
	spec := code.Spec{Code: "number", Language: "Python", Default: true}
	cells := make([]*code.Execution, 10)
	var together sync.WaitGroup
	for i := range cells {
		together.Go(func() { cells[i], _ = m.Execute(t.Context(), spec) })
	}
	together.Wait()
	first := ""
	for _, cell := range cells {
		if cell == nil {
			t.Fatal("a cell was refused")
		}
		text, _ := outcomeOf(t, cell)
		text = text[strings.Index(text, "stdout:"):]
		if first == "" {
			first = text
		}
		if text != first {
			t.Errorf("kernels of cells: %s and %s", first, text)
		}
	}
	contexts := m.Contexts("python")
	if len(contexts) != 1 || !contexts[0].Default {
		t.Fatalf("contexts: %+v", contexts)
	}
	other := execute(t, m, code.Spec{Code: "number", Language: "bash", Default: true})
	if text, _ := outcomeOf(t, other); strings.HasSuffix(text, first) {
		t.Errorf("two languages share a kernel: %s", text)
	}
	own := newContext(t, m, "python")
	if text, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "number", ContextID: own})); strings.HasSuffix(text, first) {
		t.Errorf("a context shares the kernel of the default one: %s", text)
	}
	if err := m.DeleteContext(t.Context(), contexts[0].ID); err != nil {
		t.Fatal(err)
	}
	if text, _ := outcomeOf(t, execute(t, m, spec)); strings.HasSuffix(text, first) {
		t.Errorf("a deleted default context is used: %s", text)
	}
	host.killAll()
	if _, outcome := outcomeOf(t, execute(t, m, spec)); outcome.Error != nil {
		t.Errorf("after its kernel ended: %+v", outcome.Error)
	}
}

func TestStatelessCellsNeverShareAKernel(t *testing.T) {
	host := &fakeHost{}
	m := newManager(t, host)
	seen := make(map[string]bool)
	for range 20 {
		text, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "number", Language: "python"}))
		if seen[text] {
			t.Fatalf("a kernel was used twice: %s", text)
		}
		seen[text] = true
	}
	if started := host.started.Load(); started > 21 {
		t.Errorf("%d kernels were started for 20 cells and a spare", started)
	}
	if contexts := m.Contexts(""); len(contexts) != 0 {
		t.Errorf("stateless cells show as contexts: %+v", contexts)
	}
}

// A cell that is called off while its kernel starts leaves the kernel to the next one.
func TestACellThatDoesNotWaitLeavesItsKernel(t *testing.T) {
	host := &fakeHost{hold: make(chan struct{})}
	m := newManager(t, host)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Execute(ctx, code.Spec{Code: "number", Language: "python"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cell that was called off: %v", err)
	}
	close(host.hold)
	if text, _ := outcomeOf(t, execute(t, m, code.Spec{Code: "number", Language: "python"})); !strings.Contains(text, "stdout:1 ") {
		t.Errorf("the next cell has another kernel: %s", text)
	}
}

// A spare kernel that died is given to no cell.
func TestADeadSpareIsReplaced(t *testing.T) {
	host := &fakeHost{}
	m := newManager(t, host)
	for range 5 {
		if text, outcome := outcomeOf(t, execute(t, m, code.Spec{Code: "say x", Language: "python"})); outcome.Error != nil {
			t.Errorf("%s: %+v", text, outcome.Error)
		}
		host.killAll()
	}
}

func TestADeadKernelIsToldAndForgotten(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id := newContext(t, m, "python")
	first := execute(t, m, code.Spec{Code: "wait", ContextID: id})
	started(t, first)
	fatal := execute(t, m, code.Spec{Code: "die ValueError", ContextID: id})
	behind := execute(t, m, code.Spec{Code: "say x", ContextID: id})
	if err := m.Interrupt(t.Context(), first.ID()); err != nil {
		t.Fatal(err)
	}
	if text, outcome := outcomeOf(t, fatal); !strings.HasSuffix(text, " error") || outcome.Error.Name != "KernelDied" {
		t.Errorf("%s, %+v", text, outcome)
	}
	if text, outcome := outcomeOf(t, behind); text != "init error" || outcome.Error.Name != "ContextEnded" {
		t.Errorf("%s, %+v", text, outcome)
	}
	gone(t, m, id)
	if _, err := m.Execute(t.Context(), code.Spec{Code: "say x", ContextID: id}); !errors.Is(err, code.ErrNotFound) {
		t.Errorf("a cell in a dead context: %v", err)
	}
}

// TestACellWhoseKernelIsKilledForMemory has the reason, once for each kill.
func TestACellWhoseKernelIsKilledForMemory(t *testing.T) {
	var kills atomic.Int64
	host := &fakeHost{}
	host.dies = func(word string) error {
		if word != "itself" {
			kills.Add(1) // the kernel counts first
		}
		if word != "killed" {
			return fmt.Errorf("%w: %w", kernel.ErrEnded, kernel.ErrNotKilled)
		}
		return kernel.ErrEnded
	}
	ledger := oomkill.New(func() (int64, bool) { return kills.Load(), true })
	m := newManager(t, host, func(o *code.Options) { o.OOMKills = ledger })
	for _, c := range []struct {
		code    string
		claimed bool // by a command
		want    bool
	}{
		{"die itself", false, false}, {"die killed", false, true}, {"die another", false, false}, {"die killed", true, false}, {"die killed", false, true},
	} {
		before := ledger.Mark()
		host.claimed = func() {
			if c.claimed && !ledger.Claim(before) {
				t.Error("the command cannot claim the kill")
			}
		}
		_, outcome := outcomeOf(t, execute(t, m, code.Spec{Code: c.code, ContextID: newContext(t, m, "python")}))
		if outcome.OOMKilled != c.want || outcome.Error.Name != "KernelDied" || strings.Contains(outcome.Error.Value, "OOM_KILLED") != c.want {
			t.Errorf("%s, claimed %t: %+v (%+v), want OOMKilled %t", c.code, c.claimed, outcome, outcome.Error, c.want)
		}
	}
	running := execute(t, m, code.Spec{Code: "say here", ContextID: newContext(t, m, "python")})
	if text, outcome := outcomeOf(t, running); outcome.Error != nil {
		t.Errorf("the cell of another context: %s, %+v", text, outcome.Error)
	}
}

func TestAContextThatIsDeletedEndsItsCell(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id, other := newContext(t, m, "python"), newContext(t, m, "bash")
	running := execute(t, m, code.Spec{Code: "wait", ContextID: id})
	started(t, running)
	if err := m.DeleteContexts(t.Context(), "python"); err != nil {
		t.Fatal(err)
	}
	if _, outcome := outcomeOf(t, running); outcome.Error == nil || outcome.Error.Name != "ContextEnded" || !strings.Contains(outcome.Error.Value, "deleted") {
		t.Errorf("outcome: %+v", outcome)
	}
	gone(t, m, id)
	if contexts := m.Contexts("BASH"); len(contexts) != 1 || contexts[0].ID != other {
		t.Errorf("contexts of bash: %+v", contexts)
	}
	if err := m.DeleteContext(t.Context(), "unknown"); !errors.Is(err, code.ErrNotFound) {
		t.Errorf("delete of an unknown context: %v", err)
	}
}

func TestAKernelThatIgnoresTheInterruptIsEnded(t *testing.T) {
	m := newManager(t, &fakeHost{uninterruptible: true})
	id := newContext(t, m, "python")
	running := execute(t, m, code.Spec{Code: "wait", ContextID: id})
	started(t, running)
	if err := m.Interrupt(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, outcome := outcomeOf(t, running); outcome.Error == nil || outcome.Error.Name != "KeyboardInterrupt" ||
		!strings.Contains(outcome.Error.Value, "did not react") {
		t.Errorf("outcome: %+v", outcome)
	}
	gone(t, m, id)
}

func TestRefusals(t *testing.T) {
	host := &fakeHost{}
	m := newManager(t, host)
	id := newContext(t, m, "python")
	_, err := m.CreateContext(t.Context(), "cobol")
	if !invalid.Is(err) || !strings.Contains(err.Error(), "installed are bash, python") {
		t.Errorf("an unknown language: %v", err)
	}
	if _, err := m.Execute(t.Context(), code.Spec{ContextID: id, Language: "bash"}); !invalid.Is(err) {
		t.Errorf("another language than the context's: %v", err)
	}
	if err := m.Interrupt(t.Context(), "unknown"); !errors.Is(err, code.ErrNotFound) {
		t.Errorf("interrupt of an unknown context: %v", err)
	}
	host.refuse.Store(true)
	if _, err := m.CreateContext(t.Context(), "python"); !errors.Is(err, code.ErrUnavailable) || !strings.Contains(err.Error(), "it said no") {
		t.Errorf("a kernel that does not start: %v", err)
	}
	if err := m.Interrupt(t.Context(), id); err != nil {
		t.Errorf("interrupt of an idle context: %v", err)
	}
}

func TestStopEndsEverything(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id := newContext(t, m, "python")
	running := execute(t, m, code.Spec{Code: "wait", ContextID: id})
	started(t, running)
	m.Stop()
	if _, outcome := outcomeOf(t, running); outcome.Error == nil || outcome.Error.Name != "ContextEnded" {
		t.Errorf("outcome: %+v", outcome)
	}
	if _, err := m.CreateContext(context.Background(), "python"); err == nil {
		t.Error("a context was created after Stop")
	}
}

func TestLongTextKeepsRunesWhole(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id := newContext(t, m, "python")
	text := strings.Repeat("é", 100_001)
	e := execute(t, m, code.Spec{Code: "say " + text, ContextID: id})
	awaitEnd(t, e)
	r, err := e.Log().Reader(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got strings.Builder
	for {
		event, ok, err := r.Next()
		if errors.Is(err, io.EOF) || !ok {
			break
		}
		if event.Type == eventlog.TypeStdout {
			if !event.Partial || strings.ToValidUTF8(string(event.Text), "") != string(event.Text) {
				t.Error("a fragment cuts a rune in two")
			}
			got.Write(event.Text)
		}
	}
	if got.String() != text {
		t.Errorf("%d bytes, want %d", got.Len(), len(text))
	}
}

// TestLongLinesComeInFragments: clients bound the size of an event.
func TestLongLinesComeInFragments(t *testing.T) {
	m := newManager(t, &fakeHost{})
	id := newContext(t, m, "python")
	long := strings.Repeat("é", 1<<18)
	text := "begin\n\n" + long + "x\n" + strings.Repeat("y", 2*eventlog.MaxFragment) + "\nend\nrest"
	e := execute(t, m, code.Spec{Code: "say " + text, ContextID: id})
	awaitEnd(t, e)
	r, err := e.Log().Reader(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got strings.Builder
	var complete []int // lengths of lines
	line := 0
	for {
		event, ok, err := r.Next()
		if errors.Is(err, io.EOF) || !ok {
			break
		}
		if event.Type != eventlog.TypeStdout {
			continue
		}
		if len(event.Text) > eventlog.MaxFragment || event.Partial && !utf8.Valid(event.Text) {
			t.Fatalf("a piece of %d bytes, partial: %t", len(event.Text), event.Partial)
		}
		got.Write(event.Text)
		line += len(event.Text)
		if !event.Partial {
			got.WriteByte('\n')
			complete, line = append(complete, line), 0
		}
	}
	if got.String() != text {
		t.Errorf("the %d bytes are not the %d that were written", got.Len(), len(text))
	}
	if want := []int{5, 0, len(long) + 1, 2 * eventlog.MaxFragment, 3}; !slices.Equal(complete, want) {
		t.Errorf("the lines are %v bytes long, want %v", complete, want)
	}
}
