// Package code is execd's code engine: it runs cells in Jupyter kernels, in contexts that keep
// their variables or in kernels that are thrown away after use, and keeps everything that a cell
// says in a log.
//
// It uses neither HTTP nor Jupyter: kernels come from a kernel.Host.
package code

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/execd/internal/holds"
	"sandbox.internal/execd/internal/invalid"
	"sandbox.internal/execd/internal/oomkill"
	"sandbox.internal/runtime/kernel"
)

// Sentinels that this package's errors wrap.
var (
	// ErrNotFound: there is no such context or execution (any more).
	ErrNotFound = errors.New("not found")
	// ErrUnavailable: kernels cannot be had now; the message says why.
	ErrUnavailable = errors.New("no kernel is available")
	// ErrFull: as many cells wait in the context as may.
	ErrFull = errors.New("too many cells wait")
	// ErrClosed: the manager no longer executes.
	ErrClosed = errors.New("the daemon is shutting down")
)

// DefaultLanguage is the language of a cell that names none.
const DefaultLanguage = "python"

// stopTimeout bounds how long a kernel may take to end.
const stopTimeout = 10 * time.Second

// Options configures a Manager.
type Options struct {
	Host kernel.Host
	// Dir is the working directory of kernels.
	Dir string
	// LogLimit is how many bytes of output are kept per execution.
	LogLimit int64
	// SpoolDir is where output goes that does not fit into memory; empty means wherever a temporary
	// file can be made.
	SpoolDir string
	Logger   zerolog.Logger
	Clock    func() time.Time
	// Frozen, if not nil, reports whether the kernels' processes are stopped: that time does not
	// count as theirs.
	Frozen func() bool
	// Holds gets a hold for each cell that waits or runs; nil takes none.
	Holds *holds.Registry
	// OOMKills has the kills of processes by the kernel, for kernels that end; nil for none.
	OOMKills *oomkill.Ledger
	// SpareTime is how long a kernel is kept ready for the next cell without a context; zero means
	// five minutes.
	SpareTime time.Duration
}

// Manager keeps contexts and executions.
type Manager struct {
	options Options
	spares  *spares

	mu         sync.Mutex
	contexts   map[string]*session
	executions map[string]*Execution
	closed     bool
	creating   chan struct{} // holds a token while a default context is looked up or created
	running    sync.WaitGroup
	memory     eventlog.Memory // of the logs of those executions that have not ended
	retention  *eventlog.Retention[*Execution]

	ctx    context.Context
	cancel context.CancelFunc
}

// Context is a kernel that keeps its variables (execd document, "Code context").
type Context struct {
	ID       string
	Language string
	// Default says that it is the one of its language that cells share which name none.
	Default bool
	// Dir is the working directory that its kernel starts in.
	Dir string
}

// New returns a manager without contexts. It starts no kernel before one is asked for.
func New(options Options) *Manager {
	if options.SpareTime == 0 {
		options.SpareTime = spareTime
	}
	m := &Manager{options: options, contexts: make(map[string]*session), executions: make(map[string]*Execution),
		creating: make(chan struct{}, 1)}
	m.retention = eventlog.NewRetention(m.forget)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.spares = newSpares(m)
	return m
}

// CreateContext starts a kernel for a language and returns when it answers. It returns an
// [invalid.Error] for a language that has no kernel here, ErrUnavailable and ErrClosed.
func (m *Manager) CreateContext(ctx context.Context, language string) (Context, error) {
	return m.CreateContextIn(ctx, language, "")
}

// CreateContextIn is [Manager.CreateContext] with a working directory for the kernel, which must
// exist; empty means Options.Dir.
func (m *Manager) CreateContextIn(ctx context.Context, language, dir string) (Context, error) {
	spec, language, err := m.spec(ctx, language)
	if err != nil {
		return Context{}, err
	}
	s, err := m.startSession(ctx, spec, Context{ID: uuid.NewString(), Language: language, Dir: dir})
	if err != nil {
		return Context{}, err
	}
	if err := m.register(s, nil); err != nil {
		return Context{}, err
	}
	return s.info, nil
}

// startSession starts the kernel of a context.
func (m *Manager) startSession(ctx context.Context, spec string, info Context) (*session, error) {
	if info.Dir == "" {
		info.Dir = m.options.Dir
	} else if at, err := os.Stat(info.Dir); err != nil || !at.IsDir() {
		return nil, invalid.Errorf("working directory: %.512q is not a directory", info.Dir)
	}
	k, err := m.startKernel(ctx, spec, info.Dir)
	if err != nil {
		return nil, err
	}
	return newSession(m, info, k, false), nil
}

// RestartContext gives a context a new kernel of the same language in the same directory: its
// variables are gone, and cells that run or wait in it end with an error. The old kernel ends when
// the new one answers, so that a context whose restart fails is as it was. It returns ErrNotFound,
// ErrUnavailable and ErrClosed.
func (m *Manager) RestartContext(ctx context.Context, id string) error {
	select {
	case m.creating <- struct{}{}: // of two at the same time, the second restarts what the first made
		defer func() { <-m.creating }()
	case <-ctx.Done():
		return ctx.Err()
	}
	old, err := m.session(id)
	if err != nil {
		return err
	}
	spec, _, err := m.spec(ctx, old.info.Language)
	if err != nil {
		return err
	}
	s, err := m.startSession(ctx, spec, old.info)
	if err != nil {
		return err
	}
	if err := m.register(s, old); err != nil {
		return err
	}
	old.end("the context was restarted")
	return old.wait(ctx)
}

