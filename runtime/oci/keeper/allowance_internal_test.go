package keeper

import (
	"testing"
	"time"
)

func TestAllowance(t *testing.T) {
	now := time.Unix(1000, 0)
	var a allowance
	if wait := a.spend(outputBurst, now); wait != 0 {
		t.Errorf("after the burst: %v", wait)
	}
	if wait := a.spend(outputRate/2, now); wait != 500*time.Millisecond {
		t.Errorf("after half a second's bytes: %v", wait)
	}
	now = now.Add(500 * time.Millisecond)
	if wait := a.spend(0, now); wait != time.Second*leastMoved/outputRate {
		t.Errorf("after a movement of nothing: %v", wait)
	}
	now = now.Add(time.Hour)
	if wait := a.spend(outputBurst, now); wait != 0 {
		t.Errorf("the burst after an hour: %v", wait)
	}
	if wait := a.spend(outputRate, now.Add(-time.Hour)); wait != time.Second {
		t.Errorf("with a clock that was set back: %v", wait)
	}
}
