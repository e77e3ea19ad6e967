package audit_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/server/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a log, whose test closes it.
func open(t testing.TB, path string) *audit.Log {
	t.Helper()
	log, err := audit.Open(path, zerolog.Nop(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return log
}

func close(t testing.TB, log *audit.Log) {
	t.Helper()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
}

// record writes the intention and the outcome of one request.
func record(t testing.TB, log *audit.Log, id string) {
	t.Helper()
	entry := audit.Entry{RequestID: id, Operation: "createSandbox", Method: "POST", KeyName: "ci",
		Role: "user", Remote: "192.0.2.1"}
	seq, durable, err := log.Intend(entry)
	if err != nil {
		t.Fatal(err)
	}
	if err := durable(); err != nil {
		t.Fatal(err)
	}
	entry.Intent, entry.Status, entry.SandboxID = seq, 202, "sandbox-of-"+id
	if err := log.Conclude(entry); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, content []byte) audit.Report {
	t.Helper()
	report, err := audit.Verify(bytes.NewReader(content), "")
	if err != nil {
		t.Fatalf("verify: %v\n%s", err, content)
	}
	return report
}

// brokenAt expects the log to be broken at that line.
func brokenAt(t testing.TB, content []byte, line int64, what string) {
	t.Helper()
	_, err := audit.Verify(bytes.NewReader(content), "")
	var broken *audit.BrokenError
	if !errors.As(err, &broken) || broken.Line != line {
		t.Fatalf("%s: %v, want line %d broken\n%s", what, err, line, content)
	}
}

// sample returns the content of a log of that many requests.
func sample(t testing.TB, requests int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	log := open(t, path)
	for i := range requests {
		record(t, log, strings.Repeat("r", i+1))
	}
	close(t, log)
	return read(t, path)
}