// CheckLanguage returns an [invalid.Error] for a language that has no kernel here, and
// ErrUnavailable. An empty one is the default.
func (m *Manager) CheckLanguage(ctx context.Context, language string) error {
	_, _, err := m.spec(ctx, language)
	return err
}

// register adds a session to those of the manager, in the place of another unless that is nil, and
// starts it. Its kernel is ended when the manager is closed, and when the other session is there no
// longer, which is ErrNotFound.
func (m *Manager) register(s, instead *session) error {
	var err error
	m.mu.Lock()
	switch {
	case m.closed:
		err = ErrClosed
	case instead != nil && m.contexts[s.info.ID] != instead:
		err = fmt.Errorf("context %q: %w", s.info.ID, ErrNotFound)
	default:
		m.contexts[s.info.ID] = s
		m.running.Add(1)
	}
	m.mu.Unlock()
	if err != nil {
		m.stopKernel(s.kernel)
		return err
	}
	go func() {
		defer m.running.Done()
		s.run()
	}()
	return nil
}

// Contexts returns the contexts of a language, or all of them when it is empty, sorted by id.
func (m *Manager) Contexts(language string) []Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	contexts := []Context{}
	for _, s := range m.contexts {
		if !s.throwaway && (language == "" || strings.EqualFold(s.info.Language, language)) {
			contexts = append(contexts, s.info)
		}
	}
	slices.SortFunc(contexts, func(a, b Context) int { return strings.Compare(a.ID, b.ID) })
	return contexts
}

// Context returns a context. It returns ErrNotFound.
func (m *Manager) Context(id string) (Context, error) {
	s, err := m.session(id)
	if err != nil {
		return Context{}, err
	}
	return s.info, nil
}

func (m *Manager) session(id string) (*session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.contexts[id]; ok && !s.throwaway {
		return s, nil
	}
	return nil, fmt.Errorf("context %q: %w", id, ErrNotFound)
}

// DeleteContext ends a context and returns when its kernel is gone. Cells that run or wait in it
// end with an error. It returns ErrNotFound.
func (m *Manager) DeleteContext(ctx context.Context, id string) error {
	s, err := m.session(id)
	if err != nil {
		return err
	}
	s.end("the context was deleted")
	return s.wait(ctx)
}

// DeleteContexts ends every context of a language.
func (m *Manager) DeleteContexts(ctx context.Context, language string) error {
	var sessions []*session
	for _, c := range m.Contexts(language) {
		if s, err := m.session(c.ID); err == nil {
			s.end("the context was deleted")
			sessions = append(sessions, s)
		}
	}
	for _, s := range sessions {
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Interrupt stops a cell: the one that runs in a context, when id is the context's, or the one of
// an execution, which may still wait for its turn and then never begins. Without such a cell, or
// when it has ended, it does nothing. No other cell is affected. It returns ErrNotFound.
func (m *Manager) Interrupt(ctx context.Context, id string) error {
	m.mu.Lock()
	s, known := m.contexts[id]
	e := m.executions[id]
	if !known && e != nil {
		s, known = e.session, true
	}
	m.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("context %q: %w", id, ErrNotFound)
	case s == nil: // the execution has ended
		return nil
	}
	return s.interrupt(ctx, e)
}

// spec returns the name of the kernelspec for a language, and the language as we name it.
func (m *Manager) spec(ctx context.Context, language string) (spec, name string, err error) {
	if language == "" {
		language = DefaultLanguage
	}
	specs, err := m.options.Host.Specs(ctx)
	if err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var installed []string
	for _, s := range specs {
		name := strings.ToLower(s.Language)
		if strings.EqualFold(language, s.Language) {
			return s.Name, name, nil
		}
		if !slices.Contains(installed, name) {
			installed = append(installed, name)
		}
	}
	if len(installed) == 0 {
		return "", "", invalid.Errorf("language: %q has no kernel in this sandbox; its image has no Jupyter kernels at all", language)
	}
	slices.Sort(installed)
	return "", "", invalid.Errorf("language: %q has no kernel in this sandbox; installed are %s", language, strings.Join(installed, ", "))
}

func (m *Manager) startKernel(ctx context.Context, spec, dir string) (kernel.Kernel, error) {
	k, err := m.options.Host.Start(ctx, spec, kernel.StartOptions{Dir: dir})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return k, nil
}

func (m *Manager) stopKernel(k kernel.Kernel) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), stopTimeout)
	defer cancel()
	if err := k.Stop(ctx); err != nil {
		m.options.Logger.Error().Err(err).Msg("a kernel did not end")
	}
}

// Stop executes no more, ends every context and spare kernel, and returns when their kernels are
// gone. The logs can be read on.
func (m *Manager) Stop() {
	m.mu.Lock()
	m.closed = true
	for _, s := range m.contexts {
		s.end("the daemon is shutting down")
	}
	m.mu.Unlock()
	m.cancel()
	m.running.Wait()
	m.spares.stop()
}

// Close discards every log and the kernels' host, after Stop.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.executions {
		e.log.Close()
	}
	return m.options.Host.Close()
}
