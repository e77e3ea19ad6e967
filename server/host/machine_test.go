package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/host"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
	"sandbox.internal/test/wait"
)

const instance = "under-test"

// clock is the real time, moved by an offset.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time           { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(by time.Duration) { c.offset.Add(int64(by)) }

// machine is one host of sandboxes with everything around it: a real store, an engine in memory, a
// clock.
type machine struct {
	t       testing.TB
	engine  *memoryEngine
	store   *watchedStore
	clock   *clock
	box     box.Options
	options host.Options
	boxes   *box.Containers // of the host that was opened last
	host    *host.Host
}

// newMachine returns a machine whose host is not started yet.
func newMachine(t testing.TB) *machine {
	t.Helper()
	records, err := store.Open(t.TempDir(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := records.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	m := &machine{t: t, engine: newMemoryEngine(t), clock: &clock{}}
	m.store = &watchedStore{Store: records, t: t, states: map[string]lifecycle.State{}, faults: map[string]error{}, unsynced: map[string][]string{}}
	m.box = box.Options{
		Engine: newProving(m.engine), Snapshots: m.engine, Traffic: m.engine, Ports: m.engine, Logger: zerolog.Nop(), Clock: m.clock.now,
		Instance: instance, ExecdImage: "execd", EngineHost: "127.0.0.1",
	}
	m.options = host.Options{
		Store: m.store, Logger: zerolog.Nop(), Clock: m.clock.now, TerminatedRetention: time.Hour, FailedPendingRetention: 2 * time.Hour,
	}
	return m
}

// start starts the host; the test's end stops it.
func (m *machine) start() *machine {
	m.t.Helper()
	started, err := m.open()
	if err != nil {
		m.t.Fatal(err)
	}
	m.host = started
	m.t.Cleanup(started.Close)
	return m
}

// open starts the host of the machine's boxes, which the caller closes.
func (m *machine) open() (*host.Host, error) {
	boxes, err := box.Open(m.t.Context(), m.box)
	if err != nil {
		return nil, err
	}
	options := m.options
	m.boxes, options.Boxes = boxes, boxes
	return host.Start(m.t.Context(), options)
}

func spec() lifecycle.Spec {
	return lifecycle.Spec{Image: "busybox", Timeout: time.Hour, Entrypoint: []string{"sleep", "60"}}
}

func (m *machine) create() string {
	m.t.Helper()
	sandbox, err := m.host.Create(context.Background(), spec(), lifecycle.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return sandbox.ID
}

func (m *machine) running() string {
	m.t.Helper()
	id := m.create()
	m.await(id, lifecycle.StateRunning)
	return id
}

func (m *machine) paused() string {
	m.t.Helper()
	id := m.running()
	if err := m.host.Pause(context.Background(), id); err != nil {
		m.t.Fatal(err)
	}
	m.await(id, lifecycle.StatePaused)
	return id
}

func (m *machine) get(id string) lifecycle.Sandbox {
	m.t.Helper()
	sandbox, err := m.host.Get(context.Background(), id)
	if err != nil {
		m.t.Fatal(err)
	}
	return sandbox
}

// await waits until the sandbox is in that state.
func (m *machine) await(id string, state lifecycle.State) lifecycle.Status {
	m.t.Helper()
	var last lifecycle.Status
	wait.Until(m.t, fmt.Sprintf("sandbox %s is %s", id, state), func() bool {
		last = m.get(id).Status
		return last.State == state
	}, func() any { return last })
	return last
}

func (m *machine) awaitReason(id string, state lifecycle.State, reason lifecycle.Reason) lifecycle.Status {
	m.t.Helper()
	status := m.await(id, state)
	if status.Reason != reason {
		m.t.Errorf("reason of %s: %s (%s), want %s", state, status.Reason, status.Message, reason)
	}
	return status
}

// awaitEmpty waits until the engine has no container left.
func (m *machine) awaitEmpty() {
	m.t.Helper()
	wait.Until(m.t, "the engine has no container left", func() bool { return len(m.engine.names()) == 0 }, func() any { return m.engine.names() })
}

func container(id string) string { return "sandbox-" + id }

// record returns the record of a sandbox that was created by an earlier service.
func (m *machine) record(id string, state lifecycle.State) lifecycle.Record {
	now := m.clock.now().UTC()
	r := lifecycle.Record{
		Sandbox: lifecycle.Sandbox{
			ID: id, Image: "busybox", Entrypoint: []string{"sleep", "60"}, CreatedAt: now, ExpiresAt: now.Add(time.Hour),
			Status: lifecycle.Status{State: state, Reason: lifecycle.ReasonProvisioning, LastTransitionAt: now},
		},
		Spec:  spec(),
		Token: "token",
	}
	if state.Final() {
		r.RetainUntil = now.Add(time.Hour)
		r.Removed = state == lifecycle.StateTerminated
	}
	return r
}

// had stores a record, and the container that goes with it unless status is empty.
func (m *machine) had(r lifecycle.Record, status engine.Status) {
	m.t.Helper()
	if err := m.store.Insert(context.Background(), r, nil); err != nil {
		m.t.Fatal(err)
	}
	if status != "" {
		m.engine.put(m.containerOf(r, status))
	}
}

func (m *machine) containerOf(r lifecycle.Record, status engine.Status) engine.Container {
	m.t.Helper()
	remembered, err := json.Marshal(r)
	if err != nil {
		m.t.Fatal(err)
	}
	labels := map[string]string{
		lifecycle.LabelPrefix + "id":       r.Sandbox.ID,
		lifecycle.LabelPrefix + "instance": instance,
		lifecycle.LabelPrefix + "record":   string(remembered),
	}
	if r.Box == "" { // as an earlier service made them
		return engine.Container{Name: container(r.Sandbox.ID), Status: status, Labels: labels}
	}
	labels[lifecycle.LabelPrefix+"box"] = r.Box
	return engine.Container{Name: container(r.Box), Status: status, Labels: labels}
}

// Names of the store's calls.
const (
	callInsert = "Insert"
	callSave   = "Save"
	callForget = "Forget"

	callSaveSnapshot = "SaveSnapshot"

	callCheckWritable = "CheckWritable"
)

var errDisk = errors.New("the disk is gone")

// watchedStore is a real store that can be made to fail, and that holds every sandbox to the
// transitions table.
type watchedStore struct {
	*store.Store
	t testing.TB

	mu       sync.Mutex
	states   map[string]lifecycle.State
	faults   map[string]error
	unsynced map[string][]string // by sandbox: the states, and stages, that were saved without a sync
}

func (s *watchedStore) fail(call string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[call] = err
}

// note returns the fault of the call, if any; else it checks the change.
func (s *watchedStore) note(call string, r lifecycle.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.faults[call]; err != nil {
		return err
	}
	id, to := r.Sandbox.ID, r.Sandbox.Status.State
	if from, known := s.states[id]; known && from != to && !allowed(from, to) {
		s.t.Errorf("sandbox %s went from %s to %s, which the table does not have", id, from, to)
	}
	s.states[id] = to
	return nil
}

func allowed(from, to lifecycle.State) bool {
	for _, row := range lifecycle.Transitions() {
		if row.From == from && row.To == to {
			return true
		}
	}
	return false
}

func (s *watchedStore) Insert(ctx context.Context, r lifecycle.Record, key *lifecycle.IdempotencyKey, events ...lifecycle.Event) error {
	if err := s.note(callInsert, r); err != nil {
		return err
	}
	return s.Store.Insert(ctx, r, key, events...)
}

func (s *watchedStore) Save(ctx context.Context, r lifecycle.Record, events ...lifecycle.Event) error {
	if err := s.note(callSave, r); err != nil {
		return err
	}
	return s.Store.Save(ctx, r, events...)
}

func (s *watchedStore) SaveUnsynced(ctx context.Context, r lifecycle.Record, events ...lifecycle.Event) error {
	if err := s.note(callSave, r); err != nil {
		return err
	}
	s.mu.Lock()
	for _, event := range events {
		id := r.Sandbox.ID
		s.unsynced[id] = append(s.unsynced[id], string(event.To)+string(event.Stage))
	}
	s.mu.Unlock()
	return s.Store.SaveUnsynced(ctx, r, events...)
}

func (s *watchedStore) Forget(ctx context.Context, id string, events ...lifecycle.Event) error {
	s.mu.Lock()
	err := s.faults[callForget]
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Store.Forget(ctx, id, events...)
}

func (s *watchedStore) SaveSnapshot(ctx context.Context, snapshot lifecycle.Snapshot, r *lifecycle.Record, events ...lifecycle.Event) error {
	s.mu.Lock()
	err := s.faults[callSaveSnapshot]
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if r != nil {
		if err := s.note(callSave, *r); err != nil {
			return err
		}
	}
	return s.Store.SaveSnapshot(ctx, snapshot, r, events...)
}

func (s *watchedStore) CheckWritable(ctx context.Context) error {
	s.mu.Lock()
	err := s.faults[callCheckWritable]
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Store.CheckWritable(ctx)
}

func kindOf(err error) lifecycle.Kind {
	var known *lifecycle.Error
	if errors.As(err, &known) {
		return known.Kind
	}
	return ""
}
