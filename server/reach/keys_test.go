package reach_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/server/reach"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	oldKey = "the-old-key-of-these-tests-0123456789"
	newKey = "the-new-key-of-these-tests-0123456789"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func keys(t *testing.T, lines ...string) reach.Keys {
	t.Helper()
	k, err := reach.ParseKeys([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSignatureIsBoundToSandboxPortAndTime(t *testing.T) {
	k := keys(t, newKey)
	signature := k.Sign("box", "T", 8000, now.Add(time.Minute+time.Millisecond))
	until, err := k.Verify(signature, "box", "T", 8000, now)
	if err != nil || !until.Equal(now.Add(time.Minute)) {
		t.Fatalf("%v, %v", until, err)
	}
	digits, rest, _ := strings.Cut(signature, ".")
	for name, tc := range map[string]struct {
		signature, id string
		port          int
		now           time.Time
		want          error
	}{
		"another sandbox":             {signature, "box2", 8000, now, reach.ErrSignature},
		"another port":                {signature, "box", 80, now, reach.ErrSignature},
		"parts that slip":             {signature, "box\n8000", 0, now, reach.ErrSignature},
		"its last moment":             {signature, "box", 8000, now.Add(time.Minute - 1), nil},
		"its end":                     {signature, "box", 8000, now.Add(time.Minute), reach.ErrExpired},
		"a later expiry":              {digits[:len(digits)-1] + "9." + rest, "box", 8000, now, reach.ErrSignature},
		"a wrong expiry that is over": {"1." + rest, "box", 8000, now, reach.ErrSignature},
		"a second spelling":           {"0" + signature, "box", 8000, now, reach.ErrSignature},
		"padding":                     {signature + "=", "box", 8000, now, reach.ErrSignature},
		"cut":                         {signature[:len(signature)-1], "box", 8000, now, reach.ErrSignature},
		"only the time":               {digits, "box", 8000, now, reach.ErrSignature},
		"nothing":                     {"", "box", 8000, now, reach.ErrSignature},
	} {
		if _, err := k.Verify(tc.signature, tc.id, "T", tc.port, tc.now); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	for _, token := range []string{"T2", ""} { // of another sandbox that has the id now, and of one that has none
		if _, err := k.Verify(signature, "box", token, 8000, now); !errors.Is(err, reach.ErrSignature) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if _, err := k.Verify(k.Sign("box", "", 8000, now.Add(time.Minute)), "box", "", 8000, now); !errors.Is(err, reach.ErrSignature) {
		t.Errorf("signed without a token: %v", err)
	}
	if _, err := (reach.Keys{}).Verify(signature, "box", "T", 8000, now); !errors.Is(err, reach.ErrSignature) {
		t.Errorf("without keys: %v", err)
	}
}

func TestKeysRotate(t *testing.T) {
	before, during, after := keys(t, oldKey), keys(t, "# the new one signs", newKey, "", oldKey), keys(t, newKey)
	old, fresh := before.Sign("box", "T", 1, now.Add(time.Hour)), during.Sign("box", "T", 1, now.Add(time.Hour))
	for name, tc := range map[string]struct {
		keys      reach.Keys
		signature string
		want      error
	}{
		"old, both keys": {during, old, nil}, "new, both keys": {during, fresh, nil},
		"old, new key": {after, old, reach.ErrSignature}, "new, new key": {after, fresh, nil}, "new, old key": {before, fresh, reach.ErrSignature},
	} {
		if _, err := tc.keys.Verify(tc.signature, "box", "T", 1, now); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

func TestKeyFiles(t *testing.T) {
	for _, bad := range []string{"", "# nothing\n\n", "short\n", newKey + "\nshort\n"} {
		if _, err := reach.ParseKeys([]byte(bad)); err == nil || strings.Contains(err.Error(), "short\"") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	path := filepath.Join(t.TempDir(), "signing.key")
	if _, err := reach.LoadKeys(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	made, err := reach.LoadOrMakeKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	signature := made.Sign("box", "T", 1, now.Add(time.Hour))
	again, err := reach.LoadOrMakeKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Verify(signature, "box", "T", 1, now); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: the key is for its owner alone", info.Mode(), err)
	}
}
