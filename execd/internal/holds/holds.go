// Package holds lists the work that keeps a sandbox awake: every way into the sandbox takes a hold
// for as long as its work lasts. Watches follow whether there is a hold.
//
// A hold that ends the idleness of a sandbox is announced before its work: [Registry.Begin] returns
// when each watch that has reported the sandbox as idle has written that it is busy. A service that
// freezes the sandbox after the report, and reads on, therefore reads it, whenever the freeze came.
// A watch that cannot write is given up, and the work goes on.
package holds

import (
	"sync"
	"time"

	"sandbox.internal/execd/activity"
)

// Kind is what a hold is about.
type Kind string

// The kinds of holds.
const (
	Request   Kind = "request"
	Command   Kind = "command"
	Code      Kind = "code"
	Terminal  Kind = "terminal"
	Proxy     Kind = "proxy"
	Processor Kind = "processor"
	KeepAwake Kind = "keepAwake"
)

const (
	// maxListed bounds the list of holds.
	maxListed = 1000
	// maxID bounds the id of a listed hold, in bytes.
	maxID = 256
	// writeTimeout is how long a hold waits for the watches to be written to.
	writeTimeout = time.Second
)

// Options configures a Registry.
type Options struct {
	// Used returns the processor time that the sandbox has used so far; nil means that processor
	// time is no hold. With an error it is none either.
	Used func() (time.Duration, error)
	// Arriving reports whether a request has arrived for which there is no hold yet, or whose answer
	// has not left yet though there is none any more; nil means that none does. The sandbox is not
	// idle then.
	Arriving func() bool
	// Processes are stopped while the sandbox sleeps; nil means that it cannot.
	Processes Processes
}

// Registry has the holds of a sandbox. A nil Registry takes any, and keeps none.
type Registry struct {
	used     func() (time.Duration, error)
	arriving func() bool

	turn      chan struct{} // full while processes are stopped or continued; filled before mu is taken
	processes Processes

	mu      sync.Mutex
	ends    Hold // its next is the oldest hold, its previous the latest
	count   int
	idle    time.Time // since when there has been no hold; void while there is one
	watches map[*Watch]struct{}
	kept    []*kept // what was asked for, see KeepAwake
	wakes   []wake
	asleep  *sleep // nil while the sandbox does not sleep
}

// New returns a registry without holds.
func New(options Options) *Registry {
	r := &Registry{
		used: options.Used, arriving: options.Arriving, processes: options.Processes, idle: time.Now(), watches: make(map[*Watch]struct{}),
		turn: make(chan struct{}, 1),
	}
	r.ends.next, r.ends.previous = &r.ends, &r.ends
	return r
}

// Hold keeps the sandbox awake until [Hold.End].
type Hold struct {
	registry *Registry
	kind     Kind
	verb     string // of a request; empty otherwise
	id       string
	since    time.Time
	wakes    *sleep // that it ends; nil for none

	previous, next *Hold // under registry.mu; nil once it has ended
}

// Begin takes a hold for the work with an id. The caller begins the work after Begin has returned,
// and calls End after it.
func (r *Registry) Begin(kind Kind, id string) *Hold {
	if r == nil {
		return nil
	}
	return r.begin(&Hold{registry: r, kind: kind, id: id})
}

// BeginRequest takes a hold for a request.
func (r *Registry) BeginRequest(method, path string) *Hold {
	if r == nil {
		return nil
	}
	return r.begin(&Hold{registry: r, kind: Request, verb: method, id: path})
}

func (r *Registry) begin(h *Hold) *Hold {
	h.since = time.Now()
	r.mu.Lock()
	h.previous, h.next = r.ends.previous, &r.ends
	h.previous.next, h.next.previous = h, h
	r.count++
	h.wakes = r.beginWake()
	var unwritten []*announcement
	for w := range r.watches {
		if a := w.begun(h.kind); a != nil {
			unwritten = append(unwritten, a)
		}
	}
	r.mu.Unlock()
	if unwritten != nil {
		r.await(unwritten)
	}
	return h
}

// End ends the hold. Only the first call counts.
func (h *Hold) End() {
	if h == nil {
		return
	}
	r := h.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.next == nil {
		return
	}
	h.previous.next, h.next.previous = h.next, h.previous
	h.previous, h.next = nil, nil
	r.count--
	if r.count > 0 {
		return
	}
	r.idle = time.Now()
	for w := range r.watches {
		if w.parked {
			w.parked = false
			w.notify()
		}
	}
}

// await returns when all announcements are written, or their watches given up.
func (r *Registry) await(unwritten []*announcement) {
	timer := time.NewTimer(writeTimeout)
	defer timer.Stop()
	for _, a := range unwritten {
		select {
		case <-a.written:
			continue
		default:
		}
		select {
		case <-a.written:
		case <-timer.C:
			timer.Reset(0) // for those that follow
			a.watch.giveUp()
		}
	}
}

// Held is a hold as a list has it.
type Held struct {
	Kind  Kind
	ID    string
	Since time.Time
}

// Report is what keeps the sandbox awake at one time.
type Report struct {
	Held   []Held        // oldest first, the first thousand
	Idle   time.Duration // how long there has been no hold; 0 while there is one
	WakeAt time.Time     // when the sandbox is to be woken next; zero for no time
}

// Report returns what keeps the sandbox awake now.
func (r *Registry) Report() Report {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	report := Report{Held: make([]Held, 0, min(r.count+1, maxListed)), WakeAt: r.nextWake(now)}
	for h := r.ends.next; h != &r.ends && len(report.Held) < maxListed; h = h.next {
		report.Held = append(report.Held, Held{Kind: h.kind, ID: h.text(), Since: h.since})
	}
	if r.count > 0 {
		return report
	}
	loaded := r.loadedSince()
	if loaded.IsZero() {
		report.Idle = max(0, now.Sub(r.idle))
	} else {
		report.Held = append(report.Held, Held{Kind: Processor, Since: loaded})
	}
	return report
}

// text returns the id for a list.
func (h *Hold) text() string {
	id := h.id
	if h.verb != "" {
		id = h.verb + " " + id
	}
	id, _ = activity.Shorten(id, maxID)
	return id
}
