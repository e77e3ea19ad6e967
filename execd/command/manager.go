// Package command is execd's command engine: it runs shell commands and keeps everything they say
// in lossless, append-only logs.
//
// It uses no HTTP. It guarantees: a command never waits for whoever reads its output; every byte
// that its process wrote is in the log, in order per stream, until the log's limit; the log ends
// with exactly one terminal event, sent once the process has been waited for and its last byte is
// in.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/oomkill"
	"sandbox.internal/execd/internal/registry"
	"sandbox.internal/internal/process"
)

// Sentinels that this package's errors wrap.
var (
	// ErrNotFound: there is no such command, or it ended so long ago that it has been forgotten.
	ErrNotFound = errors.New("no such command")
	// ErrClosed: the manager no longer starts commands.
	ErrClosed = errors.New("the daemon is shutting down")
)

// Options configures a Manager.
type Options struct {
	// Dir is the working directory of commands that name none.
	Dir string
	// Env is the environment that commands start with, NAME=value each. Names that begin with
	// EXECD_ are the daemon's own and are not passed on.
	Env []string
	// LogLimit is how many bytes of output are kept per command. Bytes beyond it are counted and
	// reported in a status event.
	LogLimit int64
	// SpoolDir is where output goes that does not fit into memory; empty means wherever a temporary
	// file can be made.
	SpoolDir string
	// BuiltinShell is the argument vector of a program that takes -c and a command line, or the
	// path of a file with one, for images without bash and sh.
	BuiltinShell []string
	// OOMKills says which commands the kernel has ended because memory ran out; nil means that
	// none is known.
	OOMKills *oomkill.Ledger
	// Holds gets a hold for each command that runs, from before its process starts; nil takes
	// none.
	Holds *holds.Registry
	// KillDelay is how long the process group of a command that was interrupted has to end after
	// SIGTERM before it is killed; 0 means 2 s.
	KillDelay time.Duration
	Clock     func() time.Time
}

// defaultKillDelay is the default of [Options.KillDelay].
const defaultKillDelay = 2 * time.Second

// Manager starts commands and keeps those that have ended.
type Manager struct {
	options Options
	env     []string

	commands  registry.Registry[*Command]
	mu        sync.Mutex
	poller    *poller         // nil before the first command
	memory    eventlog.Memory // of the logs of those that run
	retention *eventlog.Retention[*Command]
	noHandles bool // for tests, see poller
	runeDelay time.Duration
}

// New returns a manager without commands.
func New(options Options) *Manager {
	options.KillDelay = cmp.Or(options.KillDelay, defaultKillDelay)
	m := &Manager{options: options, env: process.Environment(options.Env), runeDelay: runeDelay}
	m.retention = eventlog.NewRetention(func(c *Command) { m.commands.Remove(c.id) })
	return m
}

// Start starts a command and returns without waiting for it. The command's life is bound to nothing
// but its timeout, Interrupt and Stop. It returns an [invalid.Error] when the spec cannot be run,
// and ErrClosed.
func (m *Manager) Start(spec Spec) (*Command, error) {
	if !m.commands.Reserve() {
		return nil, ErrClosed
	}
	c, err := m.start(spec)
	if err != nil {
		m.commands.Done()
		return nil, err
	}
	stopped := m.commands.Add(c.id, c)
	c.run.Load().release() // it cannot have ended before
	if stopped {
		c.interrupt()
	}
	return c, nil
}

// watcher returns the poller of all commands.
func (m *Manager) watcher() (*poller, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.poller == nil {
		p, err := newPoller()
		if err != nil {
			return nil, err
		}
		p.noHandles = m.noHandles
		m.poller = p
	}
	return m.poller, nil
}

// ended is called for every command that has ended. Retaining it may discard another one, and
// freeing a large file takes its time, so it has a goroutine of its own.
func (m *Manager) ended(c *Command) {
	go func() {
		defer m.commands.Done()
		status := c.Status()
		if c.onEnd != nil {
			c.onEnd(status)
			c.onEnd = nil
		}
		m.retention.Add(c, &c.log, status.FinishedAt)
	}()
}

// Get returns a command. It returns ErrNotFound.
func (m *Manager) Get(id string) (*Command, error) {
	if c, ok := m.commands.Get(id); ok {
		return c, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
}

// List returns the commands that run and those that have ended and are kept, in the order of their
// starts.
func (m *Manager) List() []*Command {
	all := m.commands.All()
	slices.SortFunc(all, func(a, b *Command) int {
		return cmp.Or(a.startedAt.Compare(b.startedAt), cmp.Compare(a.id, b.id))
	})
	return all
}

// Interrupt ends a command: SIGTERM to its process group, and SIGKILL 2 s later. Interrupting a
// command that has ended succeeds. It returns ErrNotFound. It does not wait for the end.
func (m *Manager) Interrupt(id string) error {
	c, err := m.Get(id)
	if err != nil {
		return err
	}
	c.interrupt()
	return nil
}

// Stop starts no more commands, interrupts those that run, and waits for their end. When ctx ends
// first, what still runs is killed at once. The logs can be read on.
func (m *Manager) Stop(ctx context.Context) {
	m.commands.Stop(ctx, (*Command).interrupt, (*Command).kill)
}

// Close discards every log, after Stop, and closes the pipes that processes left behind by commands
// still write to. A reader of a log gets an error.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.poller != nil {
		m.poller.close()
	}
	for _, c := range m.commands.All() {
		c.log.Close()
	}
}
