package jupyter

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
)

// router has the requests that a kernel has not finished, and passes each message to the sender of
// the request that it is about.
type router struct {
	mu       sync.Mutex
	requests []*request // as the kernel works on them: one after the other
}

// request is a question to a kernel.
type request struct {
	id       string
	messages chan message
	left     chan struct{} // closed when there is no reader any more
	// closed when the kernel works on it: it has said something that is not its status
	begun chan struct{}
	idle  chan struct{} // closed when the kernel is done with it

	interrupted atomic.Bool // an interrupt was requested
}

// inbox is how many messages wait for a reader; the rest waits in the backlog of its channel.
const inbox = 2

// add registers a request for the messages about it. The caller closes left.
func (r *router) add(m message) *request {
	return r.addTo(&request{messages: make(chan message, inbox)}, m)
}

// addTo begins to listen for what is said about a message, and has it go to the reader of another
// request, so that the order of what is said about the two is kept.
func (r *router) addTo(reader *request, m message) *request {
	q := &request{
		id: m.Header.ID, messages: reader.messages,
		left: make(chan struct{}), begun: make(chan struct{}), idle: make(chan struct{}),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, q)
	return q
}

// route passes a message on. The channels' readers call it; order within a channel is kept. A
// request that there is no reader any more is remembered until the kernel is done with it: it can
// still be interrupted.
func (r *router) route(m message) {
	r.mu.Lock()
	at := slices.IndexFunc(r.requests, func(q *request) bool { return q.id == m.Parent.ID })
	if at < 0 {
		r.mu.Unlock()
		return
	}
	q := r.requests[at]
	state := m.executionState()
	if m.Channel == channelIOPub && state == "" {
		closeOnce(q.begun) // under the lock, because only one may at a time
	}
	if state == "idle" {
		closeOnce(q.idle) // before its reader knows: what comes next is not about it. A kernel may say it twice
	}
	r.mu.Unlock()

	select {
	case q.messages <- m:
	case <-q.left:
	}
	if state == "idle" {
		r.retire(q)
	}
}

// reportLost reports to the cell that runs that a message of the kernel was passed over. Which cell
// it was about is not known; a kernel works on one at a time. When none runs, it is one whose end
// is here already, and whose reader waits for the rest.
func (r *router) reportLost(why *oversizeError) {
	q := r.current()
	if q == nil {
		q = r.lastRead()
	}
	if q == nil {
		return
	}
	content, err := json.Marshal(why.Error())
	if err != nil {
		panic(err) // a string can be encoded
	}
	select {
	case q.messages <- message{Header: header{Type: typeLost}, Parent: header{ID: q.id},
		Content: content}:
	case <-q.left:
	}
}

// retire removes a request once the kernel is done with it and its reader has left, whichever is
// last.
func (r *router) retire(q *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if closed(q.idle) && closed(q.left) {
		r.requests = slices.DeleteFunc(r.requests, func(other *request) bool { return other == q })
	}
}

// abandon takes a request off the list that the kernel may never be done with, or whose end does
// not matter.
func (r *router) abandon(q *request) {
	close(q.left)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = slices.DeleteFunc(r.requests, func(other *request) bool { return other == q })
}

// leave marks the request as one without a reader.
func (r *router) leave(q *request) {
	close(q.left)
	r.retire(q)
}

// current returns the request that the kernel works on, nil when there is none.
func (r *router) current() *request {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.requests {
		if !closed(q.idle) {
			return q
		}
	}
	return nil
}

// lastRead returns the last request that has a reader, nil when there is none.
func (r *router) lastRead() *request {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range slices.Backward(r.requests) {
		if !closed(q.left) {
			return q
		}
	}
	return nil
}

// closeOnce closes a channel that only one goroutine closes.
func closeOnce(c chan struct{}) {
	if !closed(c) {
		close(c)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
