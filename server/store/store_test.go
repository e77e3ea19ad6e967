package store_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

func TestOpenCreatesPrivateFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new directory", "50%?#")
	insert(t, open(t, dir), record("a"))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: got %v, %v; want mode 0700", info, err)
	}
	for _, name := range []string{"sandbox.db", "sandbox.db-wal", "sandbox.db-shm", "lock"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil ||
			info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v; want mode 0600", name, info, err)
		}
	}
}

func TestOneProcessAtATime(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	expectOpenError(t, dir, dir, "in use by another process")
	insert(t, s, record("a"))
	reopen(t, s, dir)
}

func TestClose(t *testing.T) {
	s := open(t, t.TempDir())
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Insert(t.Context(), record("a"), nil); err == nil ||
		!strings.Contains(err.Error(), "closed") {
		t.Errorf("insert after close: got error %v", err)
	}
	if _, err := s.Load(t.Context()); err == nil {
		t.Error("load after close succeeded")
	}
}

func TestDurabilitySettings(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	var mode string
	if err := rawDB(t, dir).QueryRow("PRAGMA journal_mode").Scan(&mode); err != nil ||
		mode != "wal" {
		t.Errorf("got journal mode %q, %v; want wal", mode, err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	dir := withRecord(t)
	var version int
	if err := rawDB(t, dir).QueryRow("PRAGMA user_version").Scan(&version); err != nil {
		t.Fatal(err)
	}
	rawExec(t, dir, "PRAGMA user_version = 99")
	expectOpenError(t, dir, filepath.Join(dir, "sandbox.db"), "schema version 99", "newer")
	rawExec(t, dir, fmt.Sprintf("PRAGMA user_version = %d", version))
	if got := ids(load(t, open(t, dir))); len(got) != 1 {
		t.Errorf("the refusal changed the database: it has %v", got)
	}
}

func TestRecordOfOtherReleases(t *testing.T) {
	dir := withRecord(t)
	rawExec(t, dir, "UPDATE sandboxes SET record = ?",
		[]byte(`{"Sandbox":{"ID":"a","Colour":"red"},"Engine":{"Name":"x"},"Port":7}`))
	want := []lifecycle.Record{{Sandbox: lifecycle.Sandbox{ID: "a"}, Port: 7}}
	if got := load(t, open(t, dir)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDamagedRecord(t *testing.T) {
	for name, damaged := range map[string]string{
		"not JSON":          `{"Sandbox":{"ID":"a"`,
		"empty":             ``,
		"another sandbox's": `{"Sandbox":{"ID":"b"}}`,
		"a wrong type":      `{"Sandbox":{"ID":"a"},"Port":"x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := withRecord(t)
			rawExec(t, dir, "UPDATE sandboxes SET record = ?", []byte(damaged))
			s := open(t, dir)
			insert(t, s, record("sound"))
			records, err := s.Load(t.Context())
			if err == nil {
				t.Fatalf("loaded %v", ids(records))
			}
			for _, part := range []string{filepath.Join(dir, "sandbox.db"), `"a"`, "restore",
				"DELETE FROM sandboxes WHERE id = 'a'"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not contain %q", err, part)
				}
			}
		})
	}
}

func TestDamagedFile(t *testing.T) {
	const pageSize = 4096
	for name, damage := range map[string]func([]byte) []byte{
		"another format": func([]byte) []byte {
			return []byte(strings.Repeat("not a database\n",
				1000))
		},
		"header": func(data []byte) []byte {
			return append(make([]byte, 16),
				data[16:]...)
		},
		"cut off":     func(data []byte) []byte { return data[:len(data)-pageSize] },
		"schema page": func(data []byte) []byte { return overwrite(data, 100, pageSize) },
		"data pages":  func(data []byte) []byte { return overwrite(data, pageSize, len(data)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := withRecord(t)
			file := filepath.Join(dir, "sandbox.db")
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			damaged := damage(data)
			if err := os.WriteFile(file, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			expectOpenError(t, dir, file, "restore it from a backup", "aside")
			if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, damaged) {
				t.Errorf("opening changed the damaged file (error %v)", err)
			}
		})
	}
}

func overwrite(data []byte, from, to int) []byte {
	for i := from; i < to; i++ {
		data[i] = 0xa5
	}
	return data
}

// withRecord returns the directory of a closed store that has the record "a".
func withRecord(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := open(t, dir)
	insert(t, s, record("a"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func rawDB(t *testing.T, dir string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "sandbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func rawExec(t *testing.T, dir, query string, args ...any) {
	t.Helper()
	db := rawDB(t, dir)
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func expectOpenError(t *testing.T, dir string, parts ...string) {
	t.Helper()
	s, err := store.Open(dir, zerolog.Nop())
	if err == nil {
		_ = s.Close()
		t.Fatal("the store opened")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not contain %q", err, part)
		}
	}
}
