package store_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

func apiKey(name string) lifecycle.APIKey {
	return lifecycle.APIKey{
		Name: name, Role: lifecycle.RoleUser, CreatedAt: birth, ExpiresAt: birth.Add(time.Hour), Digest: []byte("digest of " + name),
		Limits: lifecycle.KeyLimits{MaxSandboxes: 3, MaxCPU: "2", MaxTimeout: time.Hour}, Rate: &lifecycle.KeyRate{PerSecond: 1},
	}
}

func expectAPIKeys(t *testing.T, s *store.Store, want ...lifecycle.APIKey) {
	t.Helper()
	got, err := s.APIKeys(t.Context())
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d keys, %v; want %d", len(got), err, len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("key %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestAPIKeys(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	a, b := apiKey("a"), apiKey("b 'quoted' <é>")
	for _, key := range []lifecycle.APIKey{b, a} {
		if err := s.InsertAPIKey(t.Context(), key, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.InsertAPIKey(t.Context(), a, true); !errors.Is(err, lifecycle.ErrNameHeld) {
		t.Errorf("the same name: %v", err)
	}
	s = reopen(t, s, dir)
	expectAPIKeys(t, s, a, b)

	a.Digest, a.PreviousDigest, a.PreviousUntil = []byte("new"), a.Digest, birth.Add(time.Minute)
	if err := s.SaveAPIKey(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	used := birth.Truncate(time.Second).Add(time.Minute)
	if err := s.NoteKeyUses(t.Context(), map[string]time.Time{"a": used, "nobody": used}); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteAPIKey(t.Context(), b.Name, birth); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, dir)
	a.LastUsedAt = used
	expectAPIKeys(t, s, a)
}

// TestNamesOfKeysAreRemembered: of keys that are gone, of those that are kept elsewhere, and of
// those whose sandboxes are there.
func TestNamesOfKeysAreRemembered(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.InsertAPIKey(t.Context(), apiKey("gone"), false); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteAPIKey(t.Context(), "gone", birth); err != nil {
		t.Fatal(err)
	}
	if err := s.NoteKeyNames(t.Context(), []string{"elsewhere"}, birth); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s, dir)
	for _, name := range []string{"gone", "elsewhere"} {
		if err := s.InsertAPIKey(t.Context(), apiKey(name), false); !errors.Is(err, lifecycle.ErrNameUsed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	expectAPIKeys(t, s)
	if err := s.InsertAPIKey(t.Context(), apiKey("gone"), true); err != nil {
		t.Error(err)
	}
	expectAPIKeys(t, s, apiKey("gone"))
}

// TestNamesOfEarlierReleases: a database of a release without these tables has the names in others.
func TestNamesOfEarlierReleases(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	owned := record("a")
	owned.Sandbox.Owner = "owner"
	if err := s.Insert(t.Context(), owned, keyOf("repeater", "a", birth)); err != nil {
		t.Fatal(err)
	}
	if err := s.ChangeImageGrants(t.Context(), []lifecycle.ImageGrant{{Repository: "r", Key: "puller"}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"DROP TABLE snapshots", "DROP TABLE api_keys", "DROP TABLE key_names", "PRAGMA user_version = 4"} {
		rawExec(t, dir, statement)
	}
	s = open(t, dir)
	for name, want := range map[string]error{"owner": lifecycle.ErrNameUsed, "repeater": lifecycle.ErrNameUsed, "puller": lifecycle.ErrNameUsed, "other": nil} {
		if err := s.InsertAPIKey(t.Context(), apiKey(name), false); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

func TestDamagedAPIKey(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.InsertAPIKey(t.Context(), apiKey("a"), false); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rawExec(t, dir, `UPDATE api_keys SET record = CAST('{"Name":"b"}' AS BLOB)`)
	s = open(t, dir)
	if _, err := s.APIKeys(t.Context()); err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), "DELETE FROM api_keys") {
		t.Errorf("%v", err)
	}
}
