package lifecycle_test

import (
	"errors"
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// expectInvalid demands an Error of KindInvalid whose message begins with the field and contains
// the parts.
func expectInvalid(t *testing.T, err error, field string, parts ...string) {
	t.Helper()
	expectError(t, err, lifecycle.KindInvalid, parts...)
	if err != nil && !strings.HasPrefix(err.Error(), field) {
		t.Errorf("message %q does not begin with %q", err, field)
	}
}

func expectError(t *testing.T, err error, kind lifecycle.Kind, parts ...string) {
	t.Helper()
	var failure *lifecycle.Error
	if !errors.As(err, &failure) || failure.Kind != kind {
		t.Errorf("got error %v, want one of kind %q", err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(failure.Message, part) {
			t.Errorf("message %q does not contain %q", failure.Message, part)
		}
	}
}

func TestConflict(t *testing.T) {
	for name, test := range map[string]struct {
		allowed []lifecycle.State
		want    string
	}{
		"none":  {nil, "cannot pause: the sandbox is Stopping"},
		"one":   {[]lifecycle.State{"Running"}, "cannot pause: the sandbox is Stopping; it must be Running"},
		"two":   {[]lifecycle.State{"Running", "Paused"}, "cannot pause: the sandbox is Stopping; it must be Running or Paused"},
		"three": {[]lifecycle.State{"Pending", "Running", "Paused"}, "cannot pause: the sandbox is Stopping; it must be Pending, Running or Paused"},
	} {
		t.Run(name, func(t *testing.T) {
			got := lifecycle.StateStopping.Conflict("pause", test.allowed...)
			if got.Kind != lifecycle.KindConflict || got.Message != test.want {
				t.Errorf("got %s %q, want %s %q", got.Kind, got.Message, lifecycle.KindConflict, test.want)
			}
		})
	}
}

func TestNotFound(t *testing.T) {
	expectError(t, lifecycle.NotFound("abc"), lifecycle.KindNotFound, `"abc"`)
}
