package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/lifecycle"
)

// actor owns one sandbox: its goroutine alone changes the record, and starts the jobs that bring
// the box into the record's state, one at a time. All fields but the shared ones belong to that
// goroutine.
type actor struct {
	host      *Host
	id        string
	createdAt time.Time
	log       zerolog.Logger

	record        lifecycle.Record
	auth          *lifecycle.ImageAuth // while Pending; never stored
	cancelRunning context.CancelFunc   // cancels the running job; nil when there is none
	needsInspect  bool                 // another process may have acted on the box
	// launched: a launch has begun a box, perhaps in an earlier process. Until then there is
	// nothing to look for and to remove, which saves three calls of the engine for each sandbox
	// that ends while its image is pulled.
	launched bool

	// skippedInspect: a snapshot was being taken during an inspection, whose outcome is unknown.
	skippedInspect bool

	unsaved      []lifecycle.Event // of changes that are visible and not durable yet
	saveAgainAt  time.Time         // when saving them is tried again
	sleep        sleep
	lastProgress lifecycle.Status // the last progress that became an event

	// Shared:
	inbox  chan func()
	policy sync.Mutex    // serialises changes of the network policy
	gone   chan struct{} // closed when the actor has ended
	taking atomic.Int64  // one more at the begin and at the end of each snapshot that is taken
	runs   atomic.Int64  // how often the sandbox has come into Running since the start
	thaws  atomic.Int64  // how often the sandbox was thawed because it was to be woken
	// failedWakes is how often the sandbox could not be brought back from the disk.
	failedWakes atomic.Int64
	// diskAttempts is how often an attempt to bring the sandbox to the disk has left it in memory.
	diskAttempts atomic.Int64
	view         atomic.Pointer[lifecycle.Record]
	mu           sync.Mutex
	changed      chan struct{} // closed by the next change
}

// do runs f in the actor's goroutine and returns its error. It returns an error of KindNotFound
// when the sandbox is forgotten.
func (a *actor) do(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	select {
	case a.inbox <- func() { result <- f() }:
	case <-a.gone:
		return a.goneError()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-result:
		return err
	case <-a.gone:
	}
	select {
	case err := <-result: // f was the last function that the actor ran
		return err
	default:
		return a.goneError()
	}
}

// goneError is the error for an actor that has ended: the sandbox is forgotten, or the service is
// stopping.
func (a *actor) goneError() error {
	if a.host.ctx.Err() != nil {
		return lifecycle.Stopping()
	}
	return lifecycle.NotFound(a.id)
}

// post hands f to the actor's goroutine and does not wait.
func (a *actor) post(f func()) {
	select {
	case a.inbox <- f:
	case <-a.gone:
	case <-a.host.ctx.Done():
	}
}

// snapshot returns the published record. It must not be changed.
func (a *actor) snapshot() *lifecycle.Record { return a.view.Load() }

func (a *actor) changes() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// await returns the sandbox's record once holds is true of it, the sandbox is forgotten, the time
// is up, or ctx ends.
func (a *actor) await(
	ctx context.Context, atMost time.Duration, holds func(*lifecycle.Record) bool,
) *lifecycle.Record {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	for {
		changed := a.changes()
		record := a.snapshot()
		if holds(record) {
			return record
		}
		select {
		case <-changed:
		case <-a.gone:
			return record
		case <-timer.C:
			return record
		case <-ctx.Done():
			return record
		}
	}
}

// nudge has those look again that [actor.await] something.
func (a *actor) nudge() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *actor) publish() {
	snapshot := a.record.Clone()
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.view.Load()
	a.host.registry.publish(a, &snapshot)
	a.host.snapshots.need(before, &snapshot)
	close(a.changed)
	a.changed = make(chan struct{})
	if snapshot.Removed {
		a.host.makeRoom(a, &snapshot)
	}
}

func (a *actor) state() lifecycle.State { return a.record.Sandbox.Status.State }

