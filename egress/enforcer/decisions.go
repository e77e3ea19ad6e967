package enforcer

import (
	"slices"
	"sync"
	"time"

	"sandbox.internal/egress/policy"
)

// decisionLimit is how many decisions are kept. Those not seen for the longest time make room.
const decisionLimit = 4096

// Kind says what was decided.
type Kind string

// The kinds.
const (
	KindName    Kind = "name"
	KindAddress Kind = "address"
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
	// Resolved is whether the name has records.
	Resolved    bool
	Count       int64
	First, Last time.Time
	// ID grows with every change; it is that of the last one.
	ID int64
}

// DecisionLog holds what was allowed and denied: for each name and address one entry with a count,
// in bounded memory. It is safe for concurrent use.
type DecisionLog struct {
	clock func() time.Time

	mu      sync.Mutex
	entries map[subject]*record
	ring    record // its neighbours are the oldest and the latest, by ID
	last    int64
	words   []string
	changed chan struct{} // nil while no stream waits
}

// subject and record are a Subject and a Decision in a form that takes less than half of the
// memory: there is a log beside every sandbox. Words that are few in number are indices of
// DecisionLog.words.
type subject struct {
	target                       string
	port, kind, protocol, action uint16
	dryRun                       bool
}

type record struct {
	subject
	resolved           bool
	reason             uint16
	rule               string
	names              []string
	count, first, last int64 // the times in nanoseconds since 1970
	id                 int64
	previous, next     *record
}

// newDecisionLog returns an empty log. Ids begin with the time in microseconds, so that a client
// that resumes after a restart misses nothing.
func newDecisionLog(clock func() time.Time) *DecisionLog {
	l := &DecisionLog{clock: clock, entries: make(map[subject]*record), last: clock().UnixMicro()}
	l.ring.previous, l.ring.next = &l.ring, &l.ring
	return l
}

// Add counts an attempt. Of the decision given, the subject, the reason, the rule, the names and
// whether it resolved are used.
func (l *DecisionLog) Add(d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock().UnixNano()
	s := subject{
		target: d.Target, port: d.Port, kind: l.intern(string(d.Kind)), protocol: l.intern(d.Protocol), action: l.intern(string(d.Action)), dryRun: d.DryRun,
	}
	r := l.entries[s]
	if r == nil {
		if len(l.entries) >= decisionLimit {
			oldest := l.ring.next
			oldest.unlink()
			delete(l.entries, oldest.subject)
		}
		r = &record{subject: s, first: now}
		l.entries[s] = r
	} else {
		r.unlink()
	}
	l.last++
	r.id, r.last, r.count = l.last, now, r.count+1
	r.resolved = r.resolved || d.Resolved
	r.reason, r.rule, r.names = l.intern(string(d.Reason)), d.Rule, d.Names
	r.previous, r.next = l.ring.previous, &l.ring
	r.previous.next, r.next.previous = r, r
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// After returns the decisions that changed after the one with the id, in the order of their last
// change, and a channel that is closed when there are more.
func (l *DecisionLog) After(id int64) ([]Decision, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := &l.ring
	count := 0
	for first.previous != &l.ring && first.previous.id > id {
		first = first.previous
		count++
	}
	all := make([]Decision, 0, count)
	for r := first; r != &l.ring; r = r.next {
		all = append(all, l.decision(r))
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return all, l.changed
}

func (l *DecisionLog) decision(r *record) Decision {
	return Decision{
		Subject: Subject{
			Kind: Kind(l.words[r.kind]), Target: r.target, Protocol: l.words[r.protocol], Port: r.port, Action: policy.Action(l.words[r.action]), DryRun: r.dryRun,
		},
		Reason: policy.Reason(l.words[r.reason]), Rule: r.rule, Names: r.names, Resolved: r.resolved,
		Count: r.count, First: time.Unix(0, r.first), Last: time.Unix(0, r.last), ID: r.id,
	}
}

// intern returns the index of a word. There are few: kinds, actions, reasons, and at most 256
// protocols.
func (l *DecisionLog) intern(word string) uint16 {
	at := slices.Index(l.words, word)
	if at < 0 {
		at = len(l.words)
		l.words = append(l.words, word)
	}
	return uint16(at)
}

func (r *record) unlink() { r.previous.next, r.next.previous = r.next, r.previous }
