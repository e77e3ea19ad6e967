package host_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// soon stores a sandbox that expires after d.
func (m *machine) soon(id string, state lifecycle.State, status engine.Status, d time.Duration) time.Time {
	m.t.Helper()
	r := m.record(id, state)
	r.Sandbox.ExpiresAt = m.clock.now().UTC().Add(d)
	m.had(r, status)
	return r.Sandbox.ExpiresAt
}

func TestExpiryIsPrecise(t *testing.T) {
	// How late an expiry is, is measured by the benchmark of that name; here only the clock of each
	// sandbox may end it, and no sweep, which comes a minute later.
	const sandboxes, atMost = 200, 20 * time.Second
	m := newMachine(t)
	for i := range sandboxes {
		m.soon(fmt.Sprintf("s%d", i), lifecycle.StateRunning, engine.StatusRunning, 1500*time.Millisecond+time.Duration(i)*2*time.Millisecond)
	}
	// The removal never comes to its end, so that the last transition stays the one to Stopping.
	m.engine.failBefore(callRemove, func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	})
	m.start()
	worst := time.Duration(0)
	for i := range sandboxes {
		id := fmt.Sprintf("s%d", i)
		status := m.awaitReason(id, lifecycle.StateStopping, lifecycle.ReasonExpired)
		lateness := status.LastTransitionAt.Sub(m.get(id).ExpiresAt)
		if lateness < 0 {
			t.Errorf("%s ended %v too early", id, -lateness)
		}
		worst = max(worst, lateness)
	}
	if worst > atMost {
		t.Errorf("the latest sandbox ended %v late, want at most %v", worst, atMost)
	}
	t.Logf("worst lateness of %d: %v", sandboxes, worst)
}

func TestExpiryEndsEveryLivingState(t *testing.T) {
	m := newMachine(t)
	hang := func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for _, call := range []string{callEnsureImage, callFreeze, callThaw} {
		m.engine.failBefore(call, hang)
	}
	// The host's own start needs the image of execd.
	m.engine.failBefore(callEnsureImage, func(ctx context.Context, ref string) error {
		if ref == "execd" {
			return nil
		}
		return hang(ctx, ref)
	})
	const d = 300 * time.Millisecond
	m.soon("pending", lifecycle.StatePending, "", d)
	m.soon("running", lifecycle.StateRunning, engine.StatusRunning, d)
	m.soon("pausing", lifecycle.StatePausing, engine.StatusRunning, d)
	m.soon("paused", lifecycle.StatePaused, engine.StatusFrozen, d)
	m.soon("resuming", lifecycle.StateResuming, engine.StatusFrozen, d)
	m.soon("overdue", lifecycle.StateRunning, engine.StatusRunning, -time.Minute)
	m.start()
	for _, id := range []string{"pending", "running", "pausing", "paused", "resuming", "overdue"} {
		m.awaitReason(id, lifecycle.StateTerminated, lifecycle.ReasonExpired)
	}
	m.awaitEmpty()
}

func TestExpiryWhileExecdDoesNotAnswer(t *testing.T) {
	m := newMachine(t)
	m.engine.answerPing(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	m.soon("pending", lifecycle.StatePending, "", 300*time.Millisecond)
	m.start()
	m.awaitReason("pending", lifecycle.StateTerminated, lifecycle.ReasonExpired)
	m.awaitEmpty()
}

func TestRenewMovesTheTimer(t *testing.T) {
	m := newMachine(t)
	first := m.soon("renewed", lifecycle.StateRunning, engine.StatusRunning, 500*time.Millisecond)
	m.soon("other", lifecycle.StateRunning, engine.StatusRunning, 700*time.Millisecond)
	m.start()
	ctx := t.Context()
	second := first.Add(700 * time.Millisecond)
	got, err := m.host.Renew(ctx, "renewed", second)
	if err != nil || !got.Equal(second) {
		t.Fatalf("renew: %v, %v", got, err)
	}
	// The other one ends after the first expiry has passed: a timer that was still set to that
	// would have fired by now.
	m.await("other", lifecycle.StateTerminated)
	if state := m.get("renewed").Status.State; state != lifecycle.StateRunning {
		t.Fatalf("after its first expiry the renewed sandbox is %s", state)
	}
	m.await("renewed", lifecycle.StateTerminated)
	if now := time.Now(); now.Before(second) {
		t.Errorf("ended %v before its new expiry", second.Sub(now))
	}
}

func TestRenewRules(t *testing.T) {
	m := newMachine(t)
	m.had(m.record("ended", lifecycle.StateTerminated), "")
	m.start()
	id := m.paused()
	expiry := m.get(id).ExpiresAt
	tests := []struct {
		name string
		id   string
		to   time.Time
		want lifecycle.Kind
	}{
		{"in the past", id, time.Now().Add(-time.Second), lifecycle.KindInvalid},
		{"not later than now", id, expiry, lifecycle.KindInvalid},
		{"earlier", id, expiry.Add(-time.Minute), lifecycle.KindInvalid},
		{"too far", id, time.Now().Add(lifecycle.MaxTimeout + time.Minute), lifecycle.KindInvalid},
		{"ended", "ended", time.Now().Add(2 * time.Hour), lifecycle.KindConflict},
		{"unknown", "unknown", time.Now().Add(2 * time.Hour), lifecycle.KindNotFound},
		{"while paused", id, expiry.Add(time.Minute), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := m.host.Renew(t.Context(), tt.id, tt.to); kindOf(err) != tt.want || (tt.want == "") != (err == nil) {
				t.Errorf("error %v, want kind %q", err, tt.want)
			}
		})
	}
	if got := m.get(id).ExpiresAt; !got.Equal(expiry.Add(time.Minute)) {
		t.Errorf("expiry %v, want %v", got, expiry.Add(time.Minute))
	}
	if _, err := m.host.Renew(t.Context(), id, time.Now().Add(lifecycle.MaxTimeout-time.Minute)); err != nil {
		t.Errorf("almost a day from now: %v", err)
	}
}

