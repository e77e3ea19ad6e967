package lifecycle_test

import (
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func TestReach(t *testing.T) {
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	s := lifecycle.Sandbox{ID: "id", Owner: "alice"}
	if _, ok := s.Reach(lifecycle.StagePulled, start); ok || len(s.Stages) != 0 {
		t.Errorf("a sandbox whose beginning is not known reached a stage: %+v", s.Stages)
	}
	for i, step := range []struct {
		stage         lifecycle.Stage
		after         time.Duration
		took, elapsed time.Duration
	}{
		{lifecycle.StageAccepted, 0, 0, 0},
		{lifecycle.StagePulled, 2 * time.Second, 2 * time.Second, 2 * time.Second},
		{lifecycle.StageStarted, 5 * time.Second, 3 * time.Second, 5 * time.Second}, // one in between was missed
		{lifecycle.StageReady, 4 * time.Second, 0, 4 * time.Second},                 // the clock was set back
	} {
		before := s.Clone()
		event, ok := s.Reach(step.stage, start.Add(step.after))
		if !ok || event.Took != step.took || event.Elapsed != step.elapsed || event.Stage != step.stage ||
			event.Type != lifecycle.EventStage || event.SandboxID != "id" || event.Owner != "alice" {
			t.Errorf("%s: %+v, %t", step.stage, event, ok)
		}
		if at, reached := s.Reached(step.stage); !reached || !at.Equal(start.Add(step.after)) {
			t.Errorf("%s was reached at %v, %t", step.stage, at, reached)
		}
		if _, again := s.Reach(step.stage, start.Add(time.Hour)); again || len(s.Stages) != i+1 {
			t.Errorf("%s was reached twice: %+v", step.stage, s.Stages)
		}
		if len(before.Stages) != i {
			t.Errorf("a snapshot changed: %+v", before.Stages)
		}
	}
}
