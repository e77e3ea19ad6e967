package e2b

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func TestExpiries(t *testing.T) {
	e := &Edge{Options: Options{Clock: func() time.Time { return now }}}
	pausing := map[string]string{onTimeoutKey: pause}
	for _, test := range []struct {
		left     time.Duration
		metadata map[string]string
		want     time.Duration
	}{
		{time.Second, nil, time.Minute}, {time.Hour, nil, time.Hour}, {time.Hour, pausing, time.Hour + pauseMargin},
		{24 * time.Hour, nil, 24 * time.Hour}, {24 * time.Hour, pausing, 24 * time.Hour},
	} {
		if got := e.expiryFor(now.Add(test.left), test.metadata).Sub(now); got != test.want {
			t.Errorf("%s, %v: %s, want %s", test.left, test.metadata, got, test.want)
		}
	}
}

func TestDeadlines(t *testing.T) {
	d := newDeadlines()
	d.set("late", now.Add(10*time.Second))
	d.set("due", now)
	ids, wait := d.due(now)
	if !reflect.DeepEqual(ids, []string{"due"}) || wait != 10*time.Second {
		t.Errorf("%q, %s", ids, wait)
	}
	if ids, wait = d.due(now.Add(time.Minute)); !reflect.DeepEqual(ids, []string{"late"}) || wait != lookInterval {
		t.Errorf("%q, %s", ids, wait)
	}
}

// TestForgottenDeadlines: the deadline of a sandbox that has ended is kept until the next look
// through all sandboxes, and not until it comes.
func TestForgottenDeadlines(t *testing.T) {
	d := newDeadlines()
	d.set("ended", now.Add(time.Hour))
	d.set("alive", now.Add(time.Hour))
	d.beginLook()
	d.set("alive", now.Add(time.Hour)) // it is in the list
	d.set("new", now.Add(time.Hour))   // it was created behind what has been read of the list
	d.endLook()
	if got := slices.Sorted(maps.Keys(d.byID)); !reflect.DeepEqual(got, []string{"alive", "new"}) {
		t.Errorf("%q", got)
	}
}

// oneSandbox is a backend with one sandbox, which notes what is asked of it.
type oneSandbox struct {
	lifecycle.Backend
	sandbox lifecycle.Sandbox
	asked   string
}

func (b *oneSandbox) Read(context.Context, string) (lifecycle.Sandbox, error) { return b.sandbox, nil }

func (b *oneSandbox) Delete(context.Context, string) error { b.asked = "delete"; return nil }

func (b *oneSandbox) Pause(context.Context, string) error { b.asked = "pause"; return nil }

func (b *oneSandbox) Renew(_ context.Context, _ string, at time.Time) (time.Time, error) {
	b.asked = "renew"
	return at, nil
}

// TestDeadlineOfAPausedSandbox: what a client has paused lives on, and what is only idle does not.
func TestDeadlineOfAPausedSandbox(t *testing.T) {
	for _, tt := range []struct {
		reason    lifecycle.Reason
		onTimeout string
		want      string
	}{
		{lifecycle.ReasonUserPause, "", "renew"},
		{lifecycle.ReasonTimeout, "", "renew"},
		{lifecycle.ReasonIdle, "", "delete"},
		{lifecycle.ReasonIdle, pause, "pause"},
	} {
		b := &oneSandbox{sandbox: lifecycle.Sandbox{
			Status: lifecycle.Status{State: lifecycle.StatePaused, Reason: tt.reason}, ExpiresAt: now.Add(time.Minute),
			Metadata: map[string]string{deadlineKey: now.Add(-time.Second).Format(time.RFC3339Nano), onTimeoutKey: tt.onTimeout},
		}}
		e := &Edge{Options: Options{Backend: b, Clock: func() time.Time { return now }}, deadlines: newDeadlines()}
		e.keep(t.Context(), id)
		if b.asked != tt.want {
			t.Errorf("paused for %s, %q at the deadline: %q, want %q", tt.reason, tt.onTimeout, b.asked, tt.want)
		}
	}
}
