// Package oomkill finds out which processes the kernel has killed because memory ran out. The
// kernel has one number for that: how many processes of the sandbox it has killed so, not which.
package oomkill

import (
	"slices"
	"sync"
)

// maxClaimed is how many claimed kills are remembered. What is forgotten cannot be claimed again.
const maxClaimed = 64

// Ledger attributes kills to processes that ended by SIGKILL: one kill to one process at most, and
// only to a process that lived when the number rose. A process that was killed by another one of
// the sandbox, while the victim was a third one whose end was not seen, gets that one's kill: the
// kernel shows nothing that would distinguish the two. Nil is a ledger without kills.
type Ledger struct {
	count func() (int64, bool)

	mu      sync.Mutex
	claimed []int64 // numbers of kills, ascending; none is at most floor
	floor   int64   // what is not above is not claimed any more
}

// Mark is what the number of kills was when a process was about to start.
type Mark struct {
	kills int64
	known bool
}

// New returns a ledger of what count returns: how many processes were killed until now, and whether
// that can be known.
func New(count func() (int64, bool)) *Ledger { return &Ledger{count: count} }

// Mark returns the number before the start of a process.
func (l *Ledger) Mark() Mark {
	if l == nil {
		return Mark{}
	}
	kills, known := l.count()
	return Mark{kills, known}
}

// Claim reports whether a process that started after the mark, and has ended by a SIGKILL that is
// not ours, was killed because memory ran out. The kernel counts before it kills.
func (l *Ledger) Claim(since Mark) bool {
	if l == nil || !since.known {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	kills, known := l.count()
	if !known {
		return false
	}
	// The newest kill is the likeliest, and leaves the older ones to processes that lived then.
	at := len(l.claimed)
	for at > 0 && l.claimed[at-1] == kills {
		at--
		kills--
	}
	if kills <= max(since.kills, l.floor) {
		return false
	}
	l.claimed = slices.Insert(l.claimed, at, kills)
	if len(l.claimed) > maxClaimed {
		l.floor = l.claimed[0]
		l.claimed = slices.Delete(l.claimed, 0, 1)
	}
	return true
}