func TestTimesAreAbsolute(t *testing.T) {
	m := newMachine(t).start()
	sandbox := m.get(m.create())
	// A monotonic reading would make a sandbox outlive its expiresAt after the clock was set.
	if sandbox.ExpiresAt != sandbox.ExpiresAt.Round(0) || sandbox.CreatedAt != sandbox.CreatedAt.Round(0) {
		t.Error("the times carry a reading of the monotonic clock")
	}
}

func TestRecordsAreForgottenInTime(t *testing.T) {
	m := newMachine(t)
	m.options.TerminatedRetention = 300 * time.Millisecond
	m.options.FailedPendingRetention = time.Hour
	m.engine.failAfter(callStart, func(_ context.Context, name string) error {
		if m.engine.count(callStart) == 1 {
			return fmt.Errorf("refused")
		}
		return nil
	})
	m.start()
	failedPending := m.create()
	m.await(failedPending, lifecycle.StateFailed)
	m.engine.failAfter(callStart, nil)
	failedRunning, terminated := m.running(), m.running()
	m.engine.exit(container(failedRunning), 1, false)
	m.engine.exit(container(terminated), 0, false)
	for _, id := range []string{failedRunning, terminated} {
		m.awaitForgotten(id)
	}
	if kind := kindOf(errorOf(m.host.Get(t.Context(), failedPending))); kind == lifecycle.KindNotFound {
		t.Error("the sandbox that failed while Pending was forgotten before PENDING_FAILURE_TTL")
	}
	m.clock.advance(time.Hour)
	// The sandbox's timer does not follow the test's clock: a request makes the actor read it.
	if err := m.host.Delete(t.Context(), failedPending); kindOf(err) != lifecycle.KindConflict && kindOf(err) != lifecycle.KindNotFound {
		t.Errorf("delete of a Failed sandbox: %v", err)
	}
	m.awaitForgotten(failedPending)
	listing, err := m.host.List(t.Context(), lifecycle.Filter{}, lifecycle.Page{Number: 1, Size: 10})
	if err != nil || listing.Total != 0 {
		t.Errorf("list: %+v, %v", listing, err)
	}
	left, err := m.store.Load(t.Context())
	if err != nil || len(left) != 0 {
		t.Errorf("the store still has %v, %v", left, err)
	}
	m.awaitEmpty()
}

func TestRetentionIsPerState(t *testing.T) {
	m := newMachine(t)
	m.start()
	began := m.clock.now()
	failed, ended := m.running(), m.running()
	m.engine.exit(container(failed), 1, false)
	m.engine.exit(container(ended), 0, false)
	m.engine.failBefore(callCreate, func(context.Context, string) error { return fmt.Errorf("refused") })
	pending := m.create()
	want := map[string]time.Duration{
		failed:  m.options.TerminatedRetention,
		ended:   m.options.TerminatedRetention,
		pending: m.options.FailedPendingRetention,
	}
	wait.Until(t, "three records are kept", func() bool { return len(m.retained()) == 3 }, func() any { return m.retained() })
	for id, until := range m.retained() {
		if got := until.Sub(began); got < want[id] || got > want[id]+time.Minute {
			t.Errorf("%s is kept for %v, want %v", id, got, want[id])
		}
	}
}

