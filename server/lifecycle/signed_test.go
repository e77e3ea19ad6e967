package lifecycle_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func TestSignedUntil(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 999, time.UTC)
	for _, tc := range []struct {
		text    string
		expires time.Duration // of the sandbox
		want    string        // the time, or words of the error
	}{
		{"60", time.Hour, "2026-01-02T15:05:05Z"},
		{"86400", 25 * time.Hour, "2026-01-03T15:04:05Z"},
		{"2026-01-02T17:04:05+02:00", time.Hour, "in the future"},
		{"2026-01-02T17:05:05.5+02:00", time.Hour, "2026-01-02T15:05:05Z"},
		{"1", time.Hour, "2026-01-02T15:04:06Z"},
		{"0", time.Hour, "between 1 and 86400"},
		{"-5", time.Hour, "between 1 and 86400"},
		{"86401", 25 * time.Hour, "between 1 and 86400"},
		{"9999999999999999999", time.Hour, "neither"},
		{"2026-01-03T15:04:07Z", 48 * time.Hour, "at most 86400"},
		{"2020-01-01T00:00:00Z", time.Hour, "in the future"},
		{"3601", time.Hour, "sandbox's own expiry"},
		{"tomorrow", time.Hour, "neither"},
		{"1.5", time.Hour, "neither"},
		{"", time.Hour, "neither"},
	} {
		got, err := lifecycle.SignedUntil(tc.text, now, now.Add(tc.expires))
		if err == nil {
			if got.Format(time.RFC3339Nano) != tc.want {
				t.Errorf("%q: %v, want %s", tc.text, got, tc.want)
			}
			continue
		}
		var known *lifecycle.Error
		if !errors.As(err, &known) || known.Kind != lifecycle.KindInvalid || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "expires") {
			t.Errorf("%q: %v, want %s", tc.text, err, tc.want)
		}
	}
}
