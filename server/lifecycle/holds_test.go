package lifecycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

// TestParseHolds: whatever has taken the place of a daemon may report anything.
func TestParseHolds(t *testing.T) {
	one := fmt.Sprintf(`{"kind":%q,"id":"a","since":"2026-01-02T15:04:05+01:00"}`, strings.Repeat("k", 300))
	many := `{"holds":[` + strings.TrimSuffix(strings.Repeat(one+",", 1001), ",") + `],"idleMilliseconds":-5}`
	holds, err := lifecycle.ParseHolds([]byte(many))
	if err != nil || len(holds.Holds) != 1000 || len(holds.Holds[0].Kind) != 256 || holds.Holds[0].ID != "a" ||
		holds.Holds[0].Since != time.Date(2026, 1, 2, 14, 4, 5, 0, time.UTC) || holds.Idle != 0 {
		t.Errorf("%d holds, idle for %v, %v", len(holds.Holds), holds.Idle, err)
	}
	if holds, err := lifecycle.ParseHolds([]byte(`{"idleMilliseconds":9e18}`)); err == nil && holds.Idle != lifecycle.MaxIdle {
		t.Errorf("idle for %v", holds.Idle)
	}
	for _, text := range []string{"", "[]", `{"holds":1}`, "<html>"} {
		if _, err := lifecycle.ParseHolds([]byte(text)); err == nil {
			t.Errorf("%q is taken for holds", text)
		}
	}
}
