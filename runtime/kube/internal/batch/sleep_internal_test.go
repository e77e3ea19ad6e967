package batch

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestShortenedHistory: however often a batch sleeps, its history says when it first was Running.
func TestShortenedHistory(t *testing.T) {
	var history []v1alpha1.PhaseChange
	add := func(phase v1alpha1.Phase, message string) {
		history = shortened(append(history, v1alpha1.PhaseChange{Phase: phase, Message: message}))
	}
	add(v1alpha1.PhasePending, "")
	add(v1alpha1.PhaseRunning, "first")
	for i := range 100 {
		add(v1alpha1.PhasePaused, fmt.Sprint(i))
		add(v1alpha1.PhaseRunning, fmt.Sprint(i))
	}
	if n := len(history); n != maxHistory || history[0].Phase != v1alpha1.PhasePending ||
		history[1].Message != "first" || history[2].Message != "85" || history[n-1].Message != "99" {
		t.Errorf("%d changes: %+v", n, history)
	}
}

// TestIdleIsNotBelieved: not before the time that was asked for, whatever a program says that has
// taken execd's place, and not right before the time to wake at.
func TestIdleIsNotBelieved(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		began       time.Time
		wakeAt      time.Time
		least, most time.Duration
	}{
		"at once":            {began: now, least: 50 * time.Second, most: time.Minute},
		"in time":            {began: now.Add(-time.Hour)},
		"woken soon":         {began: now.Add(-time.Hour), wakeAt: now.Add(900 * time.Millisecond), most: time.Second},
		"woken later":        {began: now.Add(-time.Hour), wakeAt: now.Add(time.Hour)},
		"woken in the past":  {began: now.Add(-time.Hour), wakeAt: now.Add(-time.Hour)},
		"at once, and woken": {began: now, wakeAt: now.Add(time.Minute), least: 50 * time.Second, most: time.Minute},
	} {
		s := &idleWatch{quiet: time.Minute}
		got := s.untilIdle(tt.began, watchEvent{WakeAt: tt.wakeAt})
		if got < tt.least || got > tt.most {
			t.Errorf("%s: idle after %v, want %v to %v", name, got, tt.least, tt.most)
		}
	}
}

// TestExecdThatChangesOften: changes without end have a batch reconciled a few times per second,
// and the last of them has it reconciled, too.
func TestExecdThatChangesOften(t *testing.T) {
	var at, later int
	began := time.Now()
	f := newIdleWatches(nil, func(_, _ string, pause time.Duration) {
		if pause == 0 {
			at++
		} else {
			later++
		}
	})
	s := &idleWatch{of: f, limit: rate.NewLimiter(maxChanges, maxChanges)}
	for i := range 1000 {
		s.set(t.Context(), func(now *activity) { now.asleep = i%2 == 0 })
	}
	most := maxChanges * (1 + time.Since(began).Seconds())
	if at < maxChanges || float64(at) > most || at+later != 1000 {
		t.Errorf("of 1000 changes %d are looked at without a pause, want %d to %.1f, and %d with one",
			at, maxChanges, most, later)
	}
}
