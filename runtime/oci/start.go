package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/cgroup"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
	"sandbox.internal/runtime/oci/overlay"
	"sandbox.internal/runtime/oci/users"
)

const (
	// exitFDVariable is an environment variable of every container, with the number of an open file. A first process that writes its exit
	// status to it, as a decimal number, loses it in no case: also not when service and keeper are killed at once.
	exitFDVariable = "EXECD_EXIT_FD"
	exitFD         = "3"
)

// undoTimeout bounds how long a failed start takes to remove what it has made.
const undoTimeout = 20 * time.Second

// Start implements [engine.Engine]. A container that has ended cannot be started again.
func (e *Engine) Start(ctx context.Context, id string) error {
	op := "start container " + id
	c, err := e.hold(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.release()
	e.mu.Lock()
	status := c.status()
	e.mu.Unlock()
	switch status {
	case engine.StatusRunning, engine.StatusFrozen:
		return nil
	case engine.StatusCreated:
	default:
		return fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, status)
	}
	if err := e.undoFailedStart(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := e.start(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// undoFailedStart removes what an earlier start has made, where that could not be undone then.
func (e *Engine) undoFailedStart(ctx context.Context, c *container) error {
	had := c.record.Run
	if had == nil {
		return nil
	}
	if err := e.releaseRun(ctx, c); err != nil {
		return fmt.Errorf("undo an earlier start: %w", err)
	}
	if err := e.update(c, func(r *record) { r.Run = nil }); err != nil {
		return err
	}
	e.releaseUsers(had)
	return nil
}

// start starts a container and, when that fails, undoes what it has done. The caller holds the turn.
func (e *Engine) start(ctx context.Context, c *container) error {
	image, release, err := e.images.Hold(c.record.Spec.ImageID)
	if err != nil {
		return err
	}
	defer release()
	return e.newStart(c, image, e.layout.images(), false).run(ctx)
}

// startOperation is one start of a container.
type startOperation struct {
	engine    *Engine
	container *container
	spec      engine.ContainerSpec
	image     images.Image
	imagesIn  string // a folder with all layers of the image
	trial     bool   // of user namespaces
	runtime   bundle.Runtime
	group     cgroup.Group
	own       *network.Namespace // the network that was made for it, or nil
	joined    *container         // the container whose network it shares, or nil
	netNS     string             // path of the network namespace; empty for the host's, or a new one
	netFile   *os.File           // keeps the namespace of joined
	users     users.Range        // its ids; zero for the host's
	beyond    []uint32           // ids of it beyond these
	userNS    *os.File           // its user namespace; nil when it has none, or the runtime makes it
	sources   sources
}

// newStart returns the start of a container from an image, whose layers are all in the folder imagesIn. The caller holds the container's turn.
func (e *Engine) newStart(c *container, image images.Image, imagesIn string, trial bool) *startOperation {
	return &startOperation{engine: e, container: c, spec: c.record.Spec, image: image, imagesIn: imagesIn, trial: trial}
}

// run starts the container and, when that fails, undoes what it has done.
func (s *startOperation) run(ctx context.Context) error {
	e, c := s.engine, s.container
	err := s.attempt(ctx)
	if err == nil {
		return nil
	}
	reason := err.Error()
	if errors.Is(err, engine.ErrUnavailable) { // the keeper may have been killed
		if err := e.killLeftOver(context.WithoutCancel(ctx)); err != nil {
			e.log.Warn().Err(err).Msg("what a keeper has left is not killed yet; the next start of the service tries again")
		}
	}
	had := c.record.Run
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if undone := e.releaseRun(undo, c); undone != nil {
		// The record still says that something is there: the removal tries again.
		e.log.Error().Err(undone).Str("container", c.name).Msg("what a failed start has made cannot be removed")
		return errors.Join(err, e.update(c, func(r *record) { r.StartError = reason }))
	}
	if unsaved := e.update(c, func(r *record) { r.Run, r.StartError = nil, reason }); unsaved != nil {
		return errors.Join(err, unsaved)
	}
	e.releaseUsers(had)
	return err
}

// attempt starts the container, and leaves what it has made when that fails.
func (s *startOperation) attempt(ctx context.Context) error {
	e, c := s.engine, s.container
	var err error
	if s.runtime, err = e.runtime(c.record.Runtime); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return err
	}
	defer func() {
		for _, file := range []*os.File{s.netFile, s.userNS} {
			if file != nil {
				_ = file.Close()
			}
		}
	}()
	if err := s.prepare(ctx); err != nil {
		return err
	}
	process, err := s.launch(ctx)
	if err != nil {
		e.releaseSources(c.id)
		return err
	}
	e.inBackground(func() { e.releaseSources(c.id) })
	if s.own != nil {
		e.network.Started(c.id)
	}
	return s.recordStarted(process)
}

// begin records that something of the container may exist from now on.
func (s *startOperation) begin() error {
	e := s.engine
	if err := s.takeUsers(); err != nil {
		return err
	}
	err := e.update(s.container, func(r *record) {
		r.Run, r.StartError = &runRecord{BootID: e.bootID, Users: s.users.First}, ""
	})
	if err != nil && s.users.First != 0 {
		e.users.Release(s.users.First)
	}
	return err
}

// launch has the keeper start the container.
func (s *startOperation) launch(ctx context.Context) (keeper.Process, error) {
	var files errgroup.Group // they wait for the disk
	files.Go(s.writeEtc)
	err := s.makeSources()
	if err := errors.Join(err, files.Wait()); err != nil {
		return keeper.Process{}, err
	}
	if err := s.openWays(); err != nil {
		return keeper.Process{}, err
	}
	if err := s.writeBundle(); err != nil {
		return keeper.Process{}, err
	}
	process, err := s.engine.keeper.Launch(ctx, s.toLaunch())
	if err != nil {
		return process, s.explainLaunch(err)
	}
	return process, nil
}

// prepare makes the folders, the control group, the network and the user namespace, side by side.
func (s *startOperation) prepare(ctx context.Context) error {
	e, c := s.engine, s.container
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if s.group, err = e.cgroups.Make(c.id, s.spec.Resources); err != nil {
			return fmt.Errorf("control group: %w", err)
		}
		return nil
	})
	group.Go(func() error { return s.connect(groupCtx) })
	group.Go(func() error { return s.makeDisk(ctx) })
	group.Go(s.makeUserNamespace)
	return group.Wait()
}

