package webhooks

import (
	"encoding/base64"
	"errors"
	"net/netip"
	"testing"
	"time"
)

// TestSign: the example that implementations of Standard Webhooks have in common.
func TestSign(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != want {
		t.Errorf("the signature is %s, want %s", got, want)
	}
}

func TestPause(t *testing.T) {
	for failures, want := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute, 1000: 5 * time.Minute,
	} {
		for range 100 {
			if got := pause(failures, errors.New("any")); got < want/2 || got > want {
				t.Errorf("after %d failures the pause is %v, want from %v to %v", failures, got, want/2, want)
			}
		}
	}
	for requested, want := range map[time.Duration]time.Duration{2 * time.Minute: 2 * time.Minute, 24 * time.Hour: time.Hour} {
		if got := pause(1, &refusal{503, requested}); got != want {
			t.Errorf("with Retry-After of %v the pause is %v, want %v", requested, got, want)
		}
	}
	if got := pause(5, &refusal{503, time.Second}); got < 8*time.Second {
		t.Errorf("a short Retry-After makes the pause %v", got)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, "-1": 0, "1.5": 0, "soon": 0, "99999999999999999999": 0,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:03:05 GMT": 0,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

// TestPublic: TestPrivateAddresses has those that are refused.
func TestPublic(t *testing.T) {
	for _, address := range []string{"8.8.8.8:443", "[2606:4700::1111]:443", "[::ffff:8.8.8.8]:443"} {
		if err := public(netip.MustParseAddrPort(address)); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}
