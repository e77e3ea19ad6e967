// Package freeze stops the processes of a sandbox and lets them go on, from inside: with SIGSTOP
// and SIGCONT, because the control group's freezer belongs to whoever runs the container. Memory
// stays as it is.
//
// A process that another program had stopped before stays stopped afterwards. A file that outlives
// the daemon records which processes these are, so a restarted daemon continues where the killed
// one stopped.
package freeze

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
)

// ErrFrozen is the error of whatever starts or needs a process while the sandbox is frozen.
var ErrFrozen = errors.New("the sandbox is frozen: thaw it first, with POST /thaw or by resuming it")

// patience is how long all processes together have to stop. One that waits for a disk cannot until
// the disk answers.
const patience = 10 * time.Second

// interval is the time between two listings of the processes.
const interval = 2 * time.Millisecond

// Options configures a Freezer.
type Options struct {
	// Root is the process whose descendants are the sandbox: the init, or the daemon itself where
	// there is none. Zero means the daemon's own process. With 1 every process of the namespace is
	// the sandbox's, also one that was started from outside (kubectl exec).
	Root int
	// State is where it is kept who was stopped by whom; nil means in memory alone, so that it is
	// lost with the daemon.
	State *os.File
}

// Freezer stops and continues the processes of the sandbox. Methods may be called concurrently.
type Freezer struct {
	self, root int
	state      *os.File

	work sync.Mutex // held while processes are stopped or continued

	others map[process.ID]bool // under work: those that another process stopped before we froze

	gate   sync.RWMutex // held for reading by those who start processes
	frozen bool
	asleep bool // by Sleep: only of use to a daemon after this one
}

// New returns a freezer. When the state says that the sandbox is frozen, it is: a daemon before
// this one froze it. It returns an error for a state that cannot be read.
func New(options Options) (*Freezer, error) {
	f := &Freezer{self: os.Getpid(), root: options.Root, state: options.State}
	if f.root == 0 {
		f.root = f.self
	}
	if f.state == nil {
		return f, nil
	}
	record, err := load(f.state)
	if err != nil {
		return nil, err
	}
	f.frozen, f.asleep, f.others = record.Frozen, record.Asleep, make(map[process.ID]bool)
	for _, p := range record.Others {
		f.others[p] = true
	}
	return f, nil
}

// Frozen reports whether the sandbox is frozen, or about to be.
func (f *Freezer) Frozen() bool {
	f.gate.RLock()
	defer f.gate.RUnlock()
	return f.frozen
}

// Asleep reports whether the sandbox is frozen by [Freezer.Sleep].
func (f *Freezer) Asleep() bool {
	f.gate.RLock()
	defer f.gate.RUnlock()
	return f.frozen && f.asleep
}

// Enter lets the caller start processes until it calls leave; a freeze waits for that. It returns
// ErrFrozen while the sandbox is frozen.
func (f *Freezer) Enter() (leave func(), err error) {
	f.gate.RLock()
	if f.frozen {
		f.gate.RUnlock()
		return nil, ErrFrozen
	}
	return f.gate.RUnlock, nil
}

// Freeze stops every process of the sandbox but the daemon and its init, and returns when none of
// them runs. Freezing again does it for processes that have come since. It returns an error when a
// process cannot be stopped, and has continued the others by then.
func (f *Freezer) Freeze(ctx context.Context) error { return f.freeze(ctx, false) }

// Sleep is [Freezer.Freeze] for a sandbox that this daemon is to wake: where the daemon is killed,
// the next one finds that the sandbox is asleep ([Freezer.Asleep]), and can thaw it.
func (f *Freezer) Sleep(ctx context.Context) error { return f.freeze(ctx, true) }

func (f *Freezer) freeze(ctx context.Context, asleep bool) error {
	f.work.Lock()
	defer f.work.Unlock()
	f.gate.Lock()
	was, changed := f.frozen, f.asleep != asleep
	f.frozen, f.asleep = true, asleep
	f.gate.Unlock()
	if was && changed {
		if err := f.save(); err != nil {
			return err
		}
	}
	err := f.stopAll(ctx, !was)
	if err != nil && !was {
		err = errors.Join(err, f.thaw())
	}
	return err
}

// Thaw continues every process that Freeze has stopped. In a sandbox that is not frozen it does
// nothing.
func (f *Freezer) Thaw() error {
	f.work.Lock()
	defer f.work.Unlock()
	if !f.Frozen() {
		return nil
	}
	return f.thaw()
}

// stopAll signals every process that runs, parents before their children, until a listing has none:
// a child that was forked meanwhile is in the next listing, and a process that has been signalled
// forks no more. Those that the first listing finds stopped are not ours, when we have not stopped
// any yet.
func (f *Freezer) stopAll(ctx context.Context, first bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not every process stopped within %v", patience))
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	signalled := make(map[process.ID]bool)
	for ; ; first = false {
		found, whole, err := listProcesses(f.root, f.self)
		if err != nil {
			return err
		}
		if first {
			f.others = make(map[process.ID]bool)
			for _, p := range found {
				if p.held {
					f.others[p.ID] = true
				}
			}
		}
		var running []process.ID
		changed := first
		for _, p := range found {
			if p.held || p.waits && signalled[p.ID] {
				continue
			}
			if f.others[p.ID] { // whoever stopped it has continued it, so it is like any other
				delete(f.others, p.ID)
				changed = true
			}
			running = append(running, p.ID)
		}
		if changed { // before any is signalled: after a kill in the middle, the next daemon needs what had been stopped before
			if err := f.save(); err != nil {
				return err
			}
		}
		if len(running) == 0 && whole {
			return nil
		}
		for _, p := range running {
			signalled[p] = true
			if err := unix.Kill(p.PID, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("stop process %d: %w", p.PID, err)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// thaw continues processes, children before their parents: a shell that waits for its jobs then
// never sees one of them stopped.
func (f *Freezer) thaw() error {
	found, _, err := listProcesses(f.root, f.self) // a stopped process does not end meanwhile
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(found) {
		if f.others[p.ID] {
			continue
		}
		if failed := unix.Kill(p.PID, unix.SIGCONT); failed != nil && !errors.Is(failed, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("continue process %d: %w", p.PID, failed))
		}
	}
	if err != nil {
		return err
	}
	f.gate.Lock()
	f.frozen, f.asleep = false, false
	f.gate.Unlock()
	f.others = nil
	return f.save()
}

// record is what is kept in the state.
type record struct {
	Frozen bool         `json:"frozen"`
	Asleep bool         `json:"asleep,omitempty"`
	Others []process.ID `json:"others,omitempty"`
}

// save writes the record over the last one. What an end in the middle leaves behind is one of both,
// with something after it at most.
func (f *Freezer) save() error {
	if f.state == nil {
		return nil
	}
	text, err := json.Marshal(record{Frozen: f.Frozen(), Asleep: f.Asleep(), Others: slices.Collect(maps.Keys(f.others))})
	if err != nil {
		return err
	}
	if _, err := f.state.WriteAt(append(text, '\n'), 0); err != nil {
		return fmt.Errorf("keep who is frozen: %w", err)
	}
	return nil
}

// load reads the record, which is empty when nothing was ever frozen.
func load(state *os.File) (record, error) {
	var r record
	err := json.NewDecoder(io.NewSectionReader(state, 0, math.MaxInt64)).Decode(&r)
	if err != nil && !errors.Is(err, io.EOF) {
		return r, fmt.Errorf("read who is frozen: %w", err)
	}
	return r, nil
}
