package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/volume"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/limits"
)

const (
	// shownVolume holds the files that show containers their limits. Each is mounted by itself from
	// the volume's directory, which is on the engine's machine wherever this process runs. A file
	// is never changed, for containers of any service and age have it. No sandbox may claim a
	// volume whose name begins so.
	shownVolume = "sandbox-execd-limits"
	// maxShown bounds the files of the volume: anyone who makes sandboxes chooses their sizes.
	maxShown = 4096
	// shownRetry is how long containers get no files after these could not be had.
	shownRetry = 10 * time.Minute
)

// errShownFull is the error of a file that would be one too many in the volume.
var errShownFull = errors.New("the volume is full")

// sourceMissing is what the engine says of a mount whose source it does not have.
const sourceMissing = "bind source path does not exist"

// shownMachine is what the engine says about its machine, as far as it decides which files
// containers get.
type shownMachine struct {
	processors int
	here       bool            // the machine is as large as this process's, and has the same kernel
	sameFiles  bool            // files that are made of this machine's are true there, and can be read
	runtimes   map[string]bool // whether containers of the runtime have the machine's kernel, by name
}

// learnMachine keeps what decides how containers are shown their limits.
func (e *Engine) learnMachine(info system.Info) {
	learned := shownMachine{processors: info.NCPU, runtimes: map[string]bool{"": false}}
	learned.here = e.hostFiles.Describe(info.NCPU, info.MemTotal, info.KernelVersion)
	// A made file that takes its content from another machine would not be true, and labels of
	// SELinux could keep it from being read, which is worse than what the machine shows.
	learned.sameFiles = learned.here && !hasSecurityOption(info.SecurityOptions, "selinux")
	for name, known := range info.Runtimes {
		learned.runtimes[name] = sharesKernel(name, known.Path)
	}
	learned.runtimes[""] = learned.runtimes[info.DefaultRuntime]
	var numbers []int
	if info.CPUSet && !e.shareProcessors {
		for number := range info.NCPU {
			numbers = append(numbers, number)
		}
	}
	if before := e.machine.Swap(&learned); before == nil || before.processors != learned.processors {
		e.processors.Use(numbers)
	}
}

// sharesKernel reports whether containers of a runtime of the engine's configuration see the kernel
// of the machine, and mounts over its files: by the program, or for a shim by its name.
func sharesKernel(name, program string) bool {
	if strings.HasPrefix(name, "io.containerd.runc.") {
		return true
	}
	base := path.Base(program)
	return base == "runc" || base == "crun" || base == "docker-runc"
}

// shownMounts returns the files of a container with these limits, and their mounts. It has none
// where what the container runs on does not take them.
func (e *Engine) shownMounts(ctx context.Context, spec engine.ContainerSpec) ([]limits.File, []mount.Mount, error) {
	machine := e.machine.Load()
	if !spec.ShowLimits || machine == nil || !machine.sameFiles || !machine.runtimes[spec.Runtime] || time.Now().UnixNano() < e.shownOff.Load() {
		return nil, nil, nil
	}
	files, err := e.hostFiles.Of(spec.Resources, machine.processors)
	if err != nil {
		return nil, nil, err
	}
	files = slices.DeleteFunc(files, func(file limits.File) bool {
		return slices.ContainsFunc(spec.Mounts, func(m engine.Mount) bool {
			return m.Target == file.Target || strings.HasPrefix(file.Target, strings.TrimSuffix(m.Target, "/")+"/")
		})
	})
	if len(files) == 0 {
		return nil, nil, nil
	}
	directory, err := e.shownDirectory(ctx)
	if err != nil {
		return nil, nil, err
	}
	mounts := make([]mount.Mount, len(files))
	for i, file := range files {
		mounts[i] = mount.Mount{Type: mount.TypeBind, Source: directory + "/" + file.Name, Target: file.Target, ReadOnly: true}
	}
	return files, mounts, nil
}

