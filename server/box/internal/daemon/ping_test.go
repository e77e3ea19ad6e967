package daemon

import (
	"testing"
	"time"
)

// TestQuestionsThinOut counts the questions that an execd gets that takes long to start, by adding
// up the pauses between them.
func TestQuestionsThinOut(t *testing.T) {
	for _, tt := range []struct {
		after  time.Duration // execd answers
		atMost int           // questions
	}{
		{20 * time.Millisecond, 11},
		{200 * time.Millisecond, 40},
		{time.Second, 70},
		{30 * time.Second, 700},
	} {
		waited, questions := time.Duration(0), 1
		for waited < tt.after {
			waited += askAgain(waited)
			questions++
		}
		if questions > tt.atMost {
			t.Errorf("an execd that answers after %v is asked %d times, want at most %d", tt.after, questions, tt.atMost)
		}
		// What the pause adds to the start.
		if late, atMost := waited-tt.after, max(2*time.Millisecond, tt.after/10); late > atMost {
			t.Errorf("an execd that answers after %v is found %v later, want at most %v", tt.after, late, atMost)
		}
	}
}
