package oci_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// hold is what a container can have of one kind of the kernel's objects.
type hold struct {
	tried int
	most  int        // how many it gets
	err   unix.Errno // what it gets instead of the next
	bytes int64      // that are counted as its memory, for each, at least
}

// holds are the kinds of objects that a process can keep in the kernel. Each is refused, or bounded
// by number, or counted as memory of the container that made it, but for those that
// docs/security.md names.
var holds = map[string]hold{
	// Refused.
	"netlink": {tried: 1, err: unix.EPROTONOSUPPORT}, "packet": {tried: 1, err: unix.EAFNOSUPPORT}, "ping": {tried: 1, err: unix.EACCES},
	"keys": {tried: 1, err: unix.EPERM}, "mounts": {tried: 1, err: unix.EPERM}, "namespaces": {tried: 1, err: unix.EPERM},
	"io_uring": {tried: 1, err: unix.EPERM},
	// Bounded for each container.
	"terminals": {tried: 200, most: 128, err: unix.ENOSPC},
	"in flight": {tried: 40_000, most: 1<<14 + 2, err: unix.ETOOMANYREFS},
	"inotify":   {tried: 100, most: 100}, // the machine has 128 for each user
	// Counted.
	"unix":       {tried: 50, most: 50, bytes: 150 << 10},
	"pipes":      {tried: 400, most: 400, bytes: 60 << 10},
	"memfd":      {tried: 64, most: 64, bytes: 1_000_000},
	"watches":    {tried: 10_000, most: 10_000, bytes: 600},
	"epoll":      {tried: 16_000, most: 16_000, bytes: 200},
	"signals":    {tried: 90_000, most: 90_000, bytes: 60},
	"timers":     {tried: 20_000, most: 20_000, bytes: 200},
	"messages":   {tried: 500, most: 500, bytes: 8000},
	"semaphores": {tried: 600, most: 600, bytes: 60_000},
	"files":      {tried: 10_000, most: 10_000, bytes: 600},
	// Neither: the kernel has no bound for them.
	"locks": {tried: 10_000, most: 10_000},
}

// batch is how far the kernel's count may be from what the container has: each processor counts for
// itself, up to 64 pages, and what the start of the container used is given back while it counts
// (1.4 MB were seen). So many objects of each kind are taken that this decides nothing.
const batch = 1 << 20

// TestHolds takes many objects of each kind in a container.
func TestHolds(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	for kind, want := range holds {
		spec := probe(imageID, "take", kind, strconv.Itoa(want.tried))
		spec.Resources.MemoryBytes = 128 << 20
		spec.Security.DropCapabilities = []string{"NET_RAW", "NET_ADMIN", "SYS_ADMIN"}
		text, ended := output(t, e, spec)
		var got struct {
			Count, Error int
			Charged      int64
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Errorf("%s: it ended with %v and printed %q", kind, ended, text)
			continue
		}
		t.Logf("%s: %d, then %v; %d bytes counted", kind, got.Count, unix.Errno(got.Error), got.Charged)
		// Those that the container has got for other reasons count as well.
		if got.Count > want.most || got.Count < want.most-4 || unix.Errno(got.Error) != want.err {
			t.Errorf("%s: %d, then %v; want %d and %v", kind, got.Count, unix.Errno(got.Error), want.most, want.err)
		}
		if least := want.bytes*int64(got.Count) - batch; want.bytes > 0 && got.Charged < least {
			t.Errorf("%s: %d bytes are counted for %d, want at least %d", kind, got.Charged, got.Count, least)
		}
	}
	removeAll(t, e)
}
