package host_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"sandbox.internal/runtime/engine"
)

// Names of the calls of an engine's snapshots, for faults and counts.
const (
	callTakeSnapshot   = "TakeSnapshot"
	callRemoveSnapshot = "RemoveSnapshot"
	callListSnapshots  = "ListSnapshots"
	callRollback       = "Rollback"
	callSuspend        = "Suspend"
	callHibernate      = "Hibernate"
	callCompare        = "CompareSnapshots"
	callDigest         = "DigestSnapshot"
	callExport         = "ExportSnapshot"
)

// memorySnapshot is a snapshot of a memoryEngine: the text that its container had written.
type memorySnapshot struct {
	engine.Snapshot
	files string
}

var _ engine.Snapshots = (*memoryEngine)(nil)

// write changes the files of a container, read returns them.
func (e *memoryEngine) write(name, files string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.files[name] = files
}

func (e *memoryEngine) read(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.files[name]
}

// snapshotNames returns the names of the snapshots that there are.
func (e *memoryEngine) snapshotNames() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.snapshots))
}

// CheckAbility implements engine.Snapshots.
func (e *memoryEngine) CheckAbility(engine.Ability) error { return nil }

// TakeSnapshot freezes the container with the events that another process would cause.
func (e *memoryEngine) TakeSnapshot(ctx context.Context, id string, options engine.SnapshotOptions) (made engine.Snapshot, err error) {
	err = e.around(ctx, callTakeSnapshot, options.Name, func() error {
		if has, there := e.snapshots[options.Name]; there {
			made = has.Snapshot
			return nil
		}
		c, err := e.find(id)
		if err != nil {
			return err
		}
		if c.Status != engine.StatusRunning && c.Status != engine.StatusFrozen && c.Status != engine.StatusStopped {
			return fmt.Errorf("%w: it is %s", engine.ErrNotRunning, c.Status)
		}
		if c.Status == engine.StatusRunning {
			e.emit(engine.EventFrozen, c)
			e.emit(engine.EventThawed, c)
		}
		files := e.files[c.Name]
		size := int64(len(files))
		if options.MaxBytes > 0 && size > options.MaxBytes {
			return fmt.Errorf("%w: %d bytes", engine.ErrSnapshotTooLarge, size)
		}
		made = engine.Snapshot{
			Name: options.Name, Labels: maps.Clone(options.Labels), ImageID: e.images[c.Name], Bytes: size, Exclusive: size, Files: 1, Frozen: time.Millisecond, Created: time.Now(),
			Memory: options.Memory,
		}
		e.snapshots[options.Name] = memorySnapshot{made, files}
		return nil
	})
	return made, err
}

// KeepsMemory is for containers with the runtime runsc.
func (e *memoryEngine) KeepsMemory(runtime string) error {
	if runtime != "runsc" {
		return fmt.Errorf("%w: of %q", engine.ErrNoMemory, runtime)
	}
	return nil
}

// loseMemory has processes of snapshots not be restored any more, for that reason.
func (e *memoryEngine) loseMemory(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.restoreError = reason
}

func (e *memoryEngine) RemoveSnapshot(ctx context.Context, name string) error {
	return e.around(ctx, callRemoveSnapshot, name, func() error {
		delete(e.snapshots, name)
		return nil
	})
}

func (e *memoryEngine) ListSnapshots(ctx context.Context) (list []engine.Snapshot, err error) {
	err = e.around(ctx, callListSnapshots, "", func() error {
		for _, s := range e.snapshots {
			list = append(list, s.Snapshot)
		}
		return nil
	})
	return list, err
}

