package holds_test

import (
	"context"
	"testing"
	"time"

	"sandbox.internal/execd/internal/holds"
)

// BenchmarkHold is what each request, command and cell pays.
func BenchmarkHold(b *testing.B) {
	for name, watches := range map[string]int{"unwatched": 0, "watched": 1} {
		b.Run(name, func(b *testing.B) {
			r := holds.New(holds.Options{})
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			for range watches {
				w, err := r.Watch(time.Hour)
				if err != nil {
					b.Fatal(err)
				}
				go func() { _ = w.Follow(ctx, time.Hour, func(holds.Event) error { return nil }) }()
			}
			for range 10_000 { // others
				r.Begin(holds.Command, "")
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				r.BeginRequest("GET", "/files/info").End()
			}
		})
	}
}
