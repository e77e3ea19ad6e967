package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/wait"
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

// TestANewDirectoryOfAnOldName: its files are new, although the reader has not taken yet what was
// reported of the old directory's.
func TestANewDirectoryOfAnOldName(t *testing.T) {
	dir := t.TempDir()
	w, err := Open(Options{Path: dir, Recursive: true, Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	directory := filepath.Join(dir, "d")
	file := filepath.Join(directory, "f")
	for wanted := 1; wanted <= 2; wanted++ {
		if err := os.Mkdir(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var created int
		wait.Until(t, fmt.Sprintf("the file was created %d times by the events", wanted), func() bool {
			w.queue.mu.Lock()
			defer w.queue.mu.Unlock()
			created = 0
			for _, event := range w.queue.events {
				if event.Type == Create && event.Path == file {
					created++
				}
			}
			return created >= wanted
		}, func() any { return created })
		if err := os.Rename(directory, filepath.Join(dir, fmt.Sprint(wanted))); err != nil {
			t.Fatal(err)
		}
	}
}
