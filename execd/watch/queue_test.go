package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestOverflowByBytes: events that no reader takes are bounded by the bytes of their paths, because
// processes of the sandbox cause them.
func TestOverflowByBytes(t *testing.T) {
	q := newQueue(Options{Path: "/watched", Limit: 1 << 20, Clock: time.Now})
	deep := "/watched/" + strings.Repeat("d", 3500)
	for i := range 4000 { // 14 MiB of paths
		q.put(Event{Type: Create, Path: fmt.Sprintf("%s/%04d", deep, i)})
	}
	kept, events := 0, q.take()
	for _, event := range events {
		kept += len(event.Path)
	}
	if kept > maxQueued {
		t.Errorf("%d bytes of paths were kept", kept)
	}
	if first := events[0]; first.Type != Overflow || first.Path != "/watched" {
		t.Errorf("the first event is %s of %s, and events before it were discarded", first.Type, first.Path)
	}
	if last := events[len(events)-1].Path; !strings.HasSuffix(last, "/3999") {
		t.Errorf("the last event is of %s", last)
	}
}
