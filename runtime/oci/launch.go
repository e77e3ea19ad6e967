package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/limits"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/cgroup"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/sourcemounts"
	"sandbox.internal/runtime/oci/internal/volumes"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
	"sandbox.internal/runtime/oci/overlay"
	"sandbox.internal/runtime/oci/users"
)

const (
	// exitFDVariable is an environment variable of every container, with the number of an open
	// file. A first process that writes its exit status to it, as a decimal number, loses it in no
	// case: also not when service and keeper are killed at once.
	exitFDVariable = "EXECD_EXIT_FD"
	exitFD         = "3"
)

// launcher starts containers, and removes what a start has made at the kernel, the keeper and the
// runtime.
type launcher struct {
	log        zerolog.Logger
	layout     layout.Layout
	bootID     string // of the kernel that runs now
	background *background.Group
	containers *containers.Registry
	ends       *ends
	processes  *processes
	runtimes   *runtimes
	cgroups    *cgroup.Tree
	keeper     *keeper.Client
	network    *network.Network
	volumes    *volumes.Store
	disks      *disks
	sources    *sourcemounts.Mounter
	targets    *targets
	users      *userNamespaces
	gpus       *gpus
	processors *processors
	hostFiles  *limits.Files
	keepFiles  bool // containers that ask for it outlive a reboot
}

// start is one start of a container.
type start struct {
	*launcher
	container *containers.Container
	spec      engine.ContainerSpec
	image     images.Image
	chain     []string         // the trees of the snapshots that the container lies on, lowest first
	imagesIn  string           // a directory with all layers of the image, and the chain
	test      bool             // of user namespaces: the image is not the image store's
	repeated  bool             // the container was started before
	again     bool             // on what an earlier start has written
	keeps     bool             // what the container writes is to outlive a reboot
	restore   string           // the directory with the processes that it is given; empty for a start of its program
	memory    snapshots.Memory // what these depend on
	runtime   bundle.Runtime
	group     cgroup.Group
	own       *network.Namespace    // the network that was made for it, or nil
	joined    *containers.Container // the container whose network it shares, or nil
	netNS     string                // path of the network namespace; empty for the host's, or a new one
	netFile   *os.File              // keeps the namespace of joined
	ids       users.Range           // the host's ids of its users; zero for the host's own
	beyond    []uint32              // ids of it beyond these
	userNS    *os.File              // its user namespace; nil when it has none, or the runtime makes it
	devices   bundle.Devices        // of the host, which it alone has
	paths     paths                 // of what it is made of, for the runtime
}

// run starts the container and, when a step fails, removes what the steps before have made. The
// caller holds the container's lock.
func (s *start) run(ctx context.Context) (err error) {
	c := s.container
	defer func() {
		for _, file := range []*os.File{s.netFile, s.userNS} {
			if file != nil {
				_ = file.Close()
			}
		}
		if err != nil {
			err = s.undo(ctx, c, err)
		}
	}()

	// The record says that something of the container may exist before anything does.
	if s.runtime, err = s.runtimes.get(c.Record().Runtime); err != nil {
		return err
	}
	if err := s.takeIDs(); err != nil {
		return err
	}
	if err := s.recordBegin(); err != nil {
		return err
	}

	deviceMounts, err := s.openDevices()
	if err != nil {
		return err
	}

	// What does not need one another is made side by side.
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(s.makeControlGroup)
	group.Go(func() error { return s.connect(groupCtx) })
	group.Go(func() error { return s.makeDisk(ctx) })
	group.Go(s.makeUserNamespace)
	if err := group.Wait(); err != nil {
		return err
	}
	var files errgroup.Group // they wait for the disk
	files.Go(s.writeEtc)
	err = s.attachSources()
	if err := errors.Join(err, files.Wait()); err != nil {
		return err
	}
	s.paths.mounts = append(s.paths.mounts, deviceMounts...)
	if err := s.likeSnapshot(); err != nil {
		return err
	}
	if err := s.makeClosedWays(); err != nil {
		return err
	}

	// From here on there is a process.
	if err := bundle.Write(string(c.Directory), s.bundle()); err != nil {
		return err
	}
	process, err := s.keeper.Launch(ctx, s.keeperLaunch())
	if err != nil {
		return s.explainLaunch(err)
	}
	s.background.Run(s.sources.Releasing(c.ID))
	if s.own != nil {
		if err := s.checkNetwork(process); err != nil {
			return err
		}
		s.network.Started(c.ID)
	}
	if s.restore != "" {
		failpoint.Hit(RestoredFailpoint)
	}
	early, err := c.SetStarted(process)
	if early != nil {
		s.ends.record(c, *early)
	}
	return err
}

