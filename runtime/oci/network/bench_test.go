package network

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// BenchmarkAttach measures Attach with a namespace that was made ahead, and Detach.
func BenchmarkAttach(b *testing.B) {
	o := options(b, "bench0")
	o.Ready, o.Quarantine = 16, 0
	n, err := Open(b.Context(), o, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	var attaches, detaches []time.Duration
	for i := range b.N {
		wait.Until(b, "the namespaces that are made ahead are ready", func() bool { return len(n.ready) >= o.Ready })
		name := fmt.Sprint("c", i)
		begin := time.Now()
		if _, err := n.Attach(b.Context(), name, []int{44772}, netip.Addr{}); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		if err := n.Detach(name); err != nil {
			b.Fatal(err)
		}
		attaches, detaches = append(attaches, middle.Sub(begin)), append(detaches, time.Since(middle))
	}
	report(b, attaches, "attach")
	report(b, detaches, "detach")
}

func report(b *testing.B, all []time.Duration, what string) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), what+"-p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), what+"-p99-µs")
}

// BenchmarkRefill measures how many containers a second come and go when namespaces are made as
// fast as they are taken.
func BenchmarkRefill(b *testing.B) {
	o := options(b, "bench1")
	o.Ready, o.Quarantine = 16, 0
	n, err := Open(b.Context(), o, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	b.ResetTimer()
	for i := range b.N {
		name := fmt.Sprint("c", i)
		if _, err := n.Attach(b.Context(), name, []int{44772}, netip.Addr{}); err != nil {
			b.Fatal(err)
		}
		if err := n.Detach(name); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "containers/s")
}
