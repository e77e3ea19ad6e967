package keys_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

func TestMain(m *testing.M) {
	if dir, kill, ok := strings.Cut(os.Getenv(makerDir), ":"); ok {
		fmt.Fprintln(os.Stderr, makeUntilKilled(dir, kill))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

var admin = keys.Key{Name: "server.api_key", Role: lifecycle.RoleAdmin, Digest: sha256.Sum256([]byte("configured"))}

// openRing opens a ring over the store in a directory, with the keys of a configuration.
func openRing(t *testing.T, dir string, configured ...keys.Key) (ring *keys.Ring, stop func()) {
	t.Helper()
	records, err := store.Open(dir, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ring, err = keys.New(t.Context(), keys.Options{Configured: configured, Store: records, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		ring.Close()
		if err := records.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return ring, stop
}

func create(t *testing.T, ring *keys.Ring, spec keys.Spec) (secret string) {
	t.Helper()
	if spec.Role == "" {
		spec.Role = lifecycle.RoleUser
	}
	_, secret, err := ring.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func wantKind(t *testing.T, err error, kind lifecycle.Kind, words ...string) {
	t.Helper()
	var known *lifecycle.Error
	if !errors.As(err, &known) || known.Kind != kind {
		t.Errorf("%v, want an error of kind %s", err, kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(known.Message, word) {
			t.Errorf("%q is not in %q", word, known.Message)
		}
	}
}

// TestKeysOutliveTheService: with what was last said about them.
func TestKeysOutliveTheService(t *testing.T) {
	dir := t.TempDir()
	ring, stop := openRing(t, dir, admin)
	kept, removed := create(t, ring, keys.Spec{Name: "kept", Limits: lifecycle.KeyLimits{MaxSandboxes: 2}}), create(t, ring, keys.Spec{Name: "removed"})
	rotated := create(t, ring, keys.Spec{Name: "rotated"})
	_, again, err := ring.Rotate(t.Context(), "rotated", time.Hour, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if err := ring.Delete(t.Context(), "removed"); err != nil {
		t.Fatal(err)
	}
	if _, ok := ring.Find(kept); !ok {
		t.Error("a new key is not valid")
	}
	stop()
	ring, _ = openRing(t, dir, admin)
	for secret, want := range map[string]bool{kept: true, rotated: true, again: true, removed: false, "configured": true, "": false} {
		if got := ring.Holds(secret); got != want {
			t.Errorf("%q is valid: %t", secret, got)
		}
	}
	found, err := ring.Get("kept")
	if err != nil || found.LastUsedAt.IsZero() || found.Limits.MaxSandboxes != 2 || found.Digest != nil {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestNamesAreNotReused: what belongs to a name is not the next key's by accident.
func TestNamesAreNotReused(t *testing.T) {
	dir := t.TempDir()
	ring, stop := openRing(t, dir, admin, keys.Key{Name: "of the file", Role: lifecycle.RoleUser})
	create(t, ring, keys.Spec{Name: "ci"})
	_, _, err := ring.Create(t.Context(), keys.Spec{Name: "ci", TakeOver: true})
	wantKind(t, err, lifecycle.KindConflict, `"ci"`, "already")
	_, _, err = ring.Create(t.Context(), keys.Spec{Name: "of the file", TakeOver: true})
	wantKind(t, err, lifecycle.KindConflict, "configuration")
	if err := ring.Delete(t.Context(), "ci"); err != nil {
		t.Fatal(err)
	}
	stop()
	ring, _ = openRing(t, dir, admin)
	for _, name := range []string{"ci", "of the file"} {
		_, _, err := ring.Create(t.Context(), keys.Spec{Name: name, Role: lifecycle.RoleUser})
		wantKind(t, err, lifecycle.KindConflict, name, "takeOver")
		create(t, ring, keys.Spec{Name: name, TakeOver: true})
	}
}

// TestTheConfigurationComesFirst: a key that it gets later with the name of one that was made is
// the one that counts.
func TestTheConfigurationComesFirst(t *testing.T) {
	dir := t.TempDir()
	ring, stop := openRing(t, dir, admin)
	made := create(t, ring, keys.Spec{Name: "ci"})
	stop()
	ring, stop = openRing(t, dir, admin, keys.Key{Name: "ci", Role: lifecycle.RoleViewer, Digest: sha256.Sum256([]byte("of the file"))})
	if ring.Holds(made) || !ring.Holds("of the file") {
		t.Error("the key of the configuration is not the one that counts")
	}
	if key, err := ring.Get("ci"); err != nil || key.Source != lifecycle.KeyOfConfiguration {
		t.Errorf("%+v, %v", key, err)
	}
	wantKind(t, ring.Delete(t.Context(), "ci"), lifecycle.KindConflict, "configuration")
	stop()
	ring, _ = openRing(t, dir, admin)
	if !ring.Holds(made) {
		t.Error("the key does not come back")
	}
}

// TestNobodyIsLockedOut: neither does the service open when the configuration loses its keys, nor
// does its last administrator go.
func TestNobodyIsLockedOut(t *testing.T) {
	dir := t.TempDir()
	ring, stop := openRing(t, dir)
	if !ring.Open() {
		t.Error("a service without keys is not open")
	}
	_, _, err := ring.Create(t.Context(), keys.Spec{Name: "ci", Role: lifecycle.RoleAdmin})
	wantKind(t, err, lifecycle.KindConflict, "server.api_key")
	stop()
	ring, stop = openRing(t, dir, admin)
	create(t, ring, keys.Spec{Name: "one", Role: lifecycle.RoleAdmin})
	create(t, ring, keys.Spec{Name: "two", Role: lifecycle.RoleAdmin})
	create(t, ring, keys.Spec{Name: "user"})
	stop()
	ring, _ = openRing(t, dir)
	if ring.Open() {
		t.Error("a service with keys of its own is open")
	}
	for _, name := range []string{"user", "two"} {
		if err := ring.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	wantKind(t, ring.Delete(t.Context(), "one"), lifecycle.KindConflict, "last", "server.api_key")
}

// TestTimes: of validity, of what a secret lets in, and of uses, by the clock.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &memory{}
		ring, err := keys.New(t.Context(), keys.Options{Configured: []keys.Key{admin}, Store: records, Logger: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		defer ring.Close()
		began := time.Now()
		secret := create(t, ring, keys.Spec{Name: "ci", ExpiresAt: began.Add(time.Hour)})
		found, ok := ring.Find(secret)
		if !ok || found.Alive.Err() != nil {
			t.Fatal("a new key is not valid")
		}
		time.Sleep(30 * time.Second)
		ring.Find(secret)
		if key, _ := ring.Get("ci"); !key.LastUsedAt.Equal(began) {
			t.Errorf("a use within a minute is noted: %v after the first", key.LastUsedAt.Sub(began))
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if at, n := records.lastUse("ci"); !at.Equal(began) || n != 1 {
			t.Errorf("written %d times, last %v", n, at)
		}
		time.Sleep(time.Hour - 61*time.Second - time.Millisecond)
		synctest.Wait()
		if _, ok := ring.Find(secret); !ok || found.Alive.Err() != nil {
			t.Error("key expires too early")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if _, ok := ring.Find(secret); ok || found.Alive.Err() == nil {
			t.Error("key does not expire, or its requests continue")
		}
	})
}

// TestHowManyKeys: their number is bounded.
func TestHowManyKeys(t *testing.T) {
	records := &memory{}
	for i := range lifecycle.MaxKeys {
		digest := sha256.Sum256(fmt.Append(nil, i))
		records.keys = append(records.keys, lifecycle.APIKey{Name: fmt.Sprint(i), Role: lifecycle.RoleUser, Digest: digest[:]})
	}
	ring, err := keys.New(t.Context(), keys.Options{Configured: []keys.Key{admin}, Store: records, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	if found, ok := ring.Find("9999"); !ok || found.Name != "9999" {
		t.Errorf("%+v, %t", found, ok)
	}
	_, _, err = ring.Create(t.Context(), keys.Spec{Name: "one more", Role: lifecycle.RoleUser})
	wantKind(t, err, lifecycle.KindConflict, "10000")
	page, total := ring.List(lifecycle.Page{Number: 11, Size: 1000})
	if len(page) != 1 || total != 10001 || page[0].Name != "server.api_key" {
		t.Errorf("%d of %d", len(page), total)
	}
	if page, _ := ring.List(lifecycle.Page{Number: 1 << 62, Size: 1000}); len(page) != 0 {
		t.Errorf("a page past the last has %d keys", len(page))
	}
}

// TestConcurrentUse: requests go on while keys change.
func TestConcurrentUse(t *testing.T) {
	ring, _ := openRing(t, t.TempDir(), admin)
	secret := create(t, ring, keys.Spec{Name: "stays"})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			name := fmt.Sprint("ci-", i)
			for range 5 {
				if _, _, err := ring.Create(t.Context(), keys.Spec{Name: name, Role: lifecycle.RoleUser, TakeOver: true}); err != nil {
					t.Error(err)
				}
				_, again, err := ring.Rotate(t.Context(), name, time.Minute, time.Time{})
				if err != nil || !ring.Holds(again) {
					t.Errorf("%v", err)
				}
				if err := ring.Delete(t.Context(), name); err != nil || ring.Holds(again) {
					t.Errorf("%v", err)
				}
			}
		})
		group.Go(func() {
			for range 1000 {
				found, ok := ring.Find(secret)
				if named, known := ring.Named("stays"); !ok || !known || found.Name != named.Name {
					t.Error("a key that stays is not valid")
				}
				ring.List(lifecycle.Page{Number: 1, Size: 20})
			}
		})
	}
	group.Wait()
}

// memory is a store without a disk, for tests whose clock is not the machine's.
type memory struct {
	mu    sync.Mutex
	keys  []lifecycle.APIKey
	uses  map[string]time.Time
	times int
}

func (m *memory) APIKeys(context.Context) ([]lifecycle.APIKey, error) { return m.keys, nil }

func (m *memory) InsertAPIKey(context.Context, lifecycle.APIKey, bool) error { return nil }
func (m *memory) SaveAPIKey(context.Context, lifecycle.APIKey) error         { return nil }
func (m *memory) DeleteAPIKey(context.Context, string, time.Time) error      { return nil }
func (m *memory) NoteKeyNames(context.Context, []string, time.Time) error    { return nil }
func (m *memory) NoteKeyUses(_ context.Context, uses map[string]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uses = uses
	m.times++
	return nil
}

func (m *memory) lastUse(name string) (at time.Time, times int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.uses[name], m.times
}
