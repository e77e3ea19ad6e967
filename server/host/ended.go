package host

import "sandbox.internal/server/lifecycle"

// What ended sandboxes take in memory. endedBudget bounds it, also before
// [Options].TerminatedRetention is over; that is 16384 records without much text, and as many logs
// of keptLogBytes on disk.
const (
	endedBudget = 256 << 20
	endedBytes  = 16 << 10 // of a sandbox without its texts: the actor and its goroutine, and the record
	itemBytes   = 128      // of a string without its text, in two copies of the record
)

// makeRoom counts the record of an actor of which nothing is left at the engine, and has others
// forgotten that there is no room for any more.
func (h *Host) makeRoom(a *actor, record *lifecycle.Record) {
	for _, other := range h.ended.Add(a, record.Sandbox.Owner, costOf(record)) {
		h.tasks.Go(func() { // the inbox of another actor may be full
			other.post(func() { other.record.RetainUntil = wall(h.options.Clock()) })
		})
	}
}

// costOf is what an ended sandbox takes of the budget.
func costOf(record *lifecycle.Record) int {
	s := &record.Sandbox
	cost := endedBytes + len(s.Image) + len(s.Status.Message) + len(s.Extensions)
	for _, argument := range s.Entrypoint {
		cost += itemBytes + len(argument)
	}
	for key, value := range s.Metadata {
		cost += 2*itemBytes + len(key) + len(value)
	}
	return cost
}
