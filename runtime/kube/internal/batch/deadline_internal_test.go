package batch

import (
	"testing"
	"time"
)

// TestTimesAreLookedAtOften: the queue's timers stand still while the host is suspended, and
// follow no step of the clock.
func TestTimesAreLookedAtOften(t *testing.T) {
	now := time.Now()
	for wait, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Millisecond, time.Second: time.Second, 24 * time.Hour: time.Minute,
	} {
		var due deadline
		due.in(now, wait)
		if got := due.result(now).RequeueAfter; got != want {
			t.Errorf("due in %v: looked at again after %v, want %v", wait, got, want)
		}
	}
	var none deadline
	if got := none.result(now).RequeueAfter; got != 0 {
		t.Errorf("nothing is due, and it is looked at again after %v", got)
	}
}
