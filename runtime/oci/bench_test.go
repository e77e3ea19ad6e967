package oci_test

import (
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
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
