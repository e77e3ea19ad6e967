package code

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/runtime/kernel"
)

// Spec is a cell to execute (execd document, "Code").
type Spec struct {
	Code string
	// ContextID names the context to execute in; empty means a kernel of its own, thrown away
	// afterwards.
	ContextID string
	// Language is the cell's; with a context it must be the context's or empty.
	Language string
	// Default executes in the default context of the language, which it creates where there is
	// none. ContextID is empty then.
	Default bool
	// Dir is the working directory of a default context that the cell creates; empty means
	// Options.Dir.
	Dir string
	// Env are variables of the environment that only this cell has. Python, JavaScript, TypeScript
	// and bash have them.
	Env map[string]string
	// Ended is called once, with the outcome of a cell that was queued and has ended; nil means
	// not.
	Ended func(Outcome)
}

// Execution is a cell that waits, runs or has ended.
type Execution struct {
	id    string
	log   eventlog.Log
	clock func() time.Time
	done  chan struct{}

	// What only a cell that has not ended needs; finish drops it, because an execution is kept for
	// as long as its log.
	code    string
	prepare string    // what sets the cell's variables
	restore string    // and what sets them back
	began   time.Time // when the kernel got it
	count   int       // the cell's number
	raised  *kernel.Error
	// oomKilled is whether its kernel was killed because memory ran out.
	oomKilled bool
	finally   func()
	ended     func(Outcome) // nil for none
	hold      *holds.Hold
	session   *session // guarded by the manager's mu
}

// ID returns the execution's id.
func (e *Execution) ID() string { return e.id }

// Log returns what the cell said, and says.
func (e *Execution) Log() *eventlog.Log { return &e.log }

// size is how much of memory the cell takes while it waits, in bytes.
func (e *Execution) size() int { return len(e.code) + len(e.prepare) + len(e.restore) }

// Done returns a channel that is closed when the cell has ended and its terminal event can be read.
func (e *Execution) Done() <-chan struct{} { return e.done }

// Outcome is how a cell ended: the detail of its terminal event.
type Outcome struct {
	Duration time.Duration // from when the kernel got it
	Count    int           // the cell's number, 0 when it never ran
	Error    *kernel.Error // nil when it ended well
	// OOMKilled is whether its kernel was killed because memory ran out.
	OOMKilled bool `json:",omitempty"`
}

// Execute queues a cell and returns without waiting for it. ctx bounds the start of a kernel for a
// cell without a context. It returns an [invalid.Error], ErrNotFound for the context, ErrFull,
// ErrUnavailable and ErrClosed.
func (m *Manager) Execute(ctx context.Context, spec Spec) (*Execution, error) {
	s, err := m.sessionFor(ctx, spec)
	if err != nil {
		return nil, err
	}
	prepare, restore, err := environ(s.info.Language, spec.Env)
	if err != nil {
		return nil, err
	}
	id := uuid.NewString()
	e := &Execution{
		id: id, code: spec.Code, prepare: prepare, restore: restore, session: s, clock: m.options.Clock, done: make(chan struct{}),
		ended: spec.Ended, hold: m.options.Holds.Begin(holds.Code, id),
	}
	e.log.Start(id, eventlog.Options{
		Limit: m.options.LogLimit, SpoolDir: m.options.SpoolDir, Memory: &m.memory, Clock: m.options.Clock,
	})
	e.finally = func() {
		m.mu.Lock()
		e.session = nil // its kernel has buffers
		m.mu.Unlock()
		m.retire(e)
	}
	m.mu.Lock()
	m.executions[id] = e
	m.mu.Unlock()
	if err := s.enqueue(e); err != nil {
		m.forget(e)
		e.log.Close()
		e.hold.End()
		return nil, err
	}
	return e, nil
}

// Execution returns an execution. It returns ErrNotFound.
func (m *Manager) Execution(id string) (*Execution, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.executions[id]; ok {
		return e, nil
	}
	return nil, fmt.Errorf("execution %q: %w", id, ErrNotFound)
}

func (m *Manager) retire(e *Execution) {
	m.retention.Add(e, &e.log, m.options.Clock())
}

func (m *Manager) forget(e *Execution) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.executions, e.id)
}

