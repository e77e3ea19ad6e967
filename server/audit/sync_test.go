package audit_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/audit"
)

// TestSyncThatFails uses a device that takes every byte and cannot be synced.
func TestSyncThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(path, zerolog.Nop(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	record(t, log, "before")
	before := verify(t, read(t, path))
	device, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Replace(device); err != nil {
		t.Fatal(err)
	}
	_, durable, err := log.Intend(audit.Entry{Operation: "deleteSandbox"})
	if err != nil {
		t.Fatal(err)
	}
	if err := durable(); err == nil || !strings.Contains(err.Error(), "cannot be synced") {
		t.Errorf("durable: %v", err)
	}
	// From now on nothing can be trusted to last.
	if _, _, err := log.Intend(audit.Entry{}); err == nil ||
		!strings.Contains(err.Error(), "SIGHUP") {
		t.Errorf("the next intention: %v", err)
	}
	if err := log.Conclude(audit.Entry{Intent: 4}); err == nil {
		t.Error("an outcome is taken")
	}
	// The way out: rename, and SIGHUP. Verification shows that a line is missing between the files.
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := log.Reopen(); err != nil {
		t.Fatal(err)
	}
	record(t, log, "after")
	close(t, log)
	after := verify(t, read(t, path))
	if after.Continues(before) || after.First != before.Last+2 {
		t.Errorf("after %+v, before %+v", after, before)
	}
	verify(t, read(t, path+".1"))
}

func TestCloseMakesEverythingDurable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	_, durable, err := log.Intend(audit.Entry{Operation: "deleteSandbox"})
	if err != nil {
		t.Fatal(err)
	}
	close(t, log)
	if err := durable(); err != nil {
		t.Errorf("an intention from before the end: %v", err)
	}
}

// TestReopenThatFails: a log that failed, and whose file is broken, takes nothing and changes
// nothing.
func TestReopenThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(path, zerolog.Nop(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	record(t, log, "before")
	log.Fail()
	broken := append(read(t, path), "another program's line\nand another\n"...)
	broken[10] ^= 1
	write(t, path, broken)
	if err := log.Reopen(); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("reopen: %v", err)
	}
	if _, _, err := log.Intend(audit.Entry{}); err == nil {
		t.Error("an intention is taken after a reopening that failed")
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(read(t, path), broken) {
		t.Error("the file was changed")
	}
}
