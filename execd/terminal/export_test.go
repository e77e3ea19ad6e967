package terminal

import (
	"testing"
	"time"
)

// SetDrainTime changes how long the last output is waited for, until the test ends. The test must
// not be parallel.
func SetDrainTime(t *testing.T, limit time.Duration) {
	before := drainTime
	drainTime = limit
	t.Cleanup(func() { drainTime = before })
}
