package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/treecopy"
	"sandbox.internal/runtime/oci/keeper"
)

// KeepsMemory implements [engine.Snapshots].
func (e *Engine) KeepsMemory(runtime string) error {
	found, err := e.runtimes.get(runtime)
	if err != nil {
		return err
	}
	return keepsMemory(found)
}

func keepsMemory(runtime bundle.Runtime) error {
	if runtime.KeepsMemory {
		return nil
	}
	return fmt.Errorf("%w: memory: %s cannot keep processes, which runsc (gVisor) can", engine.ErrNoMemory, runtime.Name)
}

// describeMemory returns what the processes of a container depend on, for a snapshot of them.
func (e *Engine) describeMemory(c *containers.Container) (*snapshots.Memory, error) {
	runtime, err := e.runtimes.get(c.Record().Runtime)
	if err != nil {
		return nil, err
	}
	program, err := e.runtimes.identity(runtime)
	if err != nil {
		return nil, err
	}
	processor, err := processorFeatures(processorFile)
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(filepath.Join(diskPath(c, layout.Etc), machineIDFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &snapshots.Memory{Container: c.ID, Runtime: program, Processor: processor, MachineID: err == nil}, nil
}

// writeMemory has the runtime write the processes of a container, which do not run, to a snapshot,
// and what it has of their files in its own memory to these. It sets the size of memory, by which
// the copy of the files must be smaller.
func (e *Engine) writeMemory(
	ctx context.Context, c *containers.Container, making *snapshots.Making, tree *treecopy.Copy, memory *snapshots.Memory,
) error {
	directory, err := making.MakeMemory()
	if err != nil {
		return err
	}
	if memory.Bytes, err = e.checkpoint(ctx, c, directory, tree); err != nil {
		return err
	}
	if tree.MaxBytes > 0 {
		tree.MaxBytes -= memory.Bytes
	}
	return nil
}

// checkpoint has the runtime write the processes of a container, which do not run, to a directory,
// which has the room and the bound of the copy, and returns how much they take.
func (e *Engine) checkpoint(ctx context.Context, c *containers.Container, directory string, room *treecopy.Copy) (int64, error) {
	runtime, err := e.runtimes.get(c.Record().Runtime)
	if err != nil {
		return 0, err
	}
	// It is about what is written: before a byte of it is.
	expected, err := e.cgroups.Group(c.ID).SharedBytes()
	if err == nil {
		err = memoryFits(expected, room)
	}
	if err != nil {
		return 0, err
	}
	state := e.layout.Runtime(c.Record().Runtime)
	_, err = runCommandWithin(ctx, checkpointTimeout, runtime.CheckpointArgs(state, c.ID, directory, goesDirect(directory)))
	if err != nil {
		return 0, fmt.Errorf("write the memory of the container: %w", errors.Join(err, room.CheckRoom(0)))
	}
	written, err := directoryBytes(directory)
	if err != nil {
		return 0, err
	}
	// What is written has its room.
	return written, errors.Join(memoryAllowed(written, room), room.CheckRoom(0))
}

// memoryFits refuses memory that takes more than a snapshot may, or than there is.
func memoryFits(bytes int64, tree *treecopy.Copy) error {
	if err := memoryAllowed(bytes, tree); err != nil {
		return err
	}
	return tree.CheckRoom(bytes)
}

// memoryAllowed refuses memory that takes more than a snapshot may.
func memoryAllowed(bytes int64, tree *treecopy.Copy) error {
	if tree.MaxBytes > 0 && bytes >= tree.MaxBytes {
		return fmt.Errorf("%w: the memory of the container has %d bytes, and the snapshot may have %d", engine.ErrSnapshotTooLarge, bytes, tree.MaxBytes)
	}
	return nil
}

// goesDirect reports whether files of the directory can be written to around the host's cache.
func goesDirect(directory string) bool {
	fd, err := unix.Open(directory, unix.O_TMPFILE|unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// directoryBytes returns how much the files of a directory take on the disk. The directory has no
// others.
func directoryBytes(directory string) (bytes int64, err error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		var info unix.Stat_t
		if err := unix.Lstat(filepath.Join(directory, entry.Name()), &info); err != nil {
			return 0, &os.PathError{Op: "stat", Path: entry.Name(), Err: err}
		}
		bytes += info.Blocks * 512
	}
	return bytes, nil
}

// processorFile describes the processors of the host.
const processorFile = "/proc/cpuinfo"

// processorFeatures returns the features of the first processor, sorted, separated by spaces.
func processorFeatures(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); name == "flags" || name == "Features" { // of x86, and of ARM
			features := strings.Fields(value)
			slices.Sort(features)
			return strings.Join(features, " "), nil
		}
	}
	return "", errors.New(path + " has no features of a processor")
}

// checkMemory returns why a container cannot be given the processes of a snapshot.
func (e *Engine) checkMemory(c *containers.Container, memory snapshots.Memory) error {
	if memory.Container != c.ID {
		return fmt.Errorf("%w: snapshot: it has the processes of another container", engine.ErrInvalid)
	}
	runtime, err := e.runtimes.get(c.Record().Runtime)
	if err != nil {
		return err
	}
	if err := keepsMemory(runtime); err != nil {
		return err
	}
	now, err := e.runtimes.identity(runtime)
	if err != nil {
		return err
	}
	if now != memory.Runtime {
		return fmt.Errorf("%w: snapshot: its memory was written by %s, and the runtime is %s now", engine.ErrNoMemory, memory.Runtime, now)
	}
	processor, err := processorFeatures(processorFile)
	if err != nil {
		return err
	}
	has, missing := strings.Fields(processor), []string(nil)
	for _, feature := range strings.Fields(memory.Processor) {
		if _, ok := slices.BinarySearch(has, feature); !ok {
			missing = append(missing, feature)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: snapshot: the processor of this machine lacks %s, which that of the snapshot had",
			engine.ErrNoMemory, strings.Join(missing, ", "))
	}
	return nil
}

// reasonBytes bounds what the record of a container has of the reason why its processes could not
// be restored: the runtime's text may have what the container's processes chose.
const reasonBytes = 1 << 10

// beginning returns the beginning of a text, of so many bytes at most, which is UTF-8.
func beginning(text string, bytes int) string {
	const more = "..."
	if text = strings.ToValidUTF8(text, "?"); len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes-len(more)], "") + more
}

