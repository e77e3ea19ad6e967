package oci_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

// BenchmarkLife creates, starts and removes containers with a network, a port and limits, one after
// the other, and reports the medians of the calls in milliseconds: without a bound of what they
// write, and with one of 10 GiB.
func BenchmarkLife(b *testing.B) {
	for _, handler := range runtimes(b) {
		for name, bound := range map[string]int64{"": 0, "-bounded": 10 << 30} {
			b.Run(handler+name, func(b *testing.B) { benchmarkLife(b, handler, bound) })
		}
	}
}

func benchmarkLife(b *testing.B, handler string, bound int64) {
	s := newSite(b, handler)
	s.DiskBytes = bound
	e := s.mustOpen(b)
	defer closeEngine(b, e)
	imageID := loadProbe(b, e)
	names := []string{"create", "start", "remove"}
	took := map[string][]time.Duration{}
	for b.Loop() {
		spec := probe(imageID, "sleep")
		spec.Network, spec.Publish, spec.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
		spec.Resources = engine.Resources{NanoCPUs: 1e9, MemoryBytes: 256 << 20, PIDs: 100}
		var id string
		for i, call := range []func() error{
			func() (err error) { id, err = e.Create(b.Context(), spec); return err },
			func() error { return e.Start(b.Context(), id) },
			func() error { return e.Remove(b.Context(), id) },
		} {
			began := time.Now()
			if err := call(); err != nil {
				b.Fatal(err)
			}
			took[names[i]] = append(took[names[i]], time.Since(began))
		}
	}
	for _, name := range names {
		times := took[name]
		slices.Sort(times)
		b.ReportMetric(milliseconds(times[len(times)/2]), name+"-p50-ms")
		b.ReportMetric(milliseconds(times[len(times)*99/100]), name+"-p99-ms")
	}
}

// BenchmarkUserNamespaces starts containers with and without a user namespace, in turns, and
// reports the medians in milliseconds.
func BenchmarkUserNamespaces(b *testing.B) {
	for _, handler := range []string{"crun", "runc"} {
		b.Run(handler, func(b *testing.B) {
			modes := []oci.UserNamespaces{oci.UserNamespacesOff, oci.UserNamespacesOn}
			engines, imageIDs, took := make([]*oci.Engine, len(modes)), make([]string, len(modes)), make([][]time.Duration, len(modes))
			for i, mode := range modes {
				engines[i] = newSite(b, handler).openMode(b, mode, io.Discard)
				defer closeEngine(b, engines[i])
				imageIDs[i] = loadProbe(b, engines[i])
			}
			for b.Loop() {
				for i, e := range engines {
					spec := probe(imageIDs[i], "sleep")
					spec.Network, spec.Publish, spec.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
					spec.Resources = engine.Resources{NanoCPUs: 1e9, MemoryBytes: 256 << 20, PIDs: 100}
					spec.Mounts = []engine.Mount{{Volume: "data", Target: "/data"}}
					id, err := e.Create(b.Context(), spec)
					began := time.Now()
					if err == nil {
						err = e.Start(b.Context(), id)
					}
					took[i] = append(took[i], time.Since(began))
					if err == nil {
						err = e.Remove(b.Context(), id)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			for i, mode := range modes {
				slices.Sort(took[i])
				b.ReportMetric(milliseconds(took[i][len(took[i])/2]), "start-"+string(mode)+"-p50-ms")
			}
		})
	}
}

// BenchmarkHundred creates and starts a hundred containers at once, and reports how many that are a
// second.
func BenchmarkHundred(b *testing.B) {
	for _, handler := range runtimes(b) {
		b.Run(handler, func(b *testing.B) {
			s := newSite(b, handler)
			e := s.mustOpen(b)
			defer closeEngine(b, e)
			imageID := loadProbe(b, e)
			const together = 100
			var took time.Duration
			for b.Loop() {
				began := time.Now()
				var group sync.WaitGroup
				for range together {
					group.Go(func() {
						spec := probe(imageID, "sleep")
						spec.Network, spec.Publish, spec.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
						spec.Resources = engine.Resources{NanoCPUs: 1e9, MemoryBytes: 256 << 20, PIDs: 100}
						id, err := e.Create(b.Context(), spec)
						if err == nil {
							err = e.Start(b.Context(), id)
						}
						if err != nil {
							b.Error(err)
						}
					})
				}
				group.Wait()
				took += time.Since(began)
				b.StopTimer()
				removeAll(b, e)
				b.StartTimer()
			}
			b.ReportMetric(float64(together*b.N)/took.Seconds(), "starts/s")
		})
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// BenchmarkSnapshot takes snapshots of a container that has written 100 MiB in 10 000 files, and
// reports the medians in milliseconds, also of the time for which its processes do not run: the
// first one, one with nothing new, and one with a new file of 1 MiB; and a rollback up to the first
// line that the program prints.
func BenchmarkSnapshot(b *testing.B) {
	for name, bound := range map[string]int64{"": 0, "-bounded": 10 << 30} {
		b.Run("crun"+name, func(b *testing.B) { benchmarkSnapshot(b, bound) })
	}
}

func benchmarkSnapshot(b *testing.B, bound int64) {
	s := newSite(b, "crun")
	s.DiskBytes = bound
	e := s.mustOpen(b)
	defer closeEngine(b, e)
	imageID := loadProbe(b, e)
	took := map[string][]time.Duration{}
	measure := func(name string, call func() (held time.Duration)) {
		began := time.Now()
		held := call()
		took[name] = append(took[name], time.Since(began))
		if held > 0 {
			took[name+"-held"] = append(took[name+"-held"], held)
		}
	}
	orders := filepath.Join(b.TempDir(), "orders")
	if err := os.Mkdir(orders, 0o755); err != nil { //nolint:gosec // a container reads it
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		spec := probe(imageID, "many", "/data", "10000", "10486", "/orders/more", "/more")
		spec.Mounts = []engine.Mount{{HostPath: orders, Target: "/orders", ReadOnly: true}}
		id := start(b, e, spec)
		awaitLog(b, e, id, "made")
		b.StartTimer()
		measure("first", func() time.Duration { return take(b, e, id, "first").Frozen })
		measure("again", func() time.Duration { return take(b, e, id, "again").Frozen })
		b.StopTimer()
		if err := os.WriteFile(filepath.Join(orders, "more"), nil, 0o644); err != nil { //nolint:gosec // as above
			b.Fatal(err)
		}
		awaitLog(b, e, id, "more")
		b.StartTimer()
		measure("dirty", func() time.Duration { return take(b, e, id, "dirty").Frozen })
		measure("rollback", func() time.Duration {
			rollback(b, e, id, "again")
			awaitLines(b, e, id, "began", 2)
			return 0
		})
		b.StopTimer()
		if err := os.Remove(filepath.Join(orders, "more")); err != nil {
			b.Fatal(err)
		}
		removeSnapshots(b, e)
		removeAll(b, e)
		b.StartTimer()
	}
	for name, times := range took {
		slices.Sort(times)
		b.ReportMetric(milliseconds(times[len(times)/2]), name+"-p50-ms")
	}
}

// awaitLines waits until the log has so many lines of a word.
func awaitLines(t testing.TB, e *oci.Engine, id, line string, count int) {
	t.Helper()
	wait.Until(t, "the log has lines "+line, func() bool {
		log, err := e.Logs(t.Context(), id, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(log, line+"\n") == count
	})
}