// shownDirectory returns where the volume of the files is on the engine's machine.
func (e *Engine) shownDirectory(ctx context.Context) (string, error) {
	if known := e.shownAt.Load(); known != nil {
		return *known, nil
	}
	var made volume.Volume
	err := e.call(ctx, "create volume "+shownVolume, forVolume, func(ctx context.Context) (err error) {
		made, err = e.api.VolumeCreate(ctx, volume.CreateOptions{Name: shownVolume})
		return err
	})
	if err != nil {
		return "", err
	}
	if made.Driver != "local" || len(made.Options) > 0 || !filepath.IsAbs(made.Mountpoint) {
		return "", fmt.Errorf("%w: volume %s is no plain volume of the driver local", engine.ErrInvalid, shownVolume)
	}
	e.shownAt.Store(&made.Mountpoint)
	return made.Mountpoint, nil
}

// createShown creates a container, with the files that show it its limits where these can be had.
func (e *Engine) createShown(ctx context.Context, spec engine.ContainerSpec,
	create func(shown []mount.Mount) error) error {
	files, mounts, err := e.shownMounts(ctx, spec)
	if len(mounts) > 0 && err == nil {
		err = create(mounts)
		if err == nil || !strings.Contains(err.Error(), sourceMissing) || !strings.Contains(err.Error(), shownVolume) {
			return err
		}
		// The first container of its size on this machine, or the volume was removed meanwhile.
		if err = e.writeShown(ctx, e.fillerImage(spec), files); err == nil {
			err = create(mounts)
			if err == nil || !strings.Contains(err.Error(), sourceMissing) {
				return err
			}
		}
	}
	switch {
	case ctx.Err() != nil, errors.Is(err, engine.ErrUnavailable), errors.Is(err, engine.ErrImage):
		return err
	case errors.Is(err, errShownFull):
		if !e.shownFull.Swap(true) {
			e.log.Warn().Err(err).Str("container", spec.Name).
				Msg("cannot show containers of new sizes their limits in /proc/cpuinfo and /proc/meminfo; they see those of the machine")
		}
	case err != nil:
		e.shownOff.Store(time.Now().Add(shownRetry).UnixNano())
		e.log.Warn().Err(err).Str("container", spec.Name).Dur("again_after_ms", shownRetry).
			Msg("cannot show containers their limits in /proc/cpuinfo and /proc/meminfo; they see those of the machine")
	}
	return create(nil)
}

// fillerImage is the image of a container that is never started: that of the directory which every
// sandbox has, where the spec has one, for an image of a caller may have anything at any path.
func (e *Engine) fillerImage(spec engine.ContainerSpec) string {
	e.filledMu.Lock()
	defer e.filledMu.Unlock()
	for _, m := range spec.Mounts {
		if filled, known := e.filled[m.Directory]; known && m.Directory != "" {
			return filled.imageID
		}
	}
	return spec.ImageID
}

// writeShown puts files into the volume, by a container of the image that is never started.
func (e *Engine) writeShown(ctx context.Context, imageID string, files []limits.File) error {
	select {
	case e.volumeTurn <- struct{}{}:
		defer func() { <-e.volumeTurn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	e.shownAt.Store(nil)
	if _, err := e.shownDirectory(ctx); err != nil {
		return err
	}
	into := mount.Mount{
		Type: mount.TypeVolume, Source: shownVolume, Target: volumeInside,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}
	return e.withFiller(ctx, shownVolume, imageID, e.labels, into, func(id string) error {
		there, err := e.digests(ctx, id, volumeInside)
		if err != nil {
			return err
		}
		missing := slices.DeleteFunc(slices.Clone(files), func(file limits.File) bool { return there[file.Name] != "" })
		if len(there)+len(missing) > maxShown {
			return fmt.Errorf("%w: %s has %d files of other sizes, and %d are the limit", errShownFull, shownVolume, len(there), maxShown)
		}
		archive, err := archiveOf(missing)
		if err != nil {
			return err
		}
		return e.call(ctx, "write to volume "+shownVolume, forContainer, func(ctx context.Context) error {
			return e.api.CopyToContainer(ctx, id, volumeInside, archive, container.CopyToContainerOptions{})
		})
	})
}

// archiveOf is an archive with the files, which every user may read.
func archiveOf(files []limits.File) (io.Reader, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, file := range files {
		header := tar.Header{Typeflag: tar.TypeReg, Name: file.Name, Mode: 0o444, Size: int64(len(file.Content))}
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := w.Write(file.Content); err != nil {
			return nil, err
		}
	}
	return &archive, w.Close()
}
