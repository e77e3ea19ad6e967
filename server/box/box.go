// Package box makes what sandboxes consist of on one machine: a container of an engine, with an
// egress sidecar beside it where one is configured. It implements the Boxes of server/host, which
// decides when; this package does what is decided.
//
// Every operation can be repeated: after a service was killed in the middle of one, the next
// service calls it again with the same record, and it goes on from what the engine has.
package box

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/fair"
	"sandbox.internal/server/box/internal/daemon"
	"sandbox.internal/server/box/internal/hostpaths"
	"sandbox.internal/server/box/internal/images"
	"sandbox.internal/server/box/internal/proof"
	"sandbox.internal/server/box/internal/spares"
	"sandbox.internal/server/lifecycle"
)

// Sidecars asks egress sidecars. Errors that a client may see are of type *lifecycle.Error.
type Sidecars interface {
	// Environment returns the variables that start a sidecar with the policy; whole is false when
	// the policy does not fit and must be set afterwards with Change. Until then the sidecar lets
	// nothing pass.
	Environment(at lifecycle.Sidecar, policy *lifecycle.NetworkPolicy) (env map[string]string, whole bool, err error)
	// Health returns how often the egress daemon was started again. An error means that the
	// firewall is not known to be installed.
	Health(ctx context.Context, at lifecycle.Sidecar) (restarts int, err error)
	Change(ctx context.Context, at lifecycle.Sidecar, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error)
}

// Options configures a Containers.
type Options struct {
	Engine engine.Engine
	// Snapshots are the engine's; nil when it has none.
	Snapshots engine.Snapshots
	// Traffic reports packets to the engine's containers; nil when the engine cannot.
	Traffic engine.Traffic
	// Ports keeps published ports while containers are stopped; nil when the engine does not.
	Ports  engine.Ports
	Logger zerolog.Logger
	Clock  func() time.Time

	// Instance marks this service's containers, so that two services on one engine leave each
	// other's alone.
	Instance string
	// ImageGrants keeps which keys may have images that were pulled with credentials; nil keeps it
	// in memory alone.
	ImageGrants images.Grants
	// ExecdImage is the image whose directory lifecycle.DaemonPath holds the daemon that every
	// sandbox gets.
	ExecdImage string
	// Security is what the processes of a sandbox may do. PIDsLimit bounds their number; 0 means no
	// limit.
	Security  engine.Security
	PIDsLimit int64
	// RuntimeClasses are those that a spec may name; their handlers are the engine's runtimes.
	RuntimeClasses lifecycle.RuntimeClasses
	// Key returns the name of a setting of the section [sandbox], such as pids_limit, for messages,
	// as the operator wrote it; nil stands for sandbox.NAME.
	Key func(name string) string
	// AllowUnenforcedLimits lets Open succeed although a limit was seen to have no effect.
	AllowUnenforcedLimits bool
	// EgressImage is the image of the egress sidecar that every sandbox gets that has a network of
	// its own; empty means none. EgressUpstream are the name servers that it asks.
	EgressImage    string
	EgressUpstream string
	Sidecars       Sidecars
	// SpareNetworks is how many networks of sandboxes are made ahead; see spares.go.
	SpareNetworks int
	// HostNetwork makes sandboxes share the network of the engine's host, which must be this
	// machine.
	HostNetwork bool
	// PublishIP is the host's address that sandboxes' daemons are published on; empty means all of
	// them.
	PublishIP string
	// EngineHost is where the service itself reaches published ports: a name or address.
	EngineHost string
	// NoHostVolumes refuses every volume from the host.
	NoHostVolumes bool
	// AllowedHostPaths are the directories of the host that volumes may come from; empty means any,
	// for administrators.
	AllowedHostPaths []string
	// OwnPaths are the files and directories of the service itself, absolute and clean, which no
	// volume may show.
	OwnPaths []string
	// PinDirectory is a directory of the service's own in which host paths are pinned while a
	// container with them is started, so that no other process can exchange them after they were
	// checked. Empty means that the engine does not see what this process mounts.
	PinDirectory string
}

const (
	// readyTimeout is how long a started container has until its execd answers.
	readyTimeout = 30 * time.Second
	// stopGrace is how long an entrypoint has to end after SIGTERM; then the sandbox's first
	// process kills it.
	stopGrace = 2 * time.Second
	// daemonStop is how long that process then lets execd take, beyond the time that streams stay
	// open, and one second more: the engine, which kills everything at once, is to be the last
	// resort.
	daemonStop = 6 * time.Second
	// concurrentStarts bounds how many containers are created and started at once: an engine that
	// is asked for more answers later, not faster. API keys take turns, and a quarter is for those
	// that have none under way.
	concurrentStarts = 16
	reservedStarts   = concurrentStarts / 4
	// concurrentInspections bounds the inspections that are under way at once: when the engine
	// comes back, every sandbox is inspected.
	concurrentInspections = 16
)

