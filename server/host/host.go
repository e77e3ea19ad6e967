// Package host is the lifecycle backend for one machine: the states of sandboxes, their durability,
// expiry and recovery. [Boxes] hides the parts of a sandbox; records are in one store.
//
// Every sandbox has an actor: one goroutine that owns its record, changes it and brings the box
// into the state of the record. The state says what there is to do, so a restarted service
// continues where the killed one stopped. Everything else that an actor knows is in memory only: a
// restarted service asks the engine for it.
package host

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/lifecycle"
)

// Options configures a Host.
type Options struct {
	Boxes    Boxes
	Store    Store
	Sidecars Sidecars
	Logger   zerolog.Logger
	Clock    func() time.Time
	// Observer measures; nil means that nothing is measured.
	Observer Observer

	// AvailableMemory returns how much of the machine's memory is available, in percent. Sandboxes
	// that sleep go to the disk early when that is little; nil means that it never is.
	AvailableMemory func() (percent float64, err error)

	// MaxSandboxes is how many sandboxes that have not ended there may be; 0 is no limit.
	MaxSandboxes int
	// EndpointHost is the host in endpoints; empty means the one that the client reached the
	// service on.
	EndpointHost string
	// TerminatedRetention and FailedPendingRetention are for how long the record of an ended
	// sandbox can be read.
	TerminatedRetention    time.Duration
	FailedPendingRetention time.Duration
	// EndedBudget bounds the memory of ended sandboxes, in bytes; over it the oldest records of the
	// owner that has the most are forgotten before their time. 0 means 256 MiB.
	EndedBudget int
}

const (
	// actTimeout is how long pause and resume wait for the engine before they return.
	actTimeout = time.Second
	// endpointTimeout is how long a request for an endpoint waits for a Pending sandbox.
	endpointTimeout = 30 * time.Second
	// sweepInterval is how often boxes are compared with records.
	sweepInterval = time.Minute
	// progressInterval is how often progress of one kind becomes an event, which costs a durable
	// write; the status shows every step.
	progressInterval = 5 * time.Second
	// saveInterval is how often saving a change that could not be made durable is tried again.
	saveInterval = time.Second
	// keptEvents and keptEventsFor bound how many events are kept, and for how long. The next sweep
	// removes the excess.
	keptEvents    = 100_000
	keptEventsFor = 7 * 24 * time.Hour
)

// Host implements lifecycle.Backend.
type Host struct {
	options Options
	since   time.Time // when the host was started

	registry registry
	notifier notifier
	keys     keyLocks
	quota    lifecycle.Quota
	ended    *lifecycle.Ended[*actor]

	snapshots snapshots
	toDisk    slots      // of sandboxes that go to the disk
	slot      sync.Mutex // serialises creates of sandboxes that share the host's network
	creating  sync.RWMutex

	ctx    context.Context // ends when the host stops
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

var _ lifecycle.Backend = (*Host)(nil)

// Start continues every sandbox of the store and of the engine in its present state, and returns a
// host that serves. ctx bounds the start only. The host closes its Boxes, also when the start
// fails.
func Start(ctx context.Context, options Options) (*Host, error) {
	h := &Host{options: options, registry: newRegistry(), ended: lifecycle.NewEnded[*actor](cmp.Or(options.EndedBudget, endedBudget)), quota: lifecycle.Quota{Total: options.MaxSandboxes}, snapshots: newSnapshots(), toDisk: slots{free: 1, held: map[string]int{}}}
	if h.options.Observer == nil {
		h.options.Observer = noObserver{}
	}
	h.since = h.options.Clock()
	h.notifier.feeds = make(map[*feed]struct{})
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if err := h.takeUp(ctx); err != nil {
		h.Close()
		return nil, err
	}
	h.tasks.Add(6)
	go h.watchMemory()
	go h.expireSnapshots()
	go h.digestSnapshots()
	go h.watch()
	go h.watchSidecars()
	go h.sweepPeriodically()
	return h, nil
}

// takeUp goes on with every sandbox and snapshot of the store and of the engine.
func (h *Host) takeUp(ctx context.Context) error {
	if err := h.loadSnapshots(ctx); err != nil {
		return err
	}
	if err := h.recover(ctx); err != nil {
		return err
	}
	return h.recoverSnapshots(ctx)
}

// Close stops working on sandboxes. They continue to run; the next Start continues their work.
func (h *Host) Close() {
	h.creating.Lock()
	h.cancel()
	h.creating.Unlock()
	h.options.Boxes.Close()
	h.tasks.Wait()
}

// Ready returns an error of KindUnavailable when the engine does not answer, or the store cannot be
// written to.
func (h *Host) Ready(ctx context.Context) error {
	if err := h.options.Boxes.Ready(ctx); err != nil {
		return notReady("the container engine", err)
	}
	if err := h.options.Store.CheckWritable(ctx); err != nil {
		return notReady("the store", err)
	}
	return nil
}

func notReady(what string, err error) error {
	return fmt.Errorf("%w: %w", lifecycle.Unavailable(what), err)
}
