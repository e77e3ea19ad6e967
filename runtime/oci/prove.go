package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/overlay"
)

// knownRuntimes are the runtimes that are looked for when none is configured, the quickest first.
var knownRuntimes = []string{"crun", "runc", "runsc"}

// prove finds out whether this process and this host can run containers at all. The error names everything that is missing.
func (e *Engine) prove() error {
	if os.Geteuid() != 0 {
		return errors.New("the local engine needs root: mounts, network interfaces and control groups are made by it")
	}
	if err := e.layout.make(); err != nil {
		return err
	}
	var errs []error
	if err := e.layout.proveOverlay(); diskFull(err) {
		e.log.Warn().Err(err).Msg("the disk is full: whether containers can write to it could not be tried") // removals make room
	} else if err != nil {
		errs = append(errs, err)
	}
	if info, err := os.Stat(e.options.Keeper); err != nil {
		errs = append(errs, fmt.Errorf("keeper: %w", err))
	} else if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		errs = append(errs, fmt.Errorf("keeper: %s is not a program", e.options.Keeper))
	}
	errs = append(errs, e.findRuntimes())
	return errors.Join(errs...)
}

// proveOverlay makes an overlay file system like a container's, and mounts it nowhere.
func (l layout) proveOverlay() error {
	trial, err := os.MkdirTemp(l.data, ".trial-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(trial) }()
	o := overlay.Overlay{
		Lower: []string{filepath.Join(trial, "lower")}, Upper: filepath.Join(trial, "upper"), Work: filepath.Join(trial, "work"), Volatile: true,
	}
	for _, folder := range []string{o.Lower[0], o.Upper, o.Work} {
		if err := os.Mkdir(folder, folderMode); err != nil {
			return err
		}
	}
	opened, err := o.Open()
	if err != nil {
		return fmt.Errorf("no overlay file system can be made in %s: the kernel must have them, what is mounted there must be fit for their layers, "+
			"and this process must be allowed to mount them: %w", l.data, err)
	}
	return opened.Close()
}

func (e *Engine) findRuntimes() error {
	if e.options.Runtime != "" {
		found, err := e.runtime(e.options.Runtime)
		if err != nil {
			return err
		}
		e.defaultRuntime = found
	} else if err := e.findFirst(); err != nil {
		return err
	}
	for _, name := range e.options.Runtimes {
		if _, err := e.runtime(name); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) findFirst() error {
	var errs []error
	for _, name := range knownRuntimes {
		found, err := e.runtime(name)
		if err == nil {
			e.defaultRuntime = found
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("no OCI runtime was found, install %s: %w", strings.Join(knownRuntimes, " or "), errors.Join(errs...))
}

// runtime returns the runtime of the name; empty means the default one. It asks the program once.
func (e *Engine) runtime(name string) (bundle.Runtime, error) {
	if name == "" {
		return e.defaultRuntime, nil
	}
	e.runtimesMu.Lock()
	defer e.runtimesMu.Unlock()
	if known, ok := e.runtimes[name]; ok {
		return known, nil
	}
	found, err := bundle.Find(name)
	if err != nil {
		return bundle.Runtime{}, fmt.Errorf("%w: runtime %q: %w", engine.ErrInvalid, name, err)
	}
	e.runtimes[name] = found
	return found, nil
}

// Info implements [engine.Engine].
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	if e.closing.Err() != nil {
		return engine.Info{}, closedError("info")
	}
	if err := e.keeper.Ready(ctx); err != nil { // without it no container can be started
		return engine.Info{}, fmt.Errorf("info: %w", err)
	}
	memory, err := hostMemory()
	if err != nil {
		return engine.Info{}, err
	}
	appArmor, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	_, noSeccomp := os.Stat("/proc/sys/kernel/seccomp/actions_avail")
	return engine.Info{
		Name:          "local",
		Version:       e.defaultRuntime.Name + " " + e.defaultRuntime.Version,
		CgroupVersion: e.cgroups.Version(),
		CPUs:          runtime.NumCPU(),
		MemoryBytes:   memory,
		AppArmor:      strings.TrimSpace(string(appArmor)) == "Y",
		Seccomp:       noSeccomp == nil,
		OwnKernel:     e.defaultRuntime.OwnKernel,
		OwnPaths:      e.ownPaths(),
	}, nil
}

// ownPaths also has the paths without symbolic links, because what is compared with them may have none either.
func (e *Engine) ownPaths() []string {
	own := []string{e.layout.data, e.layout.run, e.options.Keeper, e.defaultRuntime.Path}
	paths := append(engine.HostPaths(), own...)
	for _, path := range own {
		if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
			paths = append(paths, real)
		}
	}
	return paths
}

func hostMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("memory of the host: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit), nil //nolint:gosec // a host's memory fits
}

func closedError(op string) error {
	return fmt.Errorf("%s: %w: it is closed", op, engine.ErrUnavailable)
}