// makeDisk makes the folders for what the container writes, empty.
func (s *startOperation) makeDisk(ctx context.Context) error {
	e, c := s.engine, s.container
	// There is something only after a start that failed, which may have run the container's program; an overlay's folders cannot be used twice.
	if err := e.trash.throw(c.at.disk()); err != nil {
		return err
	}
	made := []string{c.at.disk(), s.root()}
	if e.options.DiskBytes == 0 {
		made = append(made, c.at.upper(), c.at.work(), c.at.etc())
	}
	for _, folder := range made {
		if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // it becomes the container's root
			return err
		}
	}
	if e.options.DiskBytes != 0 {
		return e.makeBounded(ctx, c)
	}
	// The container's root has the mode of upper, whatever the service's umask is.
	return os.Chmod(c.at.upper(), 0o755) //nolint:gosec // as above
}

// root is where its root file system is mounted.
func (s *startOperation) root() string {
	if s.users.First != 0 {
		return s.engine.layout.root(s.container.id)
	}
	return s.container.at.rootfs()
}

// connect makes the container's network, or finds the one that it shares, and records it.
func (s *startOperation) connect(ctx context.Context) error {
	e, c, spec := s.engine, s.container, s.spec
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
	own, err := e.network.Attach(ctx, c.id, spec.Publish, publish)
	if err != nil {
		return err
	}
	s.own, s.netNS = &own, own.Path
	if s.users.First != 0 {
		if err := setNetworkParameters(own.Path, spec.Sysctls); err != nil {
			return err
		}
	}
	attachment := own.Attachment
	return e.update(c, func(r *record) { r.Run.Network = &attachment })
}

