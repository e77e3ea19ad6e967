// Package users gives containers user ids of the host's that nothing else has, and user namespaces
// that say which: so root in a container is no user of the host.
package users

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
)

const (
	// Size is how many ids a container has: 0 to Size-1 in it are First to First+Size-1 on the
	// host.
	Size = 1 << 16
	// reserved is an id beyond those of a container, which [Range].Namespace maps to the host's 0:
	// what the kernel makes for itself on the disk of a container belongs to it, such as the work
	// directory of an overlay file system and its whiteouts.
	reserved = Size

	// maxBeyond is how many ids of a container may lie beyond its range.
	maxBeyond = 16

	// ready is for how many of the next containers namespaces are kept: as many as are started at
	// the same time.
	ready = 8
	// few is for how many there are some when others are made: to make one takes 2 ms of a
	// processor.
	few = ready / 2
)

// ErrNone is the error of a Pool whose ranges are all taken.
var ErrNone = errors.New("no range of user ids is free")

// Range is the ids of one container.
type Range struct {
	First int // the container's root; 0 is no range
	// Namespace is a user namespace for mounts, which maps the range, and the id after it to the
	// host's 0. It is open until Release or Close.
	Namespace *os.File
}

// Makers make user namespaces with these ids, of users and of groups alike. They are called from
// several goroutines at once.
type Makers struct {
	// Mounts makes one for mounts.
	Mounts func(ids []syscall.SysProcIDMap) (*os.File, error)
	// Container makes one for a container, which belongs to the user owner of the host.
	Container func(ids []syscall.SysProcIDMap, owner int) (*os.File, error)
}

// Pool has the ranges of one service. It is safe for concurrent use.
type Pool struct {
	block int // where its ranges begin
	count int
	make  Makers

	mu         sync.Mutex
	taken      map[int]bool
	namespaces map[int]*os.File // of ranges that are taken, and of idle
	special    map[int]*os.File // of ranges that are taken with ids beyond them: no other container can use them
	unused     map[int]*os.File // of the next container of a range that has a namespace, for itself
	idle       []int            // ranges that are not taken and have a namespace, the one that was released last at the end
	next       int              // where the search for one that never was taken goes on
	ahead      bool             // namespaces are made ahead
	refilling  bool             // that is in progress
	closed     bool
	making     sync.WaitGroup
}

// Open takes a block of ranges for the directory of a service's data. claims is a directory that
// all services of the host have in common; it is made when it is missing, and has a link to the
// data directory of each.
func Open(claims, data string, make Makers) (*Pool, error) {
	block, err := claim(claims, data)
	if err != nil {
		return nil, fmt.Errorf("user ids: %w", err)
	}
	return &Pool{block: block, count: rangesOfBlock, make: make, taken: map[int]bool{}, namespaces: map[int]*os.File{},
		special: map[int]*os.File{}, unused: map[int]*os.File{}}, nil
}

// Prepare makes some namespaces ahead, in the background, as Take and TakeContainer do from then
// on. It is called after every MarkTaken.
func (p *Pool) Prepare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = true
	p.refill()
}

// refill makes namespaces in the background, if there are some for few containers. The lock is
// held.
func (p *Pool) refill() {
	if !p.ahead || p.refilling || p.closed || p.complete() > few {
		return
	}
	p.refilling = true
	p.making.Go(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		// A container that needs one reports an error.
		if len(p.idle) > few || p.addRanges() == nil {
			_ = p.addUnused()
		}
		p.refilling = false
	})
}

// addRanges makes namespaces for mounts until enough ranges have one, as long as there are ranges
// for them beside those of containers. The lock is held before and after.
func (p *Pool) addRanges() error {
	for !p.closed && len(p.idle) < ready && p.count-len(p.taken) > 2*ready {
		made, err := p.takeNew()
		if err != nil {
			return err
		}
		p.release(made.First) // some may have been released meanwhile
	}
	return nil
}

// addUnused makes a namespace for the next container of each idle range that has none. The lock is
// held before and after.
func (p *Pool) addUnused() error {
	for {
		at := slices.IndexFunc(p.idle, func(first int) bool { return p.unused[first] == nil })
		if at < 0 {
			return nil
		}
		if err := p.makeUnused(p.idle[at]); err != nil {
			return err
		}
	}
}

// complete returns how many containers would find both namespaces. The lock is held.
func (p *Pool) complete() int {
	n := 0
	for _, first := range p.idle {
		if p.unused[first] != nil {
			n++
		}
	}
	return n
}