// checkNetwork makes sure that the container is in the network that was made for it, which the
// runtime has found by the number of a descriptor of this process. In another one, it could reach
// what only another container may.
func (s *start) checkNetwork(process keeper.Process) error {
	if s.runtime.OwnKernel { // whose processes are in no namespace of the host that can be compared
		return nil
	}
	var info unix.Stat_t
	err := unix.Stat(filepath.Join("/proc", strconv.Itoa(process.PID), "ns/net"), &info)
	if err != nil || !process.Alive() || info.Ino == s.own.Inode { // what has ended reaches nothing
		return nil
	}
	s.log.Error().Str("container", s.container.Name).Uint64("want", s.own.Inode).Uint64("has", info.Ino).
		Msg("a container was started in another network than its own: it is ended, and started again")
	return fmt.Errorf("%w: the container was started in another network than its own", engine.ErrUnavailable)
}

// recordBegin records that something of the container may exist from now on.
func (s *start) recordBegin() error {
	// One may be left from before a reboot, and its processes with it.
	if err := os.Remove(s.container.Directory.Held()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := s.gpus.take(s.spec.Resources.GPUs, func(names []string) error {
		return s.container.Update(func(r *containers.Record) {
			// What it was stopped with stays of use when this start is given up: see Suspend.
			r.Run = &containers.Run{BootID: s.bootID, Users: s.ids.First, Keeps: s.keeps, Suspends: s.again, GPUs: names}
			r.StartError = ""
			if !s.again {
				r.Source = layout.NewID()
			}
		})
	})
	if err != nil && s.ids.First != 0 {
		s.users.pool.Release(s.ids.First)
	}
	return err
}

// makeDisk makes the directories for what the container writes, or takes up those of an earlier
// start.
func (s *start) makeDisk(ctx context.Context) error {
	if s.again {
		return s.disks.reopen(s.container, s.root())
	}
	return s.disks.make(ctx, s.container, s.root())
}

func (s *start) makeControlGroup() (err error) {
	if s.group, err = s.cgroups.MakeWith(s.container.ID, s.spec.Resources, s.devices.Rules); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	s.processors.confine(s.container.ID, s.group, s.spec.Resources.NanoCPUs)
	return nil
}

// root is where its root file system is mounted.
func (s *start) root() string {
	if s.ids.First != 0 {
		return s.layout.Root(s.container.ID)
	}
	return s.container.Directory.RootFS()
}

// connect makes the container's network, or finds the one that it shares, and records it.
func (s *start) connect(ctx context.Context) error {
	spec := s.spec
	switch {
	case spec.Join != "":
		return s.join()
	case !spec.OwnNetwork():
		return nil
	}
	publish, err := publishAddress(spec)
	if err != nil {
		return err
	}
	own, err := s.network.Attach(ctx, s.container.ID, spec.Publish, publish)
	if err != nil {
		return err
	}
	s.own, s.netNS = &own, own.Path
	if s.ids.First != 0 {
		if err := setNetworkParameters(own.Path, spec.Sysctls); err != nil {
			return err
		}
	}
	attachment := own.Attachment
	return s.container.Update(func(r *containers.Record) {
		r.Run.Network = &attachment
		if len(attachment.Ports) > 0 {
			r.Published = &network.Attachment{Container: attachment.Container, Publish: attachment.Publish, Ports: attachment.Ports}
		}
	})
}

// join opens the network namespace of the container that is joined.
func (s *start) join() error {
	name := s.spec.Join
	joined, err := s.containers.Find("join", name)
	if err != nil {
		return fmt.Errorf("%w: join: there is no container %s", engine.ErrInvalid, name)
	}
	if !joined.Alive() {
		return fmt.Errorf("%w: join: container %s is %s", engine.ErrNotRunning, name, joined.Status())
	}
	process := joined.Record().Run.Process
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(process.PID), "ns/net"))
	if err == nil && !process.Alive() { // the number may be another process's by now
		err = errors.Join(os.ErrNotExist, file.Close())
	}
	if err != nil {
		return fmt.Errorf("%w: join: container %s: %w", engine.ErrNotRunning, name, err)
	}
	s.joined, s.netFile = joined, file
	s.netNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
	return nil
}