// Containers makes boxes of containers.
type Containers struct {
	options     Options
	info        engine.Info
	daemons     *daemon.Clients
	spares      *spares.Spares
	images      *images.Access
	starts      *fair.Queue
	inspections chan struct{}

	hostPaths hostpaths.Paths

	filling  chan struct{} // one element while the volume that holds execd is looked for and filled
	volumeMu sync.Mutex
	volume   string // that volume, once it is known to be filled
	imageID  string // of the image that it was filled from

	// ctx ends with Close. The creation and the start of a container are broken off by nothing
	// else.
	ctx    context.Context
	cancel context.CancelFunc
}

// Open proves that the engine answers and enforces limits, and makes execd and the egress sidecar's
// image available. ctx bounds the opening only.
func Open(ctx context.Context, options Options) (*Containers, error) {
	c := &Containers{
		options: options, daemons: daemon.New(),
		starts: fair.New(concurrentStarts, reservedStarts), inspections: make(chan struct{}, concurrentInspections),
		filling: make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.prepare(ctx); err != nil {
		c.cancel()
		c.daemons.Close()
		return nil, err
	}
	if c.options.HostNetwork {
		c.options.SpareNetworks = 0
	}
	c.spares = spares.New(spares.Networks{
		Size: c.options.SpareNetworks, Clock: c.options.Clock, Log: c.options.Logger, Record: c.spareRecord, GiveUp: c.cancel,
		Start:  func(record lifecycle.Record) error { return c.startNetwork(c.ctx, record) },
		Remove: func(record lifecycle.Record) error { return c.removeNetwork(c.ctx, record) },
	})
	return c, nil
}

func (c *Containers) prepare(ctx context.Context) error {
	var err error
	if c.info, err = c.options.Engine.Info(ctx); err != nil {
		return fmt.Errorf("ask the container engine: %w", err)
	}
	if c.images, err = images.Open(ctx, c.options.Engine, c.options.ImageGrants, c.options.Logger); err != nil {
		return err
	}
	rules := lifecycle.HostPaths{None: c.options.NoHostVolumes, Allowed: c.options.AllowedHostPaths}
	c.hostPaths = hostpaths.New(rules, slices.Concat(c.info.OwnPaths, c.options.OwnPaths), c.options.PinDirectory, c.options.Logger)
	c.options.Logger.Info().Str("engine", c.info.Name).Str("version", c.info.Version).Str("cgroup", c.info.CgroupVersion).
		Int("cpus", c.info.CPUs).Int64("memory_bytes", c.info.MemoryBytes).Msg("container engine answers")
	if c.info.Connected && !c.options.HostNetwork && c.options.EgressImage == "" {
		c.options.Logger.Warn().Msg(`sandboxes can connect to one another's ports: the engine's default network permits it; ` +
			`set egress.image, or "icc": false in the engine's daemon.json`)
	}
	if _, err := c.daemonVolume(ctx); err != nil {
		return fmt.Errorf("make execd available from runtime.execd_image %q: %w", c.options.ExecdImage, err)
	}
	if c.options.EgressImage != "" && !c.options.HostNetwork {
		if _, err := c.images.Own(ctx, c.options.EgressImage); err != nil {
			return fmt.Errorf("make egress.image %q available: %w", c.options.EgressImage, err)
		}
	}
	o := c.options
	if o.Key == nil {
		o.Key = func(name string) string { return "sandbox." + name }
	}
	tried := proof.Proof{
		Engine: o.Engine, Info: c.info, Log: o.Logger, Security: o.Security, Instance: o.Instance, Owned: c.ours(), Key: o.Key,
		AllowUnenforced: o.AllowUnenforcedLimits, PidsLimit: o.PIDsLimit, ExecdImage: o.ExecdImage, ImageID: c.daemonImage(),
	}
	if err := tried.Limits(ctx); err != nil {
		return err
	}
	return tried.Classes(ctx, o.RuntimeClasses)
}

// Info returns what the engine said about itself when it was opened.
func (c *Containers) Info() engine.Info { return c.info }

// Images returns what manages the images of the engine, where store is the engine's own. Pulls go
// through the engine, which may be measured.
func (c *Containers) Images(ctx context.Context, store engine.ImageStore) lifecycle.ImageStore {
	return images.NewStore(ctx, c.images, store)
}

// Close removes the networks that no sandbox has taken, and breaks off what is under way.
// Containers of sandboxes go on running.
func (c *Containers) Close() {
	c.spares.Close()
	c.cancel()
	c.daemons.Close()
}

// Ready returns an error when the engine does not answer.
func (c *Containers) Ready(ctx context.Context) error {
	_, err := c.options.Engine.Info(ctx)
	return err
}

// Admit refuses what no box can hold, and what the caller may not have. It returns an error of type
// *lifecycle.Error.
func (c *Containers) Admit(ctx context.Context, spec lifecycle.Spec, options lifecycle.CreateOptions) error {
	if spec.NetworkPolicy != nil && (c.options.HostNetwork || c.options.EgressImage == "") {
		return lifecycle.Invalidf("networkPolicy: a network policy requires bridge mode and egress image configuration (sandbox.network_mode and egress.image)")
	}
	if len(spec.Requests) > 0 {
		return lifecycle.Invalidf("resourceRequests: one machine reserves nothing for a sandbox; only resourceLimits count")
	}
	class, err := c.options.RuntimeClasses.Find(spec.RuntimeClass)
	if err != nil {
		return err
	}
	if err := class.CheckPolicy(spec.NetworkPolicy); err != nil {
		return err
	}
	return c.checkVolumes(ctx, spec.Volumes, options.Owner, options.Role)
}

// Assign gives a new record the identity of its box, and what the box is made with. Where a network
// has been made ahead it gives the sandbox the id that the network was made with, too.
func (c *Containers) Assign(record *lifecycle.Record) {
	class, _ := c.options.RuntimeClasses.Find(record.Spec.RuntimeClass) // Admit has found it
	record.Box = record.Sandbox.ID                                      // operators find the container by the id of its sandbox
	record.HostNetwork = c.options.HostNetwork
	record.Runtime = class.Handler
	record.StopTime = stopGrace + daemonStop + record.Spec.DaemonGrace()
	withSidecar := !c.options.HostNetwork && c.options.EgressImage != "" && class.EgressSidecar
	// A spare is a sidecar where there are sidecars at all. A runtime with a network stack of its
	// own is not tried on another's network.
	if usable := withSidecar || c.options.EgressImage == "" && class.Handler == ""; usable && c.spares.Take(record) {
		return
	}
	if withSidecar {
		record.Sidecar = c.newSidecar()
	}
}

// spareRecord returns the record of a sandbox that does not exist yet, for the network that is made
// ahead of it. Its policy lets nothing pass.
func (c *Containers) spareRecord() lifecycle.Record {
	id := uuid.NewString()
	record := lifecycle.Record{Sandbox: lifecycle.Sandbox{ID: id}, Box: id, SpareNetwork: true}
	if c.options.EgressImage != "" {
		record.Sidecar = c.newSidecar()
		record.Spec.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	}
	return record
}

func (c *Containers) newSidecar() *lifecycle.Sidecar {
	return &lifecycle.Sidecar{Image: c.options.EgressImage, Upstream: c.options.EgressUpstream, Token: lifecycle.NewToken()}
}

// Host returns the name or address at which the service reaches the ports of the record's
// [lifecycle.Place].
func (c *Containers) Host(record *lifecycle.Record) string {
	if record.HostNetwork {
		return loopback
	}
	return c.options.EngineHost
}

// SpareNetworkCounts returns how many networks that were made ahead are free, how many sandboxes
// have taken one, and how many found none.
func (c *Containers) SpareNetworkCounts() (free, taken, missed int) { return c.spares.Count() }

// daemonVolume returns the name of the volume that holds execd, and fills it first when that has
// not been done.
func (c *Containers) daemonVolume(ctx context.Context) (string, error) {
	select { // the image may have to be pulled
	case c.filling <- struct{}{}:
		defer func() { <-c.filling }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	c.volumeMu.Lock()
	volume := c.volume
	c.volumeMu.Unlock()
	if volume != "" {
		return volume, nil
	}
	imageID, err := c.images.Own(ctx, c.options.ExecdImage)
	if err != nil {
		return "", err
	}
	name := lifecycle.DaemonVolumePrefix + shortDigest(imageID)
	// Another service on the same engine may be filling the same volume at this moment; its
	// containers are not ours to remove.
	labels := map[string]string{lifecycle.LabelPrefix + "execd-image": imageID, lifecycle.LabelPrefix + "filled-by": c.options.Instance}
	if err := c.options.Engine.EnsureDirectory(ctx, name, imageID, lifecycle.DaemonPath, labels); err != nil {
		return "", err
	}
	c.volumeMu.Lock()
	c.volume, c.imageID = name, imageID
	c.volumeMu.Unlock()
	return name, nil
}

// daemonImage returns the id of the image that execd's volume was filled from.
func (c *Containers) daemonImage() string {
	c.volumeMu.Lock()
	defer c.volumeMu.Unlock()
	return c.imageID
}

// checkVolumeAgain makes the next launch fill execd's volume again: another process may have
// removed it.
func (c *Containers) checkVolumeAgain() {
	c.volumeMu.Lock()
	defer c.volumeMu.Unlock()
	c.volume = ""
}

func shortDigest(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}