// afterTransition returns the record after a transition, with the reason, the message and the exit
// code of status, or an error of KindConflict when the table does not have the transition.
func (a *actor) afterTransition(
	trigger lifecycle.Trigger, status lifecycle.Status,
) (lifecycle.Record, error) {
	from := a.state()
	to, ok := lifecycle.Next(from, trigger)
	if !ok {
		return lifecycle.Record{}, lifecycle.Conflictf("cannot %s: the sandbox is %s", trigger,
			from)
	}
	now := a.host.options.Clock().UTC()
	record := a.record
	status.State, status.LastTransitionAt = to, now
	record.Sandbox.Status = status
	if to != lifecycle.StateResuming {
		record.Rollback, record.Asleep = "", false
	} else if record.TimedOut { // it lives as long again as it was to live
		record.TimedOut = false
		record.Sandbox.ExpiresAt = wall(now.Add(record.Spec.Timeout))
	}
	if to != lifecycle.StatePausing && to != lifecycle.StatePaused {
		record.WakeAt = time.Time{}
	}
	if to == lifecycle.StateRunning {
		record.Hibernation = ""
	}
	if to.Final() {
		retention := a.host.options.TerminatedRetention
		if from == lifecycle.StatePending && to == lifecycle.StateFailed {
			retention = a.host.options.FailedPendingRetention
		}
		record.RetainUntil = wall(now.Add(retention))
	}
	return record, nil
}

// request makes a transition that a client requests: it is in force only once it is saved.
func (a *actor) request(trigger lifecycle.Trigger, reason lifecycle.Reason, message string) error {
	record, err := a.afterTransition(trigger, lifecycle.Status{Reason: reason, Message: message})
	if err != nil {
		return err
	}
	return a.commit(a.durabilityOf(trigger, record), record, a.eventsTo(record)...)
}

// recordTransition records a transition that has happened at the engine. It is in force even when
// the store fails: a restart inspects the box and records it again.
func (a *actor) recordTransition(
	trigger lifecycle.Trigger, reason lifecycle.Reason, message string,
) {
	a.recordStatus(trigger, lifecycle.Status{Reason: reason, Message: message})
}

// recordStatus is recordTransition with an exit code.
func (a *actor) recordStatus(trigger lifecycle.Trigger, status lifecycle.Status) {
	record, err := a.afterTransition(trigger, status)
	if err != nil {
		a.log.Error().
			Err(err).
			Str("state", string(a.state())).
			Msg("the transitions table lacks this transition")
		return
	}
	var events []lifecycle.Event
	if trigger == lifecycle.TriggerProvisioned {
		events = a.mark(&record, lifecycle.StageReady, record.Sandbox.Status.LastTransitionAt)
	}
	a.saveOrRetry(a.durabilityOf(trigger, record), record, append(events, a.eventsTo(record)...)...)
}

// durability is whether a change that was saved outlasts a loss of power.
type durability int

const (
	synced durability = iota
	unsynced
)

// durabilityOf returns how the transition of that trigger to that record is saved.
func (a *actor) durabilityOf(trigger lifecycle.Trigger, to lifecycle.Record) durability {
	if !to.Sandbox.ExpiresAt.Equal(a.record.Sandbox.ExpiresAt) {
		return synced
	}
	if a.record.Stopped && (trigger == lifecycle.TriggerResume || trigger == lifecycle.TriggerResumed) {
		// A loss of power ends the processes, and what says that they were on the disk must not come
		// back without them.
		return synced
	}
	switch trigger {
	case lifecycle.TriggerPause, lifecycle.TriggerPaused, lifecycle.TriggerResume,
		lifecycle.TriggerResumed:
		// Nothing is lost if a loss of power takes it back. One of the engine's machine ends or
		// stops the box, and Running, Pausing, Paused and Resuming all lead to the same then. One
		// of the service's alone does not, and a start takes from the engine whether the box is
		// frozen.
		return unsynced
	}
	return synced
}

// eventsTo returns the events for the change of state and expiry from the actor's record to that
// one.
func (a *actor) eventsTo(to lifecycle.Record) []lifecycle.Event {
	var events []lifecycle.Event
	if to.Sandbox.Status.State != a.state() {
		events = append(events, a.transition(to))
	}
	if expiresAt := to.Sandbox.ExpiresAt; !expiresAt.Equal(a.record.Sandbox.ExpiresAt) {
		event := a.event(lifecycle.EventRenewed)
		event.ExpiresAt = expiresAt
		events = append(events, event)
	}
	return events
}

// transition returns the event for the change from the actor's record to that one.
func (a *actor) transition(to lifecycle.Record) lifecycle.Event {
	return stateEvent(a.state(), to.Sandbox)
}

func stateEvent(from lifecycle.State, sandbox lifecycle.Sandbox) lifecycle.Event {
	status := sandbox.Status
	return lifecycle.Event{
		SandboxID: sandbox.ID,
		Owner:     sandbox.Owner,
		Type:      lifecycle.EventState,
		Time:      status.LastTransitionAt,
		From:      from,
		To:        status.State,
		Reason:    status.Reason,
		Message:   status.Message,
	}
}