// restore starts a container with the processes of a snapshot. Where these cannot be restored,
// which is recorded with the reason, done is false: then the container is to be started on the
// snapshot's files alone, since it would be of no use otherwise. The caller holds the container's
// lock.
func (e *Engine) restore(ctx context.Context, s start, snapshot string) (done bool, err error) {
	memory, directory, ok := e.snapshots.Memory(snapshot)
	if !ok {
		err = fmt.Errorf("%w: snapshot: its memory is gone", engine.ErrNoMemory)
	} else {
		err = e.checkMemory(s.container, memory)
	}
	done, err = e.restoreFrom(ctx, s, memory, directory, err)
	e.snapshots.Free() // one that was removed meanwhile
	return done, err
}

// restoreFrom starts a container with the processes in a directory, unless err says why that cannot
// be; see restore.
func (e *Engine) restoreFrom(ctx context.Context, s start, memory snapshots.Memory, directory string, err error) (done bool, _ error) {
	if err == nil {
		s.restore, s.memory = directory, memory
		err = s.run(ctx)
	}
	var refused *keeper.RuntimeError
	byRuntime := errors.As(err, &refused) && refused.Stage == keeper.StageRun
	// A runtime that was killed, such as for want of memory, has not refused them: the next start
	// tries again.
	const killed = 128
	if byRuntime && refused.ExitCode > killed {
		return true, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	if err == nil || !byRuntime && !errors.Is(err, engine.ErrNoMemory) {
		return true, err
	}
	s.log.Warn().Err(err).Str("container", s.container.Name).Msg("cannot restore the processes of a container: it is started on its files")
	reason := beginning(err.Error(), reasonBytes)
	err = s.container.Update(func(r *containers.Record) { r.Restore, r.Memory, r.RestoreError = "", nil, reason })
	return err != nil, err
}
