package view

import (
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// TestJournalIsBoundedInBytes: what a replica remembers of large changes, and what a feed hands out
// at once.
func TestJournalIsBoundedInBytes(t *testing.T) {
	j := newJournal()
	j.begin(1, map[string]*Entry{})
	version := func(number uint64, metadata map[string]string) *Entry {
		return &Entry{Version: number, Batch: &v1alpha1.BatchSandbox{}, Sandbox: lifecycle.Sandbox{ID: "a", Metadata: metadata}}
	}
	const size, changes = 100 << 10, 500
	unchanged := strings.Repeat("x", size)
	j.take(version(2, map[string]string{"unchanged": unchanged}), false, time.Now())
	for i := range changes {
		j.take(version(uint64(3+i), map[string]string{"unchanged": unchanged, "changed": strings.Repeat(string(rune('a'+i%2)), size)}), false, time.Now())
	}
	kept := 0
	for _, event := range j.events {
		for key, value := range event.Metadata {
			if kept += len(value); key != "changed" {
				t.Fatalf("an event has the key %q, which did not change", key)
			}
		}
	}
	if kept > maxEventBytes || kept < maxEventBytes/5*4-size {
		t.Errorf("%d bytes are kept", kept)
	}
	if first := j.events[0].Sequence; j.floor != first-1<<placeBits {
		t.Errorf("the events begin at %d, and unknown is what is up to %d", first, j.floor)
	}
	f := &feed{view: &View{feeds: j, table: newTable()}, cursor: j.floor}
	for read := 0; read < len(j.events); {
		batch, _ := f.read()
		if n := len(batch.Events); batch.Reset || n == 0 || n > feedBytes/size+1 {
			t.Fatalf("after %d of %d events a batch has %d, reset: %t", read, len(j.events), n, batch.Reset)
		}
		read += len(batch.Events)
	}
	// Small events are bounded by their number.
	for i := range 2 * maxEvents {
		j.take(version(uint64(1000+i), map[string]string{"n": strings.Repeat("x", i%2)}), false, time.Now())
	}
	if n := len(j.events); n > maxEvents || n < maxEvents/5*4 {
		t.Errorf("%d small events are kept", n)
	}
	j.begin(1_000_000, map[string]*Entry{})
	if j.bytes != 0 || len(j.events) != 0 {
		t.Errorf("after a new beginning %d bytes are counted", j.bytes)
	}
}