// retained returns until when the records of removed sandboxes are kept.
func (m *machine) retained() map[string]time.Time {
	m.t.Helper()
	records, err := m.store.Load(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	until := map[string]time.Time{}
	for _, r := range records {
		if r.Removed {
			until[r.Sandbox.ID] = r.RetainUntil
		}
	}
	return until
}

func (m *machine) awaitForgotten(id string) {
	m.t.Helper()
	wait.Until(m.t, "the record of "+id+" is forgotten", func() bool {
		_, err := m.host.Get(context.Background(), id)
		return kindOf(err) == lifecycle.KindNotFound
	})
}

func errorOf[T any](_ T, err error) error { return err }

// The timers of idle actors run by the monotonic clock: only the sweep sees that the wall clock was
// set forward.
func TestExpiryAfterTheClockWasSetForward(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	if text := m.get(id).ExpiresAt.String(); strings.Contains(text, "m=") {
		t.Errorf("the expiry %s is one of the monotonic clock", text)
	}
	m.clock.advance(2 * time.Hour)
	m.host.Sweep()
	m.awaitReason(id, lifecycle.StateTerminated, lifecycle.ReasonExpired)
	m.awaitEmpty()
	if text := m.retained()[id].String(); strings.Contains(text, "m=") {
		t.Errorf("the retention ends at %s, by the monotonic clock", text)
	}
	m.clock.advance(m.options.TerminatedRetention + time.Minute)
	m.host.Sweep()
	m.awaitForgotten(id)
}

// An ended sandbox keeps what answers have, and neither the rest of its spec nor credentials.
func TestEndedSandboxKeepsNoSpec(t *testing.T) {
	m := newMachine(t).start()
	s := spec()
	s.Env = map[string]string{"LARGE": strings.Repeat("x", 1<<16)}
	s.Metadata = map[string]string{"name": "demo"}
	s.Auth = &lifecycle.ImageAuth{Username: "u", Password: "p"}
	options := lifecycle.CreateOptions{IdempotencyKey: "key"}
	for _, fails := range []bool{false, true} {
		if fails {
			options.IdempotencyKey = "another"
			m.engine.failBefore(callStart, func(context.Context, string) error { return errRefused })
		}
		created, err := m.host.Create(t.Context(), s, options)
		if err != nil {
			t.Fatal(err)
		}
		want := lifecycle.StateTerminated
		if fails {
			want = lifecycle.StateFailed
		} else {
			m.await(created.ID, lifecycle.StateRunning)
			if err := m.host.Delete(t.Context(), created.ID); err != nil {
				t.Fatal(err)
			}
		}
		m.await(created.ID, want)
		// The record is published when it is stored.
		wait.Until(t, "the record is marked as removed", func() bool { return m.host.RecordOf(created.ID).Removed })
		records, err := m.store.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Sandbox.ID == created.ID && !reflect.DeepEqual(r.Spec, lifecycle.Spec{}) {
				t.Errorf("%s: the stored record has %d variables", want, len(r.Spec.Env))
			}
		}
		if r := m.host.RecordOf(created.ID); !reflect.DeepEqual(r.Spec, lifecycle.Spec{}) {
			t.Errorf("%s: the record has %d variables", want, len(r.Spec.Env))
		}
		again, err := m.host.Create(t.Context(), s, options)
		if err != nil || again.ID != created.ID || again.Image != s.Image || again.Metadata["name"] != "demo" ||
			!slices.Equal(again.Entrypoint, s.Entrypoint) || again.Status.State != want {
			t.Errorf("the repeated request: %+v, %v", again, err)
		}
	}
}

// The credentials are for the pull, and are not in what the service keeps of a living sandbox.
func TestCredentialsAreNotKept(t *testing.T) {
	m := newMachine(t).start()
	s := spec()
	s.Auth = &lifecycle.ImageAuth{Username: "u", Password: "p"}
	pull := newGate()
	m.engine.failBefore(callEnsureImage, pull.fault)
	created, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pull.await(t)
	if r := m.host.RecordOf(created.ID); r.Spec.Auth != nil || !r.NeedsAuth {
		t.Errorf("the record has %v, and needs credentials: %t", r.Spec.Auth, r.NeedsAuth)
	}
	if !m.host.HasAuth(created.ID) {
		t.Error("the pull has no credentials")
	}
	if err := m.host.Delete(t.Context(), created.ID); err != nil {
		t.Fatal(err)
	}
	m.await(created.ID, lifecycle.StateTerminated)
	if m.host.HasAuth(created.ID) {
		t.Error("a sandbox that was deleted during the pull keeps the credentials")
	}
}
