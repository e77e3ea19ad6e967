// Package host is the lifecycle backend for one machine: sandboxes are containers of one engine, records are in one store.
//
// Every sandbox has an actor: one goroutine that owns its record, changes it and sees to it that reality follows. What an actor
// does next depends on the record alone, so a restarted service goes on where the killed one stopped.
package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Store keeps records, and the events that tell how they came to be what they are. Insert, Save and Forget return when the record and
// its events would survive a power failure, and write either both or neither.
type Store interface {
	Load(ctx context.Context) ([]lifecycle.Record, error)
	Insert(ctx context.Context, record lifecycle.Record, key *lifecycle.IdempotencyKey, events ...lifecycle.Event) error
	Save(ctx context.Context, record lifecycle.Record, events ...lifecycle.Event) error
	Forget(ctx context.Context, id string, events ...lifecycle.Event) error

	// Events returns what matches, and the bounds of what is kept. TrimEvents forgets what is older than notBefore or in excess of keep.
	// The store may forget the oldest ones at any time.
	Events(ctx context.Context, query lifecycle.EventQuery) (lifecycle.EventPage, error)
	TrimEvents(ctx context.Context, keep int, notBefore time.Time) error

	// SaveLog keeps the end of an ended sandbox's log until its record is forgotten.
	SaveLog(ctx context.Context, id string, log []byte) error
	Log(ctx context.Context, id string) (log []byte, kept bool, err error)

	FindKey(ctx context.Context, owner, key string, notBefore time.Time) (lifecycle.IdempotencyKey, bool, error)
	PurgeKeys(ctx context.Context, notBefore time.Time) error
}

// Options configures a Host.
type Options struct {
	Engine engine.Engine
	Store  Store
	Logger zerolog.Logger
	Clock  func() time.Time
	// Observer measures; nil means that nobody does.
	Observer Observer

	// Instance marks this service's containers, so that two services on one engine leave each other's alone.
	Instance string
	// ExecdImage is the image whose folder lifecycle.DaemonPath holds the daemon that every sandbox gets.
	ExecdImage string
	// Security is what the processes of a sandbox may do. PIDsLimit bounds their number; 0 means no limit.
	Security  engine.Security
	PIDsLimit int64
	// AllowUnenforcedLimits lets the host start although a limit was seen to have no effect.
	AllowUnenforcedLimits bool
	// EgressImage is the image of the egress sidecar that every sandbox gets that has a network of its own; empty means none.
	// EgressUpstream are the name servers that it asks, and Guards is how it is spoken to.
	EgressImage    string
	EgressUpstream string
	Guards         Guards
	// HostNetwork makes sandboxes share the network of the engine's host, which must be this machine; then there is one at a time.
	HostNetwork bool
	// PublishIP is the host's address that sandboxes' daemons are published on; empty means all of them.
	PublishIP string
	// EngineHost is where the service itself reaches published ports: a name or address.
	EngineHost string
	// EndpointHost is the host in endpoints; empty means the one that the client reached the service on.
	EndpointHost string
	// NoHostVolumes refuses every volume from the host.
	NoHostVolumes bool
	// AllowedHostPaths are the folders of the host that volumes may come from; empty means any, for administrators.
	AllowedHostPaths []string
	// OwnPaths are the files and folders of the service itself, absolute and clean, which no volume may show.
	OwnPaths []string
	// PinFolder is a folder of the service's own in which host paths are pinned while a container with them is started, so that no other
	// process can exchange them after they were checked. Empty means that the engine does not see what this process mounts.
	PinFolder string
	// TerminatedRetention and FailedPendingRetention are for how long the record of an ended sandbox can be read.
	TerminatedRetention    time.Duration
	FailedPendingRetention time.Duration
}

const (
	// readyTimeout is how long a started container has until its execd answers.
	readyTimeout = 30 * time.Second
	// stopGrace is how long an entrypoint has to end after SIGTERM.
	stopGrace = 2 * time.Second
	// settleTimeout is how long pause and resume wait for the engine before they answer.
	settleTimeout = time.Second
	// endpointTimeout is how long a request for an endpoint waits for a Pending sandbox.
	endpointTimeout = 30 * time.Second
	// sweepInterval is how often containers are compared with records.
	sweepInterval = time.Minute
	// concurrentStarts bounds how many containers are created and started at once: an engine that is asked for more answers later, not faster.
	concurrentStarts = 16
	// concurrentLooks bounds how many containers are inspected at once: when the engine comes back, every sandbox wants to know.
	concurrentLooks = 16
	// progressInterval is how often progress of one kind becomes an event, which costs a durable write; the status shows every step.
	progressInterval = 5 * time.Second
	// retryUntold is how often a change that could not be made durable is tried again.
	retryUntold = time.Second
	// keptEvents and keptEventsFor bound how many events are kept, and for how long. What is in excess goes with the next sweep.
	keptEvents    = 100_000
	keptEventsFor = 7 * 24 * time.Hour
)

