// Package spares keeps networks of sandboxes ahead.
package spares

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/lifecycle"
)

// A network namespace with published ports is half of what the start of a container takes a Docker
// Engine. So a few are made ahead, while the engine has nothing else to do. A spare is the
// container that owns such a network, made for a sandbox whose id is chosen with it. The next
// sandbox takes that id, and its own container joins. A spare is taken once, and ends with its
// sandbox.
//
// Spares are kept in memory alone. After a restart the container of a spare that no record names is
// a box without a sandbox, which the host removes.

const (
	// spareRest is for how long the engine must have had nothing to do before a spare is made: the
	// first command of a sandbox that has just started, and the next create, need the processors
	// themselves.
	spareRest = 500 * time.Millisecond
	// spareAge is when a spare is replaced: its image and its name servers are those of when it was
	// made.
	spareAge = 15 * time.Minute
	// sparePause is the pause after a spare could not be made or has ended by itself. It doubles
	// each time, up to longestSparePause.
	sparePause, longestSparePause = time.Second, time.Minute
	// takenPatience is how long the record of a sandbox may take to become durable: the sweep
	// leaves its network alone meanwhile.
	takenPatience = time.Minute
	// closePatience is how long the spares may take to be removed when the service stops; the next
	// start removes the rest. A busy engine takes seconds for each step.
	closePatience = 30 * time.Second
)

// spare is a network that was made ahead.
type spare struct {
	// record is of the sandbox to come, as far as it is known: its id, its box and its sidecar.
	record lifecycle.Record
	state  spareState
	since  time.Time // of the state
}

type spareState string

const (
	spareMaking spareState = "making"
	spareFree   spareState = "free"
	spareTaken  spareState = "taken"  // its sandbox has not been launched yet
	spareEnding spareState = "ending" // it is to be removed
)

// Spares keeps a number of networks ahead.
type Spares struct {
	of Networks

	mu       sync.Mutex
	all      map[string]*spare // by the identity of the box
	working  int               // launches and removals in progress
	rested   time.Time         // when the last of them ended
	failures int               // in a row
	paused   time.Time         // nothing is made or removed until then
	taken    int               // how many sandboxes took one
	missed   int               // and how many found none

	woken   chan struct{} // holds a token when something has changed
	once    sync.Once
	closing chan struct{} // closed, once, when no more are made
	closed  chan struct{} // closed when none is left
}

// Networks are what is made ahead, so many of them.
type Networks struct {
	Size   int
	Clock  func() time.Time
	Log    zerolog.Logger
	Record func() lifecycle.Record      // of the next sandbox to come, as far as it is known
	Start  func(lifecycle.Record) error // the network of a record
	Remove func(lifecycle.Record) error
	GiveUp func() // breaks off what is under way
}

// New keeps networks ahead until Close is called.
func New(of Networks) *Spares {
	s := &Spares{
		of: of, all: map[string]*spare{}, rested: of.Clock(),
		woken: make(chan struct{}, 1), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	go s.run()
	return s
}

// failed begins a pause. The caller holds the lock.
func (s *Spares) failed(err error) {
	pause := min(sparePause<<min(s.failures, 10), longestSparePause)
	s.failures++
	s.paused = s.of.Clock().Add(pause)
	s.of.Log.Warn().Err(err).Dur("retry_in", pause).Msg("cannot prepare networks; sandboxes start slower until the next attempt")
}

func (s *Spares) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Begin is called before work of the engine's for a sandbox, and the returned function after it.
func (s *Spares) Begin() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.working--
		s.rested = s.of.Clock()
		s.wake()
	}
}

// Take gives the record the oldest free network, and with it the id of the sandbox. It returns
// false when there is none.
func (s *Spares) Take(record *lifecycle.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.of.Clock()
	var oldest *spare
	for _, one := range s.all {
		if one.state == spareFree && now.Sub(one.since) < spareAge && (oldest == nil || one.since.Before(oldest.since)) {
			oldest = one
		}
	}
	if oldest == nil || s.isClosing() {
		s.missed++
		return false
	}
	s.taken++
	s.failures = 0
	oldest.state, oldest.since = spareTaken, now
	from := oldest.record.Clone()
	record.Sandbox.ID, record.Box, record.Sidecar, record.SpareNetwork = from.Sandbox.ID, from.Box, from.Sidecar, true
	return true
}

// Claim reports whether the network of the box was taken and not used yet. From here on it is the
// box's alone.
func (s *Spares) Claim(box string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[box]
	if one == nil || one.state != spareTaken {
		return false
	}
	delete(s.all, box)
	return true
}

// Boxes returns the identities of the boxes of all spares: of those that were taken while their
// records may be on their way to the disk.
func (s *Spares) Boxes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.of.Clock()
	maps.DeleteFunc(s.all, func(_ string, one *spare) bool {
		return one.state == spareTaken && now.Sub(one.since) >= takenPatience
	})
	return slices.Collect(maps.Keys(s.all))
}

// Ended is called when the container of a box has ended, which may be a spare.
func (s *Spares) Ended(box string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.all[box]; one != nil && (one.state == spareMaking || one.state == spareFree) {
		one.state = spareEnding
		s.failed(errors.New("container of the network has ended"))
		s.wake()
	}
}

// Replace ends every spare that is free: the engine may have been away, and its containers with it.
func (s *Spares) Replace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if one.state == spareFree {
			one.state = spareEnding
		}
	}
	s.wake()
}

// Count returns how many are free, how many sandboxes took one, and how many found none.
func (s *Spares) Count() (free, taken, missed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if one.state == spareFree {
			free++
		}
	}
	return free, s.taken, s.missed
}