// makeUnused makes a namespace for the next container of the range. The lock is held before and
// after, and not meanwhile.
func (p *Pool) makeUnused(first int) error {
	p.mu.Unlock()
	made, err := p.make.Container(containerIDs(first, nil), first)
	p.mu.Lock()
	if err == nil && (p.closed || p.namespaces[first] == nil || p.unused[first] != nil) {
		return made.Close()
	}
	if err == nil {
		p.unused[first] = made
	}
	return err
}

// Close closes the namespaces that are kept. Ranges stay the service's until [ReleaseBlock].
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.making.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, all := range []map[int]*os.File{p.namespaces, p.special, p.unused} {
		for _, namespace := range all {
			_ = namespace.Close()
		}
	}
	p.namespaces, p.special, p.unused, p.idle = nil, nil, nil, nil
}

// MarkTaken marks the range as taken: a container of an earlier process has it.
func (p *Pool) MarkTaken(first int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[first] = true
}

// Take returns a range that no other container has. It returns [ErrNone].
func (p *Pool) Take() (Range, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Range{}, os.ErrClosed
	}
	defer p.refill()
	p.idle = slices.DeleteFunc(p.idle, func(first int) bool { return p.taken[first] })
	if len(p.idle) == 0 {
		return p.takeNew()
	}
	at := len(p.idle) - 1
	for i, first := range p.idle {
		if p.unused[first] != nil {
			at = i
		}
	}
	first := p.idle[at]
	p.idle = slices.Delete(p.idle, at, at+1)
	return p.take(first), nil
}

// TakeContainer returns a new user namespace for a container, which belongs to First: its root.
// These are its ids beyond the range. The caller closes it.
//
// Each container has a new one, because the root of an earlier container may have changed its own.
func (p *Pool) TakeContainer(first int, beyond []uint32) (*os.File, error) {
	p.mu.Lock()
	made := p.unused[first]
	delete(p.unused, first)
	p.refill()
	p.mu.Unlock()
	if made != nil {
		return made, nil
	}
	return p.make.Container(containerIDs(first, beyond), first)
}

// TakeWith is Take for a container with ids of [Beyond]: the i-th of n is First+Size-n+i on the
// host, and the container does not have the last n ids of its range.
func (p *Pool) TakeWith(beyond []uint32) (Range, error) {
	if len(beyond) == 0 {
		return p.Take()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Range{}, os.ErrClosed
	}
	first, namespace, err := p.makeNew(beyond)
	if err != nil {
		return Range{}, err
	}
	p.special[first] = namespace
	return Range{First: first, Namespace: namespace}, nil
}

// takeNew takes a range that has no namespace yet. It makes that without the lock, which is held
// before and after: it takes a millisecond.
func (p *Pool) takeNew() (Range, error) {
	first, namespace, err := p.makeNew(nil)
	if err != nil {
		return Range{}, err
	}
	p.namespaces[first] = namespace
	return p.take(first), nil
}

func (p *Pool) makeNew(beyond []uint32) (first int, namespace *os.File, err error) {
	if first = p.free(); first == 0 {
		return 0, nil, fmt.Errorf("%w: %d containers have one", ErrNone, len(p.taken))
	}
	p.taken[first] = true
	p.mu.Unlock()
	namespace, err = p.make.Mounts(idsOf(first, beyond))
	p.mu.Lock()
	if err == nil && p.closed {
		err = errors.Join(os.ErrClosed, namespace.Close())
	}
	if err != nil {
		delete(p.taken, first)
		return 0, nil, fmt.Errorf("make a user namespace: %w", err)
	}
	return first, namespace, nil
}

// free returns a range that no container has and that has no namespace; 0 when there is none.
func (p *Pool) free() int {
	for range p.count {
		first := p.block + p.next*Size
		p.next = (p.next + 1) % p.count
		if !p.taken[first] && p.namespaces[first] == nil {
			return first
		}
	}
	return 0
}

func (p *Pool) take(first int) Range {
	p.taken[first] = true
	return Range{First: first, Namespace: p.namespaces[first]}
}

// Release makes the range of a container available again. No process and no record of the container
// may be left. Releasing a range that is not taken succeeds.
func (p *Pool) Release(first int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[first] {
		p.release(first)
	}
}

// release is Release of a range that is taken. It keeps the namespace for the next container if
// there are not enough. The lock is held.
func (p *Pool) release(first int) {
	delete(p.taken, first)
	if namespace := p.special[first]; namespace != nil {
		_ = namespace.Close()
		delete(p.special, first)
		return
	}
	switch {
	case p.namespaces[first] == nil: // of an earlier process
	case len(p.idle) < ready:
		p.idle = append(p.idle, first)
		p.refill()
	default:
		for _, all := range []map[int]*os.File{p.namespaces, p.unused} {
			_ = all[first].Close() // of nil, an error
			delete(all, first)
		}
	}
}
