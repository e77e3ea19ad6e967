// Package oci is an [engine.Engine] on an OCI runtime's command line: crun, runc or runsc, without a daemon of another project.
//
// Images, network, control groups and the runtime's configuration are each a package below this one. This package joins them: it keeps
// the record of every container, decides in which order what is made at the kernel, and takes everything back. One process per data
// folder, the keeper, starts the runtimes and outlives the service; see docs/architecture.md.
//
// Everything that is made at the kernel has a record on the disk before it exists, so a service that was killed at any point finds at
// its next start what it has left: see [Open].
package oci

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/cgroup"
	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
	"sandbox.internal/runtime/oci/users"
)

// Defaults of [Options].
const (
	defaultBridge     = "sandbox0"
	defaultReady      = 4
	defaultQuarantine = 10 * time.Second
	defaultGrace      = 10 * time.Minute
)

// Options say where an Engine keeps what it makes, and what it runs containers with.
type Options struct {
	// Folder holds images, volumes and containers: an absolute path, made when it is missing, mode 0700. One Engine at a time uses it.
	Folder string
	// RunFolder holds what is of no use after a reboot: the keeper's socket and the states of the runtimes. Absolute and, with the names
	// in it, short enough for a socket, so at most 90 bytes. Empty means /run/sandbox-local/ and 8 digits of Folder's digest.
	RunFolder string
	// Keeper is the path of the program sandbox-keeper.
	Keeper string
	// Runtime is the OCI runtime of containers that name none: crun, runc, runsc or an absolute path. Empty means the first of crun, runc
	// and runsc that is installed.
	Runtime string
	// Runtimes are more of them that must be there when the Engine opens. A container can name any other, too.
	Runtimes []string
	// Bridge is the name of the network interface that containers are connected to, at most 15 bytes; empty means sandbox0. Subnet is
	// the range of their addresses, IPv4; the zero value means a private range that no route of the host overlaps.
	Bridge string
	Subnet netip.Prefix
	// Ready is how many networks are made ahead. 0 means 4, negative means none.
	Ready int
	// Quarantine is how long an address is not given again; 0 means 10 s.
	Quarantine time.Duration
	Images     ImageOptions
	// DiskBytes bounds what a container writes to its root file system, from [disk.MinBytes] to [disk.MaxBytes]; 0 means no bound but the
	// room that there is.
	DiskBytes int64
	// UserNamespaces says which containers get a user namespace. Empty means [UserNamespacesAuto].
	UserNamespaces UserNamespaces
	Logger         zerolog.Logger
}

// ImageOptions say how images are got and kept.
type ImageOptions struct {
	MaxBytes int64               // bound of what images take on the disk; 0 means none
	Grace    time.Duration       // how long an image without a container stays before it can be removed; 0 means 10 minutes
	Mirrors  map[string][]string // of a registry's host: the hosts that are asked first
	Insecure []string            // registries that are asked without TLS; those on the host itself always are
	Internal []string            // registries that may have internal addresses, whoever asks for an image
	Keep     []string            // images that are never removed
}

// Engine runs containers through an OCI runtime. Use [Open].
type Engine struct {
	options        Options
	log            zerolog.Logger
	layout         layout
	bootID         string
	lock           *os.File
	images         *images.Store
	network        *network.Network
	keeper         *keeper.Client
	cgroups        *cgroup.Tree
	defaultRuntime bundle.Runtime // of containers that name none
	changes        *changes

	users   *users.Pool // nil when no container gets a user namespace
	noUsers string      // why it is nil
	// hostUsers says why the containers of a runtime, by its path, get none. It is not changed once the Engine is open.
	hostUsers map[string]string

	formatMu sync.Mutex
	format   *disk.Format // of what a container writes; nil when that has no bound, and until there was room to try it

	runtimesMu sync.Mutex
	runtimes   map[string]bundle.Runtime // by the name that they were asked for with

	// mu guards the fields below and the state of every container. Nothing blocks while it is held.
	mu       sync.Mutex
	byID     map[string]*container
	byName   map[string]*container // also while one is being created, then without an entry in byID
	watchers map[*watcher]struct{}
	// networkReady is set once the network can be asked to detach; before, ends of containers are noted only.
	networkReady bool

	targetsMu sync.Mutex
	targets   map[string]bool // the layers that mountTargets has made

	// folderTurn holds one token: making folders is rare.
	folderTurn chan struct{}
	// volumeTurn holds one token: filling volumes is rare.
	volumeTurn chan struct{}

	opened     bool            // Open has succeeded
	closing    context.Context // ends with Close
	close      context.CancelFunc
	background sync.WaitGroup
	trash      *trash
}

var _ engine.Engine = (*Engine)(nil)

// Open makes an Engine on the folder, or takes up what another one left there.
//
// It proves first that this process may do what is needed, and names what is missing. Containers that run go on running. Starts and
// removals that were cut off are undone and finished. What a container had made and has no record is removed.
func Open(ctx context.Context, options Options) (_ *Engine, err error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	e := &Engine{
		options: options, log: options.Logger, layout: newLayout(options),
		runtimes: map[string]bundle.Runtime{},
		byID:     map[string]*container{}, byName: map[string]*container{}, hostUsers: map[string]string{},
		watchers:   map[*watcher]struct{}{},
		folderTurn: make(chan struct{}, 1),
		volumeTurn: make(chan struct{}, 1),
		targets:    map[string]bool{},
	}
	e.closing, e.close = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if err := e.prove(); err != nil {
		return nil, err
	}
	if e.lock, err = lockFolder(e.layout.data); err != nil {
		return nil, err
	}
	if e.bootID, err = bootID(); err != nil {
		return nil, err
	}
	e.changes = newChanges(e.log)
	e.trash = newTrash(e.layout.trash(), e.log)
	if err := e.proveDisk(ctx); err != nil {
		return nil, err
	}
	if err := e.openParts(ctx); err != nil {
		return nil, err
	}
	e.opened = true
	return e, nil
}

