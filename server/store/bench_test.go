package store_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

// BenchmarkInsert compares a durable insert with its floor, an append of 4 KB and fdatasync, taken
// in turns in the same run. The ratio is of medians. With 100 clients it is the time per insert,
// all of them sharing the disk.
func BenchmarkInsert(b *testing.B) {
	b.Run("1 client", func(b *testing.B) { benchmarkInsert(b, 1) })
	b.Run("100 clients", func(b *testing.B) { benchmarkInsert(b, 100) })
}

func benchmarkInsert(b *testing.B, clients int) {
	dir := b.TempDir()
	s := open(b, dir)
	file, err := os.Create(filepath.Join(dir, "floor"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = file.Close() })
	var floors, inserts []time.Duration
	for b.Loop() {
		floors = append(floors, measure(b, func() error { return appendDurably(file) }))
		took := measure(b, func() error { return insertMany(b, s, clients) })
		inserts = append(inserts, took/time.Duration(clients))
	}
	floor, insert := median(floors), median(inserts)
	b.ReportMetric(float64(floor.Nanoseconds()), "floor-ns")
	b.ReportMetric(float64(insert.Nanoseconds()), "insert-ns")
	b.ReportMetric(float64(insert)/float64(floor), "x-floor")
}

func appendDurably(file *os.File) error {
	if _, err := file.Write(make([]byte, 4096)); err != nil {
		return err
	}
	return syscall.Fdatasync(int(file.Fd()))
}

func insertMany(b *testing.B, s *store.Store, clients int) error {
	var group errgroup.Group
	for range clients {
		group.Go(func() error {
			id := uuid.NewString()
			key := &lifecycle.IdempotencyKey{Owner: "owner", Key: id, SandboxID: id,
				CreatedAt: birth}
			// as a create does
			return s.Insert(b.Context(), record(id), key, event(id, birth), event(id, birth))
		})
	}
	return group.Wait()
}

func measure(b *testing.B, run func() error) time.Duration {
	start := time.Now()
	if err := run(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}
