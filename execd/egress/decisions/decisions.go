// Package decisions keeps what was allowed and denied: for each name and address one entry with a count, in bounded memory.
package decisions

import (
	"container/list"
	"sync"
	"time"

	"sandbox.internal/execd/egress/policy"
)

// Limit is how many decisions are kept. Those not seen for the longest time make room.
const Limit = 4096

// Kind says what was decided.
type Kind string

// The kinds.
const (
	Name    Kind = "name"
	Address Kind = "address"
)

// Subject is what makes two decisions the same.
type Subject struct {
	Kind     Kind
	Target   string // the name, or the address
	Protocol string // of an address
	Port     uint16 // of an address
	Action   policy.Action
	DryRun   bool // it passed all the same, because of a dry run
}

// Decision is what became of all attempts that are alike.
type Decision struct {
	Subject
	Reason policy.Reason
	Rule   string
	// Names are names that resolved to the address lately.
	Names []string
	// Resolved tells whether the name has records.
	Resolved    bool
	Count       int64
	First, Last time.Time
	// ID grows with every change; it is that of the last one.
	ID int64
}

// Log holds decisions. It is safe for concurrent use.
type Log struct {
	clock func() time.Time

	mu      sync.Mutex
	entries map[Subject]*list.Element
	order   *list.List // of *Decision, by ID
	last    int64
	changed chan struct{} // nil while nobody waits
}

// New returns an empty log. Ids begin with the time in microseconds, so that a client that resumes after a restart misses nothing.
func New(clock func() time.Time) *Log {
	return &Log{
		clock: clock, entries: make(map[Subject]*list.Element), order: list.New(),
		last: clock().UnixMicro(),
	}
}

// Add counts an attempt. Of the decision given, the subject, the reason, the rule, the names and whether it resolved are used.
func (l *Log) Add(d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	l.last++
	d.ID, d.First, d.Last, d.Count = l.last, now, now, 1
	if element, ok := l.entries[d.Subject]; ok {
		before := element.Value.(*Decision)
		d.First, d.Count, d.Resolved = before.First, before.Count+1, d.Resolved || before.Resolved
		*before = d
		l.order.MoveToBack(element)
	} else {
		if l.order.Len() >= Limit {
			oldest := l.order.Front()
			delete(l.entries, l.order.Remove(oldest).(*Decision).Subject)
		}
		l.entries[d.Subject] = l.order.PushBack(&d)
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// After returns the decisions that changed after the one with the id, in the order of their last change, and a channel that is
// closed when there are more.
func (l *Log) After(id int64) ([]Decision, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := (*list.Element)(nil)
	count := 0
	for element := l.order.Back(); element != nil && element.Value.(*Decision).ID > id; element = element.Prev() {
		first = element
		count++
	}
	all := make([]Decision, 0, count)
	for element := first; element != nil; element = element.Next() {
		all = append(all, *element.Value.(*Decision))
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return all, l.changed
}
