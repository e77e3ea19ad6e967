// Package terminal is execd's engine for interactive terminals: a program on a pseudo-terminal that
// any number of viewers watch and type into.
//
// It uses no HTTP. It guarantees: a program never waits for a viewer; a viewer that comes late, or
// falls behind, is given the last 256 KiB of output again; a viewer sees the last byte that the
// program wrote before it gets the end.
package terminal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/registry"
	"sandbox.internal/internal/process"
)

// Sentinels that this package's errors wrap.
var (
	// ErrNotFound: there is no such terminal, or it ended so long ago that it has been forgotten.
	ErrNotFound = errors.New("no such terminal")
	// ErrClosed: the manager no longer starts terminals.
	ErrClosed = errors.New("the daemon is shutting down")
)

// How many terminals that have ended can still be read, and how many bytes of arguments they may
// have together; with their histories they hold at most 16 MiB.
const (
	retain          = 32
	retainArguments = 8 << 20
)

// Options configures a Manager.
type Options struct {
	// Dir is the working directory of terminals that name none.
	Dir string
	// Env is the environment that terminals start with, NAME=value each. Names that begin with
	// EXECD_ are the daemon's own and are not passed on.
	Env   []string
	Clock func() time.Time
	// Enter, if not nil, keeps the sandbox from being frozen until leave is called; it returns an
	// error while it is frozen.
	Enter func() (leave func(), err error)
	// Holds gets a hold for each terminal with a viewer; nil takes none.
	Holds *holds.Registry
}

// Manager starts terminals and keeps those that have ended.
type Manager struct {
	options Options
	env     []string

	terminals registry.Registry[*Terminal]
	mu        sync.Mutex
	ended     []*Terminal // oldest first
	arguments int         // bytes of what ended was started with
}

// New returns a manager without terminals.
func New(options Options) *Manager {
	return &Manager{options: options, env: process.Environment(options.Env)}
}

// Start starts a terminal. The terminal ends with its program, by Kill or by Stop, and not when
// viewers leave. It returns an [invalid.Error] when the spec cannot be run, and ErrClosed.
func (m *Manager) Start(spec Spec) (*Terminal, error) {
	if !m.terminals.Reserve() {
		return nil, ErrClosed
	}
	t, err := m.start(spec)
	if err != nil {
		m.terminals.Done()
		return nil, err
	}
	stopped := m.terminals.Add(t.id, t)
	go func() {
		defer m.terminals.Done()
		t.run()
		if spec.Ended != nil {
			spec.Ended(t.Status())
		}
		m.retire(t)
	}()
	if stopped {
		t.kill()
	}
	return t, nil
}

// Get returns a terminal. It returns ErrNotFound.
func (m *Manager) Get(id string) (*Terminal, error) {
	if t, ok := m.terminals.Get(id); ok {
		return t, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
}

// List returns the terminals that are remembered, oldest first.
func (m *Manager) List() []*Terminal {
	all := m.terminals.All()
	slices.SortFunc(all, func(a, b *Terminal) int {
		return cmp.Or(a.createdAt.Compare(b.createdAt), cmp.Compare(a.id, b.id))
	})
	return all
}

// Kill hangs a terminal up: SIGHUP to its program and to whatever runs in its foreground, and
// SIGKILL 2 s later. Killing a terminal that has ended succeeds. It returns ErrNotFound. It does
// not wait for the end.
func (m *Manager) Kill(id string) error {
	t, err := m.Get(id)
	if err != nil {
		return err
	}
	t.kill()
	return nil
}

// Stop starts no more terminals, hangs up those that run, and waits for their end. When ctx ends
// first, they are killed at once.
func (m *Manager) Stop(ctx context.Context) {
	m.terminals.Stop(ctx, (*Terminal).kill, (*Terminal).killNow)
}

// retire puts a terminal that has ended among those that may be forgotten, and forgets what is too
// much.
func (m *Manager) retire(t *Terminal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = append(m.ended, t)
	m.arguments += t.arguments()
	for len(m.ended) > retain || m.arguments > retainArguments {
		oldest := m.ended[0]
		m.terminals.Remove(oldest.id)
		m.arguments -= oldest.arguments()
		m.ended = slices.Delete(m.ended, 0, 1)
	}
}

// arguments returns how many bytes the terminal was started with.
func (t *Terminal) arguments() int {
	bytes := 0
	for _, word := range t.command {
		bytes += len(word)
	}
	return bytes
}
