package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func TestRecordRoundTrip(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	full := record("full")
	full.Sandbox.Metadata = map[string]string{"name": "ünïcode & <tags>"}
	full.Sandbox.Owner = "key"
	full.Sandbox.Status.Message = "line\nline"
	full.Spec.Resources = lifecycle.ResourceLimits{"cpu": "500m"}
	full.Spec.Env = map[string]string{"A": "1"}
	full.Spec.Metadata = map[string]string{"name": "x"}
	full.Spec.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny",
		Egress: []lifecycle.EgressRule{{Action: "allow", Target: "*.example.com"}}}
	full.Spec.Volumes = []lifecycle.Volume{{Name: "v", MountPath: "/v", ReadOnly: true,
		SubPath: "s", HostPath: "/h"}}
	full.Spec.Extensions = []byte(`{ "b" : 12345678901234567890, "a": "<&>" }`)
	full.Sandbox.Extensions = []byte("{ \"b\" : 1e2,\n\"b\":\"<&>\\u2028\xff\" }")
	full.Sandbox.Stages = []lifecycle.StageTime{{Stage: lifecycle.StageAccepted, At: birth}}
	full.NeedsAuth = true
	full.Removed = true
	full.Port = 40001
	full.RetainUntil = birth.Add(2 * time.Hour)
	least := record("least")
	least.Sandbox.CreatedAt = birth.Add(1)
	insert(t, s, full)
	insert(t, s, least)

	got := load(t, reopen(t, s, dir))
	if want := []lifecycle.Record{full, least}; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestLoadIsOldestFirst(t *testing.T) {
	s := open(t, t.TempDir())
	if got := load(t, s); len(got) != 0 {
		t.Fatalf("an empty store has %v", ids(got))
	}
	for id, age := range map[string]time.Duration{"b": 2, "c": 1, "a": 2, "d": 3} {
		r := record(id)
		r.Sandbox.CreatedAt = birth.Add(-age)
		insert(t, s, r)
	}
	if got, want := ids(load(t, s)), []string{"d", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSaveAndForget(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, dir)
	insert(t, s, record("kept"))
	insert(t, s, record("gone"))
	changed := record("kept")
	changed.Sandbox.Status.State = lifecycle.StateRunning
	changed.Port = 1234
	if err := s.Save(ctx, changed); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing
		if err := s.Forget(ctx, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Save(ctx, record("gone")); err == nil || !strings.Contains(err.Error(), `"gone"`) {
		t.Errorf("saving a forgotten record: got error %v", err)
	}
	if got, want := load(t, reopen(t, s, dir)),
		[]lifecycle.Record{changed}; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestInsertTwice(t *testing.T) {
	s := open(t, t.TempDir())
	insert(t, s, record("a"))
	second := record("a")
	second.Token = "other"
	if err := s.Insert(t.Context(), second, nil); err == nil ||
		!strings.Contains(err.Error(), `"a"`) {
		t.Errorf("got error %v, want one that names the id", err)
	}
	if got, want := load(t, s), []lifecycle.Record{record("a")}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestCredentialsAreNotStored(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	r := record("private")
	r.NeedsAuth = true
	r.Spec.Auth = &lifecycle.ImageAuth{Username: "user-4711", Password: "secret-0815"}
	key := lifecycle.IdempotencyKey{Key: "k", Digest: r.Spec.Digest(), SandboxID: "private",
		CreatedAt: birth}
	if err := s.Insert(t.Context(), r, &key); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if r.Spec.Auth == nil {
		t.Error("the caller's record lost its credentials")
	}
	search := func(when string) {
		var all []byte
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, data...)
		}
		if !bytes.Contains(all, []byte(r.Token)) {
			t.Errorf("%s: the token is not in the files, so this test looks in the wrong place",
				when)
		}
		for _, secret := range []string{r.Spec.Auth.Username, r.Spec.Auth.Password} {
			if bytes.Contains(all, []byte(secret)) {
				t.Errorf("%s: the files contain %q", when, secret)
			}
		}
	}
	search("while open")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	search("after close")
}

func TestEndedContextChangesNothing(t *testing.T) {
	s := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // whichever side the writer's select takes
		if err := s.Insert(ctx, record("a"), nil); !errors.Is(err, context.Canceled) {
			t.Fatalf("got error %v, want %v", err, context.Canceled)
		}
	}
	if got := load(t, s); len(got) != 0 {
		t.Errorf("the store has %v", ids(got))
	}
}
