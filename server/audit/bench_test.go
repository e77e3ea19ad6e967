package audit_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/server/audit"
)

var benchEntry = audit.Entry{
	RequestID: "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", Operation: "deleteSandbox", Method: "DELETE",
	Route:   "/v1/sandboxes/:sandboxId",
	KeyName: "ci", Role: "user", Remote: "192.0.2.1",
	SandboxID: "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
}

// BenchmarkFloor is what a durable line costs at least.
func BenchmarkFloor(b *testing.B) {
	file, err := os.Create(filepath.Join(b.TempDir(), "floor"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	line := make([]byte, 400)
	for b.Loop() {
		if _, err := file.Write(line); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(file.Fd())); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIntend is what a request pays before it is acted on: the line is written.
func BenchmarkIntend(b *testing.B) {
	log := open(b, filepath.Join(b.TempDir(), "audit.log"))
	for b.Loop() {
		if _, _, err := log.Intend(benchEntry); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDurable is what it pays before its answer leaves, if it does nothing in between.
func BenchmarkDurable(b *testing.B) {
	log := open(b, filepath.Join(b.TempDir(), "audit.log"))
	for b.Loop() {
		_, durable, err := log.Intend(benchEntry)
		if err != nil {
			b.Fatal(err)
		}
		if err := durable(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDurableTogether is the same for many requests at once, which share syncs.
func BenchmarkDurableTogether(b *testing.B) {
	log := open(b, filepath.Join(b.TempDir(), "audit.log"))
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, durable, err := log.Intend(benchEntry)
			if err == nil {
				err = durable()
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkVerify is what a start pays for the file that it takes up.
func BenchmarkVerify(b *testing.B) {
	content := sample(b, 500)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		verify(b, content)
	}
}
