package watch

import (
	"cmp"
	"sync"
	"time"
)

// maxQueued bounds the paths of the events that wait for their reader, in bytes: whatever runs in
// the sandbox makes them, and as long as it likes.
const maxQueued = 8 << 20

// queue holds the events that no reader has taken yet.
type queue struct {
	limit int // of events
	room  int // of bytes of their paths
	root  string
	clock func() time.Time
	ready chan struct{} // holds a token while there is something to take; closed when nothing more will come

	mu     sync.Mutex
	events []Event
	last   map[string]int // by path: the index of its last event
	bytes  int            // of the events' paths
}

func newQueue(options Options) *queue {
	return &queue{limit: options.Limit, room: cmp.Or(options.Bytes, maxQueued), root: options.Path, clock: options.Clock, ready: make(chan struct{}, 1), last: make(map[string]int)}
}

// put adds an event. One that repeats the path's last is left out: its reader looks at the file
// after all of them. When there is no more room, everything gives way to an Overflow.
func (q *queue) put(event Event) {
	event.Time = q.clock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if i, ok := q.last[event.Path]; ok && q.events[i].Type == event.Type {
		return
	}
	if len(q.events) >= q.limit || q.bytes+len(event.Path) > q.room {
		q.empty()
		q.append(Event{Type: Overflow, Path: q.root, Time: event.Time})
	}
	q.append(event)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue) append(event Event) {
	q.last[event.Path] = len(q.events)
	q.events = append(q.events, event)
	q.bytes += len(event.Path)
}

func (q *queue) empty() { q.events, q.last, q.bytes = nil, make(map[string]int), 0 }

// part makes what comes from here on no repetition of what came before: a path that is there again
// is another file.
func (q *queue) part() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last = make(map[string]int)
}

// end says that nothing more will come.
func (q *queue) end() { close(q.ready) }

func (q *queue) take() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.empty()
	return events
}