// Host implements lifecycle.Backend.
type Host struct {
	Options
	info   engine.Info
	since  time.Time // when the host was started
	prober *prober
	starts chan struct{}
	looks  chan struct{} // bounds the inspections that are under way

	hostPaths lifecycle.HostPaths
	pins      bool // host paths are pinned in PinFolder

	registry registry
	bulletin bulletin
	keys     keyTurns
	slot     sync.Mutex // serialises creates while there is one sandbox at a time
	creating sync.RWMutex

	volumeMu sync.Mutex
	volume   string // the volume that holds execd, once it is known to be filled
	imageID  string // of the image that it was filled from

	ctx    context.Context // ends when the host stops
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

var _ lifecycle.Backend = (*Host)(nil)

// Start proves that the engine answers and enforces limits, makes execd available, takes up every sandbox of the store and of the engine where it
// stands, and returns a host that serves. ctx bounds the start only.
func Start(ctx context.Context, options Options) (*Host, error) {
	h := &Host{Options: options, prober: newProber(), starts: make(chan struct{}, concurrentStarts), looks: make(chan struct{}, concurrentLooks)}
	if h.Observer == nil {
		h.Observer = blind{}
	}
	h.since = h.Clock()
	h.registry.actors = make(map[string]*actor)
	h.registry.tagged = make(map[tag]map[*actor]struct{})
	h.bulletin.feeds = make(map[*feed]struct{})
	h.ctx, h.cancel = context.WithCancel(context.Background())
	var err error
	if h.info, err = h.Engine.Info(ctx); err != nil {
		return nil, fmt.Errorf("ask the container engine: %w", err)
	}
	h.hostPaths = hostPathRules(options, h.info)
	if h.PinFolder != "" {
		if h.PinFolder, err = preparePins(h.PinFolder); err != nil {
			h.Logger.Warn().Err(err).Msg("host paths cannot be pinned: whoever can write to a folder above one could exchange it while a sandbox is started")
		} else {
			h.pins = true
		}
	}
	h.Logger.Info().Str("engine", h.info.Name).Str("version", h.info.Version).Str("cgroup", h.info.CgroupVersion).
		Int("cpus", h.info.CPUs).Int64("memory_bytes", h.info.MemoryBytes).Msg("container engine answers")
	if _, err := h.daemonVolume(ctx); err != nil {
		return nil, fmt.Errorf("make execd available from runtime.execd_image %q: %w", h.ExecdImage, err)
	}
	if h.EgressImage != "" && !h.HostNetwork {
		if _, err := h.Engine.EnsureImage(ctx, h.EgressImage, nil, nil); err != nil {
			return nil, fmt.Errorf("make egress.image %q available: %w", h.EgressImage, err)
		}
	}
	if err := h.proveLimits(ctx); err != nil {
		return nil, err
	}
	if err := h.recover(ctx); err != nil {
		h.Close()
		return nil, err
	}
	h.tasks.Add(3)
	go h.watch()
	go h.watchGuards()
	go h.sweepPeriodically()
	return h, nil
}

// Close stops working on sandboxes. They go on running; the next Start takes them up.
func (h *Host) Close() {
	h.creating.Lock()
	h.cancel()
	h.creating.Unlock()
	h.tasks.Wait()
	h.prober.close()
}

// Ready returns an error of KindUnavailable when the engine or the store does not answer.
func (h *Host) Ready(ctx context.Context) error {
	if _, err := h.Engine.Info(ctx); err != nil {
		return notReady("the container engine", err)
	}
	// A change that changes nothing: it shows that the store can still be written to.
	if err := h.Store.PurgeKeys(ctx, time.Unix(0, 0)); err != nil {
		return notReady("the store", err)
	}
	return nil
}

func notReady(what string, err error) error {
	unavailable := &lifecycle.Error{Kind: lifecycle.KindUnavailable, Message: what + " does not answer", RetryAfter: 1}
	return fmt.Errorf("%w: %w", unavailable, err)
}

// daemonVolume returns the name of the volume that holds execd, and fills it first when that has not been done.
func (h *Host) daemonVolume(ctx context.Context) (string, error) {
	h.volumeMu.Lock()
	defer h.volumeMu.Unlock()
	if h.volume != "" {
		return h.volume, nil
	}
	imageID, err := h.Engine.EnsureImage(ctx, h.ExecdImage, nil, nil)
	if err != nil {
		return "", err
	}
	name := lifecycle.DaemonVolumePrefix + shortDigest(imageID)
	// Another service on the same engine may be filling the same volume at this moment; its containers are not ours to remove.
	labels := map[string]string{lifecycle.LabelPrefix + "execd-image": imageID, lifecycle.LabelPrefix + "filled-by": h.Instance}
	if err := h.Engine.EnsureVolume(ctx, name, imageID, lifecycle.DaemonPath, labels); err != nil {
		return "", err
	}
	h.volume, h.imageID = name, imageID
	return name, nil
}

// distrustVolume makes the next start fill execd's volume again: somebody may have removed it.
func (h *Host) distrustVolume() {
	h.volumeMu.Lock()
	defer h.volumeMu.Unlock()
	h.volume = ""
}
