// Package oci is an [engine.Engine] on an OCI runtime's command line: crun, runc or runsc, without
// a daemon of another project.
//
// Images, network, control groups and the runtime's configuration are each a package below this
// one. This package joins them: it keeps the record of every container, decides in which order what
// is made at the kernel, and takes everything back. A single process per data directory, the
// keeper, starts the runtimes and outlives the service; see docs/architecture.md.
//
// Everything that is made at the kernel has a record on the disk before it exists, so a service
// that was killed at any point finds at its next start what it has left: see [Open].
package oci

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/limits"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/cdi"
	"sandbox.internal/runtime/oci/cgroup"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containerlog"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/sourcemounts"
	"sandbox.internal/runtime/oci/internal/trash"
	"sandbox.internal/runtime/oci/internal/volumes"
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
	// Directory holds images, volumes and containers: an absolute path, made when it is missing,
	// mode 0700. It is used by one Engine at a time.
	Directory string
	// RunDirectory holds what is of no use after a reboot: the keeper's socket and the states of
	// the runtimes. Absolute and, with the names in it, short enough for a socket, so at most 90
	// bytes. Empty means /run/sandbox-local/ and 8 digits of Directory's digest.
	RunDirectory string
	// Keeper is the path of the program sandbox-keeper.
	Keeper string
	// Runtime is the OCI runtime of containers that name none: crun, runc, runsc or an absolute
	// path. Empty means the first of crun, runc and runsc that is installed.
	Runtime string
	// Runtimes are more of them that must be there when the Engine opens. A container can name any
	// other, too.
	Runtimes []string
	// Bridge is the name of the network interface that containers are connected to, at most 15
	// bytes; empty means sandbox0. Subnet is the range of their addresses, IPv4; the zero value
	// means a private range that no route of the host overlaps.
	Bridge string
	Subnet netip.Prefix
	// Ready is how many networks are made ahead. 0 means 4, negative means none.
	Ready int
	// Quarantine is how long an address is not given again; 0 means 10 s.
	Quarantine time.Duration
	Images     ImageOptions
	// DiskBytes bounds what a container writes to its root file system, from [disk.MinBytes] to
	// [disk.MaxBytes]; 0 means no bound but the room that there is.
	DiskBytes int64
	// KeepFiles has the containers with [engine.ContainerSpec].KeepFiles outlive a reboot: their
	// writes reach the disk when they sync them, which costs a start a few syncs, and an end the
	// write-back of the rest. A container keeps what it was started with.
	KeepFiles bool
	// GPUKind is the kind of the GPUs that containers can have, "vendor/class" of CDI
	// specifications; empty means none. CDIDirectories has the specifications; empty means those of
	// the standard.
	GPUKind        string
	CDIDirectories []string
	// ShareProcessors lets every container run on all processors, whatever its limit is.
	ShareProcessors bool
	// Chain is how many snapshots a container lies on, one on the other, before its next snapshot
	// lies on one that has them all; 0 means 32.
	Chain int
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
	options    Options
	log        zerolog.Logger
	layout     layout.Layout
	lock       *os.File // of the data directory
	opened     bool     // Open has succeeded
	background *background.Group
	trash      *trash.Trash
	containers *containers.Registry
	logs       *containerlog.Logs
	images     *images.Store
	snapshots  *snapshots.Store
	volumes    *volumes.Store
	runtimes   *runtimes
	disks      *disks
	users      *userNamespaces
	cgroups    *cgroup.Tree
	keeper     *keeper.Client
	network    *network.Network
	processes  *processes
	launcher   *launcher
}

var _ engine.Engine = (*Engine)(nil)

