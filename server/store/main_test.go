package store_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

// writerDir is the variable that turns the test binary into the writer of TestKill.
const writerDir = "STORE_TEST_WRITER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(dir))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

var birth = time.Date(2026, 11, 21, 12, 0, 0, 123456789, time.UTC)

func open(t testing.TB, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(dir, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func reopen(t testing.TB, s *store.Store, dir string) *store.Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

// record returns a record with the fields that most tests need.
func record(id string) lifecycle.Record {
	return lifecycle.Record{
		Sandbox: lifecycle.Sandbox{
			ID: id, Image: "busybox", CreatedAt: birth, ExpiresAt: birth.Add(time.Hour),
			Entrypoint: []string{"sleep", "60"},
			Status: lifecycle.Status{State: lifecycle.StatePending,
				Reason: lifecycle.ReasonProvisioning, LastTransitionAt: birth},
		},
		Spec: lifecycle.Spec{Image: "busybox", Timeout: time.Hour,
			Entrypoint: []string{"sleep", "60"}},
		Token: "token of " + id,
	}
}

func insert(t testing.TB, s *store.Store, r lifecycle.Record) {
	t.Helper()
	if err := s.Insert(context.Background(), r, nil); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, s *store.Store) []lifecycle.Record {
	t.Helper()
	records, err := s.Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func ids(records []lifecycle.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.Sandbox.ID)
	}
	return out
}
