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
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/overlay"
)

// checkHost finds out whether this process and this host can run containers at all, and finds the
// OCI runtimes. The error names everything that is missing.
func (e *Engine) checkHost() error {
	if os.Geteuid() != 0 {
		return errors.New("the local engine needs root: mounts, network interfaces and control groups are made by it")
	}
	if err := e.layout.Make(); err != nil {
		return err
	}
	var errs []error
	if err := checkOverlay(e.layout.Data); diskFull(err) {
		e.log.Warn().Err(err).Msg("disk full: cannot test an overlay file system") // removals make room
	} else if err != nil {
		errs = append(errs, err)
	}
	if info, err := os.Stat(e.options.Keeper); err != nil {
		errs = append(errs, fmt.Errorf("keeper: %w", err))
	} else if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		errs = append(errs, fmt.Errorf("keeper: %s is not a program", e.options.Keeper))
	}
	var err error
	e.runtimes, err = findRuntimes(e.options.Runtime, e.options.Runtimes)
	errs = append(errs, err)
	return errors.Join(errs...)
}

// checkOverlay makes an overlay file system like a container's in the directory, and mounts it
// nowhere.
func checkOverlay(data string) error {
	test, err := os.MkdirTemp(data, testPattern)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(test) }()
	o := overlay.Overlay{
		Lower: []string{filepath.Join(test, "lower")}, Upper: filepath.Join(test, "upper"), Work: filepath.Join(test, "work"), Volatile: true,
	}
	for _, directory := range []string{o.Lower[0], o.Upper, o.Work} {
		if err := os.Mkdir(directory, layout.DirectoryMode); err != nil {
			return err
		}
	}
	opened, err := o.Open()
	if err != nil {
		return fmt.Errorf("no overlay file system can be made in %s: the kernel must have them, what is mounted there must be fit for their layers, "+
			"and this process must be allowed to mount them: %w", data, err)
	}
	return opened.Close()
}

// Info implements [engine.Engine].
func (e *Engine) Info(ctx context.Context) (engine.Info, error) {
	if err := e.background.Check("info"); err != nil {
		return engine.Info{}, err
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
		Version:       e.runtimes.standard.Name + " " + e.runtimes.standard.Version,
		CgroupVersion: e.cgroups.Version(),
		CPUs:          runtime.NumCPU(),
		MemoryBytes:   memory,
		AppArmor:      strings.TrimSpace(string(appArmor)) == "Y",
		Seccomp:       noSeccomp == nil,
		OwnKernel:     e.runtimes.standard.OwnKernel,
		OwnPaths:      e.ownPaths(),
	}, nil
}

// ownPaths also has the paths without symbolic links, because what is compared with them may have
// none either.
func (e *Engine) ownPaths() []string {
	own := []string{e.layout.Data, e.layout.Run, e.options.Keeper, e.runtimes.standard.Path}
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

// checkSameMount makes sure that the keeper has the same data directory. Its mount namespace was
// made when it was started: a disk that the host has mounted there since is not seen in it.
func checkSameMount(l layout.Layout) error {
	pid, err := keeper.ListenerPID(l.Run)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	var ours, theirs unix.Stat_t
	if err := unix.Stat(l.Data, &ours); err != nil {
		return err
	}
	err = unix.Stat(filepath.Join("/proc", fmt.Sprint(pid), "root", l.Data), &theirs)
	if err != nil || ours.Dev != theirs.Dev || ours.Ino != theirs.Ino {
		return fmt.Errorf("keeper: process %d runs since before %s was mounted: end it once no sandbox runs, and start the service again", pid, l.Data)
	}
	return nil
}

// bootID is different after every start of the kernel.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