// event returns an event of the sandbox that happens now.
func (a *actor) event(kind lifecycle.EventType) lifecycle.Event {
	return lifecycle.Event{
		SandboxID: a.id,
		Owner:     a.record.Sandbox.Owner,
		Type:      kind,
		Time:      a.host.options.Clock().UTC(),
	}
}

// commit saves a changed record, then makes it visible.
func (a *actor) commit(
	as durability, record lifecycle.Record, events ...lifecycle.Event,
) error {
	if err := a.save(as, record, events); err != nil {
		if a.host.ctx.Err() != nil {
			return lifecycle.Stopping()
		}
		return fmt.Errorf("save sandbox %s: %w", a.id, err)
	}
	a.setRecord(record)
	return nil
}

// saveOrRetry makes a record visible that describes what has happened, and saves it, now or in a
// later attempt.
func (a *actor) saveOrRetry(as durability, record lifecycle.Record, events ...lifecycle.Event) {
	if err := a.save(as, record, events); err != nil {
		a.log.Error().Err(err).Msg("cannot save a change; retrying")
		a.unsaved = append(a.unsaved, events...)
		a.saveAgainAt = a.host.options.Clock().Add(saveInterval)
	}
	a.setRecord(record)
}

// save saves a record with its events and the unsaved ones: an event is never saved without its
// state.
func (a *actor) save(as durability, record lifecycle.Record, events []lifecycle.Event) error {
	save := a.host.options.Store.Save
	// What could not be saved before may have to be synced.
	if as == unsynced && a.saveAgainAt.IsZero() {
		save = a.host.options.Store.SaveUnsynced
	}
	events = slices.Concat(a.unsaved, events)
	if err := save(a.host.ctx, record, events...); err != nil {
		return err
	}
	a.unsaved, a.saveAgainAt = nil, time.Time{}
	a.host.notifier.notify(events)
	return nil
}

// retrySave saves the record and the unsaved events when their time has come.
func (a *actor) retrySave() {
	if !a.saveAgainAt.IsZero() && !a.host.options.Clock().Before(a.saveAgainAt) {
		a.saveOrRetry(synced, a.record)
	}
}

func (a *actor) setRecord(record lifecycle.Record) {
	if from, to := a.state(), record.Sandbox.Status.State; from != to {
		// The output of the sandbox, which follows the first line, is for its user: it may hold
		// anything.
		detail, _, _ := strings.Cut(record.Sandbox.Status.Message, "\n")
		a.log.Info().
			Str("from", string(from)).
			Str("to", string(to)).
			Str("reason", string(record.Sandbox.Status.Reason)).
			Str("detail", strings.TrimSuffix(detail, lifecycle.LogFollows)).
			Msg("sandbox changed state")
		a.host.options.Observer.StateChanged(to, record.Sandbox.Status.Reason)
		if to == lifecycle.StateRunning {
			a.runs.Add(1)
		}
	}
	if record.Sandbox.Status.State != lifecycle.StatePending {
		a.auth = nil
	}
	a.record = record
	a.publish()
	if state := a.state(); state.Final() || state == lifecycle.StateStopping {
		a.cancelSnapshots()
	}
}

// progress changes reason and message within a state. It need not be durable.
func (a *actor) progress(reason lifecycle.Reason, message string) {
	a.record.Sandbox.Status.Reason = reason
	a.record.Sandbox.Status.Message = message
	a.publish()
}

// reached records that provisioning has completed a stage.
func (a *actor) reached(stage lifecycle.Stage) {
	at := a.host.options.Clock()
	a.post(func() {
		a.launched = true // from here on the engine may have parts of the box
		if a.state() != lifecycle.StatePending {
			return
		}
		record := a.record
		if events := a.mark(&record, stage, at); events != nil {
			// A launch that is taken up looks at the engine for what is there: a stage that a loss
			// of power takes back was not reached as far as clients can see.
			a.saveOrRetry(unsynced, record, events...)
		}
	})
}

// mark enters a stage in a record that is about to become the actor's, and returns its event; none
// if the stage was reached before.
func (a *actor) mark(
	record *lifecycle.Record, stage lifecycle.Stage, at time.Time,
) []lifecycle.Event {
	event, first := record.Sandbox.Reach(stage, at)
	if !first {
		return nil
	}
	if began := event.Time.Add(-event.Took); !began.Before(a.host.since) {
		a.host.options.Observer.StageDone(stage, event.Took)
	}
	return []lifecycle.Event{event}
}