func (e *memoryEngine) Rollback(ctx context.Context, id, name string) error {
	return e.around(ctx, callRollback, name, func() error {
		c, err := e.find(id)
		if err != nil {
			return err
		}
		s, there := e.snapshots[name]
		switch {
		case !there:
			return fmt.Errorf("%w: %s", engine.ErrNoSnapshot, name)
		case s.ImageID != e.images[c.Name]:
			return fmt.Errorf("%w: of another image", engine.ErrInvalid)
		}
		was := c.Status
		c.Status, c.Ports = engine.StatusStopped, nil
		e.files[c.Name] = s.files
		c.Restored, c.RestoreError = s.Memory && e.restoreError == "", ""
		if s.Memory {
			c.RestoreError = e.restoreError
		}
		if was == engine.StatusRunning || was == engine.StatusFrozen {
			e.emit(engine.EventExited, c)
		}
		return nil
	})
}

func (e *memoryEngine) Suspend(ctx context.Context, id string, _ time.Duration) error {
	return e.around(ctx, callSuspend, id, func() error {
		c, err := e.find(id)
		if err != nil {
			return err
		}
		switch c.Status {
		case engine.StatusStopped:
		case engine.StatusRunning, engine.StatusFrozen:
			c.Status, c.Ports, c.Restored, c.RestoreError = engine.StatusStopped, nil, false, ""
			e.emit(engine.EventExited, c)
		default:
			return fmt.Errorf("%w: it is %s", engine.ErrNotRunning, c.Status)
		}
		return nil
	})
}

func (e *memoryEngine) Hibernate(ctx context.Context, id string) error {
	return e.around(ctx, callHibernate, id, func() error {
		c, err := e.find(id)
		if err != nil {
			return err
		}
		switch {
		case c.Status == engine.StatusStopped && (c.Restored || c.RestoreError != ""):
		case c.Status == engine.StatusFrozen:
			c.Status, c.Ports = engine.StatusStopped, nil
			c.Restored, c.RestoreError = e.restoreError == "", e.restoreError
			e.emit(engine.EventExited, c)
		default:
			return fmt.Errorf("%w: it is %s", engine.ErrNotRunning, c.Status)
		}
		return nil
	})
}

// CompareSnapshots shows a file for each letter of the text that the first one does not have.
func (e *memoryEngine) CompareSnapshots(ctx context.Context, from, to string, visit func(engine.FileChange) error) error {
	before, after := "", ""
	err := e.around(ctx, callCompare, to, func() error {
		first, hasFirst := e.snapshots[from]
		second, hasSecond := e.snapshots[to]
		if !hasSecond || from != "" && !hasFirst {
			return fmt.Errorf("%w: %s, %s", engine.ErrNoSnapshot, from, to)
		}
		before, after = first.files, second.files
		return nil
	})
	for _, letter := range after {
		if err == nil && !strings.ContainsRune(before, letter) {
			err = visit(engine.FileChange{Path: "/" + string(letter), Kind: engine.ChangeAdded, Type: engine.TypeFile})
		}
	}
	return err
}

// ArchiveSnapshot writes the paths that CompareSnapshots has.
func (e *memoryEngine) ArchiveSnapshot(ctx context.Context, from, to string, w io.Writer) error {
	return e.CompareSnapshots(ctx, from, to, func(f engine.FileChange) error {
		_, err := io.WriteString(w, f.Path)
		return err
	})
}

// DigestSnapshot returns the text.
func (e *memoryEngine) DigestSnapshot(ctx context.Context, name string) (digest string, err error) {
	err = e.around(ctx, callDigest, name, func() error {
		s, there := e.snapshots[name]
		if !there {
			return fmt.Errorf("%w: %s", engine.ErrNoSnapshot, name)
		}
		digest = "sha256:" + s.files
		return nil
	})
	return digest, err
}

func (e *memoryEngine) ExportSnapshot(ctx context.Context, name, ref string) (engine.Image, error) {
	err := e.around(ctx, callExport, name, func() error {
		if _, there := e.snapshots[name]; !there {
			return fmt.Errorf("%w: %s", engine.ErrNoSnapshot, name)
		}
		return nil
	})
	return engine.Image{ID: "sha256:" + name, Names: []string{ref}}, err
}