// bundle returns what the runtime reads.
func (s *start) bundle() bundle.Input {
	c, spec := s.container, s.spec
	spec.Env = maps.Clone(spec.Env)
	if spec.Env == nil {
		spec.Env = map[string]string{}
	}
	if s.runtime.PassesFiles {
		spec.Env[exitFDVariable] = exitFD
	}
	if signal := s.image.Config.StopSignal; spec.StopSignalVariable != "" && signal != "" && !strings.Contains(signal, "\x00") {
		spec.Env[spec.StopSignalVariable] = signal
	}
	in := bundle.Input{
		ID: c.ID, Spec: spec, Image: bundle.Config(s.image.Config), Layers: s.image.Layers, RootFS: s.root(),
		NetNS: s.netNS, Mounts: s.paths.mounts, Sys: s.paths.sys, CgroupsPath: s.group.Path(),
		EtcDirectory: diskPath(c, layout.Etc), EtcSource: filepath.Join(s.paths.writes, layout.Etc), Runtime: s.runtime,
		Devices: s.devices,
	}
	in.Written = slices.Clone(s.chain)
	if s.again {
		in.Written = append(in.Written, diskPath(c, layout.Upper))
	}
	if s.ids.First != 0 {
		in.Users = bundle.Users{First: uint32(s.ids.First), Count: users.Size, Beyond: s.beyond} //nolint:gosec // ids have 32 bits
		if s.userNS != nil {
			in.UserNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.userNS.Fd())
		}
	}
	return in
}

// keeperLaunch returns what the keeper has to do.
func (s *start) keeperLaunch() keeper.Launch {
	c := s.container
	launch := keeper.Launch{Watched: c.Watched()}
	if !s.runtime.PassesFiles {
		launch.ExitFile = ""
	}
	launch.Root, launch.Owner = s.root(), s.ids.First
	launch.Overlay = overlay.Overlay{
		Lower: s.paths.layers, Volatile: !s.keeps,
		Upper: filepath.Join(s.paths.writes, layout.Upper), Work: filepath.Join(s.paths.writes, layout.Work),
	}
	launch.Run = s.runtime.RunArgs(s.layout.Runtime(s.runtime.Name), string(c.Directory), c.Directory.PIDFile(), c.ID, launch.ExitFile != "")
	if s.restore != "" {
		launch.Run = s.runtime.RestoreArgs(s.layout.Runtime(s.runtime.Name), string(c.Directory), c.Directory.PIDFile(), c.ID, s.restore)
	}
	launch.PIDFile, launch.Sealed = c.Directory.PIDFile(), s.runtime.RunsSealed
	if !s.runtime.JoinsCgroup {
		launch.CgroupDirectories = s.group.Directories()
	}
	return launch
}

// explainLaunch says which of the contract's errors a failed launch is.
func (s *start) explainLaunch(err error) error {
	if had := s.paths.keeper; had != 0 {
		// The mounts are gone with the keeper that had them.
		if now, unknown := keeper.ListenerPID(s.layout.Run); unknown != nil || now != had {
			return fmt.Errorf("%w: the keeper was replaced during the start: %v", engine.ErrUnavailable, err) //nolint:errorlint // it is not the cause
		}
	}
	var refused *keeper.RuntimeError
	if errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", engine.ErrInvalid, refused)
	}
	return err
}