// complete checks the options and fills in the defaults.
func (o *Options) complete() error {
	for name, path := range map[string]string{"folder": o.Folder, "keeper": o.Keeper} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("%s: %q is not an absolute, clean path", name, path)
		}
	}
	if o.RunFolder == "" {
		o.RunFolder = filepath.Join(runFolders, folderKey(o.Folder))
	}
	if !filepath.IsAbs(o.RunFolder) || filepath.Clean(o.RunFolder) != o.RunFolder || len(o.RunFolder) > 90 {
		return fmt.Errorf("run folder: %q is not an absolute, clean path of at most 90 bytes", o.RunFolder)
	}
	if o.Bridge == "" {
		o.Bridge = defaultBridge
	}
	if o.Ready == 0 {
		o.Ready = defaultReady
	}
	if o.Quarantine == 0 {
		o.Quarantine = defaultQuarantine
	}
	if o.UserNamespaces == "" {
		o.UserNamespaces = UserNamespacesAuto
	}
	if o.Images.Grace == 0 {
		o.Images.Grace = defaultGrace
	}
	return nil
}

// openParts opens what the engine is made of, in the order in which recovery needs it: the records, the control groups that running
// containers are in, the keeper, which reports what ended meanwhile, and the network, which keeps what the running ones have.
func (e *Engine) openParts(ctx context.Context) error {
	var err error
	if err = e.loadRecords(); err != nil {
		return err
	}
	if err = e.openUsers(); err != nil {
		return err
	}
	e.raiseHostBounds()
	if e.cgroups, err = cgroup.Open(cgroupName(e.layout.data)); err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	e.images, err = images.Open(images.Options{
		Folder: e.layout.images(), MaxBytes: e.options.Images.MaxBytes, Grace: e.options.Images.Grace,
		Mirrors: e.options.Images.Mirrors, Insecure: e.options.Images.Insecure,
		Internal: e.options.Images.Internal,
		Never: func(address netip.AddrPort, listed bool) bool {
			return e.network != nil && e.network.Sandboxed(address, listed)
		},
		InUse: e.imagesInUse, Keep: e.options.Images.Keep, Logger: e.log,
	})
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := e.openKeeper(ctx); err != nil {
		return err
	}
	if e.users != nil {
		e.users.Prepare()
	}
	inUse, err := e.adoptRunning(ctx)
	if err != nil {
		return err
	}
	e.network, err = network.Open(ctx, network.Options{
		Bridge: e.options.Bridge, Subnet: e.options.Subnet, Folder: filepath.Join(e.layout.data, "network"), Shared: runFolders,
		Ready: max(0, e.options.Ready), Quarantine: e.options.Quarantine, Logger: e.log,
	}, inUse)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if problem := e.network.Problem(); problem != "" {
		e.log.Warn().Msg("network: " + problem)
	}
	if err := e.recover(ctx); err != nil {
		return err
	}
	if err := e.proveUsers(ctx); err != nil {
		return err
	}
	e.inBackground(e.boundNetlink)
	return nil
}

// inBackground calls a function behind the request. Close waits for it; when the Engine is being closed, so does the request.
func (e *Engine) inBackground(call func()) {
	e.mu.Lock()
	closing := e.closing.Err() != nil
	if !closing {
		e.background.Go(call)
	}
	e.mu.Unlock()
	if closing {
		call()
	}
}

// Problem says why containers do not reach the network, and what to type; "" when nothing is known to be wrong.
func (e *Engine) Problem() string { return e.network.Problem() }

// Close implements [engine.Engine]. Containers and the keeper go on; without a container, the keeper ends and nothing is left at the kernel.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.close() // nothing begins in the background any more
	unused := e.opened && len(e.byName) == 0
	e.mu.Unlock()
	e.background.Wait()
	var errs []error
	if e.trash != nil {
		e.trash.stop()
	}
	if e.network != nil {
		e.network.Close()
	}
	if e.keeper != nil {
		errs = append(errs, e.keeper.Close())
	}
	if e.users != nil {
		e.users.Close()
	}
	errs = append(errs, e.closeDisks())
	if unused {
		errs = append(errs, e.dismantle())
	}
	if e.images != nil {
		errs = append(errs, e.images.Close())
	}
	if e.changes != nil {
		errs = append(errs, e.changes.stop())
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
	}
	return errors.Join(errs...)
}

// dismantle ends the keeper, which has nothing to do, and removes what only it needs.
func (e *Engine) dismantle() error {
	// The group has the keeper, and what is left of runtimes that it has started.
	if err := e.cgroups.Group(keeperGroup).Remove(); err != nil {
		return fmt.Errorf("end the keeper: %w", err)
	}
	return errors.Join(e.cgroups.Close(), e.layout.removeRun(), users.ReleaseBlock(claims, e.layout.data))
}