// sessionFor returns the session of the spec's context, or a new one for the spec alone.
func (m *Manager) sessionFor(ctx context.Context, spec Spec) (*session, error) {
	if spec.ContextID != "" {
		s, err := m.session(spec.ContextID)
		if err == nil && spec.Language != "" && !strings.EqualFold(spec.Language, s.info.Language) {
			return nil, invalid.Errorf("context: %q is a context of %s, not of %s", spec.ContextID, s.info.Language, spec.Language)
		}
		return s, err
	}
	name, language, err := m.spec(ctx, spec.Language)
	if err != nil {
		return nil, err
	}
	if _, _, err := environ(language, spec.Env); err != nil { // before a kernel is started
		return nil, err
	}
	if spec.Default {
		return m.defaultSession(ctx, name, Context{ID: uuid.NewString(), Language: language, Default: true, Dir: spec.Dir})
	}
	k, err := m.spares.take(ctx, name)
	if err != nil {
		return nil, err
	}
	s := newSession(m, Context{ID: uuid.NewString(), Language: language, Dir: m.options.Dir}, k, true)
	if err := m.register(s, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// defaultSession returns the session of a language's default context. Of cells that come together
// while there is none, one starts it.
func (m *Manager) defaultSession(ctx context.Context, spec string, info Context) (*session, error) {
	select {
	case m.creating <- struct{}{}:
		defer func() { <-m.creating }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	for _, s := range m.contexts {
		if s.info.Default && s.info.Language == info.Language && !s.isOver() {
			m.mu.Unlock()
			return s, nil
		}
	}
	m.mu.Unlock()
	s, err := m.startSession(ctx, spec, info)
	if err != nil {
		return nil, err
	}
	return s, m.register(s, nil)
}

func (e *Execution) begin() { e.began = e.clock() }

// record takes what the kernel says, in its order.
func (e *Execution) record(output kernel.Output) {
	switch output.Type {
	case kernel.OutputStdout:
		e.text(eventlog.TypeStdout, []byte(output.Text))
	case kernel.OutputStderr:
		e.text(eventlog.TypeStderr, []byte(output.Text))
	case kernel.OutputResult, kernel.OutputDisplay:
		kind := eventlog.TypeResult
		if output.Type == kernel.OutputDisplay {
			kind = eventlog.TypeDisplay
		}
		data, err := json.Marshal(output.Data)
		if err != nil {
			e.text(eventlog.TypeStderr, fmt.Appendf(nil, "a result of the kernel is not JSON: %v\n", err))
			return
		}
		e.log.Event(kind, data)
	case kernel.OutputCount:
		e.count = output.Count
		e.log.Event(eventlog.TypeCount, strconv.AppendInt(nil, int64(output.Count), 10))
	case kernel.OutputError:
		e.raised = output.Error
	case kernel.OutputLost:
		e.log.Event(eventlog.TypeStatus, []byte("output is missing here: "+output.Text))
	}
}

// text records complete lines together, as many as are no longer than a fragment. What a longer
// line begins with, and the unfinished last one, are fragments that keep runes whole.
func (e *Execution) text(stream eventlog.Type, text []byte) {
	for len(text) > 0 {
		next := text[:min(len(text), eventlog.MaxFragment)]
		lines := bytes.LastIndexByte(next, '\n') + 1
		size := lines
		if lines == 0 {
			size = len(next)
			if size < len(text) {
				size = eventlog.WholeRunes(next)
			}
		}
		e.log.Output(stream, text[:size], lines == 0)
		text = text[size:]
	}
}

// finish records the terminal event.
func (e *Execution) finish(count int, raised *kernel.Error) {
	outcome := Outcome{Duration: e.clock().Sub(e.began), Count: max(count, e.count), Error: raised, OOMKilled: e.oomKilled}
	detail, err := json.Marshal(outcome)
	if err != nil {
		panic(err) // numbers and strings can be encoded
	}
	kind := eventlog.TypeComplete
	if raised != nil {
		kind = eventlog.TypeError
	}
	e.log.Finish(kind, detail)
	close(e.done)
	finally, ended, hold := e.finally, e.ended, e.hold
	e.code, e.prepare, e.restore = "", "", ""
	e.raised, e.finally, e.ended, e.hold = nil, nil, nil, nil
	finally()
	if ended != nil {
		ended(outcome)
	}
	hold.End()
}

// ParseOutcome reads the detail of a terminal event.
func ParseOutcome(detail []byte) (Outcome, error) {
	var outcome Outcome
	if err := json.Unmarshal(detail, &outcome); err != nil {
		return Outcome{}, fmt.Errorf("read how the cell ended: %w", err)
	}
	return outcome, nil
}