// Open makes an Engine on the directory, or takes up what another one left there.
//
// It checks first that this process may do what is needed, and names what is missing. Containers
// that run go on running. Starts and removals that were cut off are undone and finished. The
// remains of containers that have no record are removed.
func Open(ctx context.Context, options Options) (_ *Engine, err error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	e := &Engine{
		options: options, log: options.Logger, layout: layout.Layout{Data: options.Directory, Run: options.RunDirectory}, background: background.New(),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if err := e.checkHost(); err != nil {
		return nil, err
	}
	if e.lock, err = e.layout.Lock(); err != nil {
		return nil, err
	}
	e.trash = trash.New(e.layout.Trash(), e.log)
	e.logs = containerlog.New(e.background.Closing(), e.log)
	e.disks = &disks{directory: e.layout.Data, bytes: options.DiskBytes, journaled: options.KeepFiles, trash: e.trash, log: e.log}
	if err := e.disks.checkHost(ctx); err != nil {
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
	for name, path := range map[string]string{"directory": o.Directory, "keeper": o.Keeper} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("%s: %q is not an absolute, clean path", name, path)
		}
	}
	if o.RunDirectory == "" {
		o.RunDirectory = filepath.Join(layout.RunDirectories, layout.Key(o.Directory))
	}
	if !filepath.IsAbs(o.RunDirectory) || filepath.Clean(o.RunDirectory) != o.RunDirectory || len(o.RunDirectory) > 90 {
		return fmt.Errorf("run directory: %q is not an absolute, clean path of at most 90 bytes", o.RunDirectory)
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
	if o.Chain == 0 {
		o.Chain, _ = strconv.Atoi(defaultChain)
	}
	if o.UserNamespaces == "" {
		o.UserNamespaces = UserNamespacesAuto
	}
	if len(o.CDIDirectories) == 0 {
		o.CDIDirectories = cdi.Directories
	}
	if o.Images.Grace == 0 {
		o.Images.Grace = defaultGrace
	}
	return nil
}

// openParts opens what the engine is made of, in the order in which recovery needs it: the records,
// the control groups that running containers are in, the keeper, which reports what ended
// meanwhile, and the network, which keeps what the running ones have.
func (e *Engine) openParts(ctx context.Context) (err error) {
	if e.containers, err = containers.Open(e.layout, e.trash, e.background, e.log); err != nil {
		return err
	}
	makers := namespaceMakers(func() *keeper.Client { return e.keeper })
	e.users, err = openUserNamespaces(e.options.UserNamespaces, e.layout.Data, makers, e.containers.All(), e.log)
	if err != nil {
		return err
	}
	raiseHostBounds(procSys, e.options.UserNamespaces, e.log)
	if e.cgroups, err = cgroup.Open(cgroupName(e.layout.Data)); err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	if e.snapshots, err = snapshots.Open(e.layout.Snapshots(), e.trash, e.containers.Bases, e.containers.Restoring, e.log); err != nil {
		return fmt.Errorf("snapshots: %w", err)
	}
	if err := e.openImages(); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	e.volumes = volumes.New(e.layout, e.trash, e.containers, e.images, e.log)
	e.processes = &processes{layout: e.layout, cgroups: e.cgroups, runtimes: e.runtimes, closing: e.background.Closing()}
	available := newProcessors(nil, e.log)
	if !e.options.ShareProcessors {
		available = newProcessors(e.cgroups.Processors(), e.log)
	}
	ends := &ends{
		log: e.log, background: e.background, containers: e.containers, cgroups: e.cgroups, disks: e.disks, processors: available,
	}
	if err := e.openKeeper(ctx, ends.exited); err != nil {
		return err
	}
	e.users.prepare()
	gpus, err := openGPUs(e.options.GPUKind, e.options.CDIDirectories, e.containers)
	if err != nil {
		return err
	}
	e.launcher = &launcher{
		log: e.log, layout: e.layout, background: e.background, containers: e.containers, ends: ends, processes: e.processes,
		runtimes: e.runtimes, cgroups: e.cgroups, keeper: e.keeper, volumes: e.volumes, disks: e.disks,
		sources: sourcemounts.New(e.layout, e.keeper, e.log),
		targets: &targets{directory: e.layout.Targets(), made: map[string]bool{}}, users: e.users, gpus: gpus, keepFiles: e.options.KeepFiles,
		processors: available, hostFiles: limits.NewFiles("/proc"),
	}
	if e.launcher.bootID, err = bootID(); err != nil {
		return err
	}
	recovery := recovery{e.launcher}
	inUse, err := recovery.adoptRunning(ctx)
	if err != nil {
		return err
	}
	if err := e.openNetwork(ctx, inUse, recovery.keptPorts()); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	e.launcher.network = e.network
	ends.network.Store(e.network)
	if err := recovery.run(ctx); err != nil {
		return err
	}
	e.snapshots.Free()
	err = e.users.checkHost(ctx, e.runtimes.all(), func(ctx context.Context, runtime bundle.Runtime) error {
		return e.launcher.testUserNamespace(ctx, e.options.Keeper, runtime)
	})
	if err != nil {
		return err
	}
	e.background.Run(e.boundNetlink)
	return nil
}

func (e *Engine) openImages() (err error) {
	e.images, err = images.Open(images.Options{
		Directory: e.layout.Images(), MaxBytes: e.options.Images.MaxBytes, Grace: e.options.Images.Grace,
		Mirrors: e.options.Images.Mirrors, Insecure: e.options.Images.Insecure,
		Internal: e.options.Images.Internal,
		Never: func(address netip.AddrPort, listed bool) bool {
			return e.network != nil && e.network.Sandboxed(address, listed)
		},
		InUse: e.imagesInUse, Keep: e.options.Images.Keep, Logger: e.log,
	})
	return err
}

// openKeeper connects to the keeper, and starts one if none runs.
func (e *Engine) openKeeper(ctx context.Context, exited func(id string, end keeper.End)) error {
	group, err := e.cgroups.Make(keeperGroup, engine.Resources{})
	if err != nil {
		return fmt.Errorf("control group of the keeper: %w", err)
	}
	e.keeper, err = keeper.Open(ctx, keeper.Options{
		Program: e.options.Keeper, Directory: e.layout.Run, CgroupDirectories: group.Directories(), Logger: e.log, Exited: exited,
	})
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return checkSameMount(e.layout)
}

func (e *Engine) openNetwork(ctx context.Context, inUse, kept []network.Attachment) (err error) {
	e.network, err = network.Open(ctx, network.Options{
		Bridge: e.options.Bridge, Subnet: e.options.Subnet, Directory: e.layout.Network(), Shared: layout.RunDirectories,
		Ready: max(0, e.options.Ready), Quarantine: e.options.Quarantine, Kept: kept, Logger: e.log,
	}, inUse)
	if err != nil {
		return err
	}
	if problem := e.network.Problem(); problem != "" {
		e.log.Warn().Msg("network: " + problem)
	}
	return nil
}

// cgroupName is the name of the control group that the containers of a data directory are in.
func cgroupName(data string) string { return "sandbox-" + layout.Key(data) }

// Problem says why containers do not reach the network, and what to type; "" when nothing is known
// to be wrong.
func (e *Engine) Problem() string { return e.network.Problem() }

// HostUsers says why the users of containers are the host's, when those of the default runtime are;
// "" when they are not.
func (e *Engine) HostUsers() string { return e.users.hostUsers(e.runtimes.standard) }

// GPUs returns the kind of the GPUs that containers can have, "" for none, and the names of those
// of the machine, free or not. The error, of a CDI specification that cannot be read, comes with
// the names of the others.
func (e *Engine) GPUs() (kind string, names []string, err error) { return e.launcher.gpus.list() }

// Close implements [engine.Engine]. Containers and the keeper go on; without a container, the
// keeper ends and nothing is left at the kernel.
func (e *Engine) Close() error {
	e.background.Close() // nothing begins in the background any more
	unused := e.opened && e.containers.Empty()
	var errs []error
	if e.trash != nil {
		e.trash.Stop()
	}
	if e.network != nil {
		e.network.Close()
	}
	if e.keeper != nil {
		errs = append(errs, e.keeper.Close())
	}
	if e.users != nil {
		e.users.close()
	}
	if e.containers != nil {
		errs = append(errs, e.disks.close(e.containers.All()))
	}
	if unused {
		errs = append(errs, e.dismantle())
	}
	if e.images != nil {
		errs = append(errs, e.images.Close())
	}
	if e.logs != nil {
		errs = append(errs, e.logs.Close())
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
	return errors.Join(
		e.cgroups.Close(), keeper.RemoveFiles(e.layout.Run), e.layout.RemoveRun(), users.ReleaseBlock(layout.Claims, e.layout.Data))
}