// join opens the network namespace of the container that is joined.
func (s *startOperation) join() error {
	e, name := s.engine, s.spec.Join
	joined, err := e.find("join", name)
	if err != nil {
		return fmt.Errorf("%w: join: there is no container %s", engine.ErrInvalid, name)
	}
	e.mu.Lock()
	status, running := joined.status(), joined.record.Run
	e.mu.Unlock()
	if status != engine.StatusRunning && status != engine.StatusFrozen {
		return fmt.Errorf("%w: join: container %s is %s", engine.ErrNotRunning, name, status)
	}
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(running.Process.PID), "ns/net"))
	if err == nil && !running.Process.Alive() { // the number may be another process's by now
		err = errors.Join(os.ErrNotExist, file.Close())
	}
	if err != nil {
		return fmt.Errorf("%w: join: container %s: %w", engine.ErrNotRunning, name, err)
	}
	s.joined, s.netFile = joined, file
	s.netNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
	return nil
}

// writeBundle writes what the runtime reads.
func (s *startOperation) writeBundle() error {
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
		ID: c.id, Spec: spec, Image: bundle.Config(s.image.Config), Layers: s.image.Layers, RootFS: s.root(),
		NetNS: s.netNS, Mounts: s.sources.mounts, Sys: s.sources.sys, CgroupsPath: s.group.Path(),
		EtcFolder: c.etcPath(), EtcSource: filepath.Join(s.sources.writes, etcFolder), Runtime: s.runtime,
	}
	if s.users.First != 0 {
		in.Users = bundle.Users{First: uint32(s.users.First), Count: users.Size, Beyond: s.beyond} //nolint:gosec // ids have 32 bits
		if s.userNS != nil {
			in.UserNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.userNS.Fd())
		}
	}
	return bundle.Write(string(c.at), in)
}

func (s *startOperation) toLaunch() keeper.Launch {
	e, c := s.engine, s.container
	root := e.layout.runtime(s.runtime.Name)
	launch := keeper.Launch{Watched: c.watched()}
	if !s.runtime.PassesFiles {
		launch.ExitFile = ""
	}
	launch.Root, launch.Owner = s.root(), s.users.First
	launch.Overlay = overlay.Overlay{
		Lower: s.sources.layers, Volatile: true,
		Upper: filepath.Join(s.sources.writes, upperFolder), Work: filepath.Join(s.sources.writes, workFolder),
	}
	launch.Run = s.runtime.RunArgs(root, string(c.at), c.at.pidFile(), c.id, launch.ExitFile != "")
	launch.PIDFile, launch.Sealed = c.at.pidFile(), s.runtime.RunsSealed
	if !s.runtime.JoinsCgroup {
		launch.CgroupFolders = s.group.Folders()
	}
	return launch
}

// watched is what the keeper needs about a container that runs. The exit file of a container without one is missing.
func (c *container) watched() keeper.Watched {
	return keeper.Watched{
		ID: c.id, Output: c.at.output(), Log: c.at.log(), LogBytes: c.record.Spec.LogBytes,
		ExitFile: c.at.exit(), EndFile: c.at.end(),
	}
}

// recordStarted makes the container a running one, or one that has ended already.
func (s *startOperation) recordStarted(process keeper.Process) error {
	e, c := s.engine, s.container
	if err := e.update(c, func(r *record) { r.Run.Process = process }); err != nil {
		return err
	}
	e.mu.Lock()
	early := c.early
	c.early = nil
	e.emit(c, engine.EventStarted)
	e.mu.Unlock()
	if early != nil {
		e.noteEnd(c, *early)
	}
	return nil
}
