package box_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box"
	"sandbox.internal/server/lifecycle"
)

// keeping is an engine whose snapshots are what it was given, and whose calls fail with err.
type keeping struct {
	list    []engine.Snapshot
	id      string
	options engine.SnapshotOptions
	err     error
	lacks   map[engine.Ability]bool
}

func (k *keeping) CheckAbility(ability engine.Ability) error {
	if k.lacks[ability] {
		return fmt.Errorf("%w: an engine lacks it", errors.ErrUnsupported)
	}
	return nil
}

func (*keeping) KeepsMemory(string) error { return engine.ErrNoMemory }

func (k *keeping) TakeSnapshot(_ context.Context, id string, options engine.SnapshotOptions) (engine.Snapshot, error) {
	k.id, k.options = id, options
	return engine.Snapshot{Name: options.Name, Labels: options.Labels, ImageID: "image", Bytes: 3, Exclusive: 2, Frozen: time.Second}, k.err
}

func (k *keeping) RemoveSnapshot(context.Context, string) error { return k.err }

func (k *keeping) ListSnapshots(context.Context) ([]engine.Snapshot, error) { return k.list, k.err }

func (k *keeping) Suspend(context.Context, string, time.Duration) error { return k.err }

func (k *keeping) Hibernate(context.Context, string) error { return k.err }

func (k *keeping) CompareSnapshots(_ context.Context, from, to string, visit func(engine.FileChange) error) error {
	return errors.Join(k.err, visit(engine.FileChange{Path: from + " " + to, Kind: engine.ChangeAdded, Type: engine.TypeFile, Size: 3}))
}

func (k *keeping) ArchiveSnapshot(context.Context, string, string, io.Writer) error { return k.err }

func (k *keeping) DigestSnapshot(_ context.Context, name string) (string, error) {
	return "sha256:" + name, k.err
}

func (k *keeping) ExportSnapshot(_ context.Context, name, ref string) (engine.Image, error) {
	return engine.Image{ID: name, Names: []string{ref}}, k.err
}

func (k *keeping) Rollback(context.Context, string, string) error { return k.err }

// TestSnapshotAtTheEngine: it is named after its id, carries the service's labels, and is found by
// both.
func TestSnapshotAtTheEngine(t *testing.T) {
	e := &keeping{}
	boxes := box.Unopened(box.Options{Snapshots: e, Instance: "one"})
	files, err := boxes.TakeSnapshot(t.Context(), lifecycle.Record{Box: "box"}, lifecycle.Snapshot{ID: "id", Name: "before"}, 7)
	if want := (lifecycle.SnapshotFiles{EngineImage: "image", Size: 3, ExclusiveSize: 2, Frozen: time.Second}); err != nil || files != want {
		t.Errorf("got %+v (%v), want %+v", files, err, want)
	}
	if e.id != "sandbox-box" || e.options.Name != "sandbox-snapshot-id" || e.options.MaxBytes != 7 {
		t.Errorf("the engine was asked for %+v of %s", e.options, e.id)
	}
	mine := engine.Snapshot{Name: e.options.Name, Labels: e.options.Labels, Bytes: 4}
	foreign := engine.Snapshot{Name: "sandbox-snapshot-foreign", Labels: map[string]string{lifecycle.LabelPrefix + "instance": "two", lifecycle.LabelPrefix + "snapshot": "foreign"}}
	renamed := engine.Snapshot{Name: "other", Labels: e.options.Labels}
	e.list = []engine.Snapshot{foreign, mine, renamed}
	if found, err := boxes.Snapshots(t.Context()); err != nil || len(found) != 1 || found["id"].Size != 4 || found["id"].Record == nil || found["id"].Record.Name != "before" {
		t.Errorf("found %+v (%v)", found, err)
	}
	record := lifecycle.Record{Box: "box", Spec: lifecycle.Spec{SnapshotID: "id"}, Sandbox: lifecycle.Sandbox{Entrypoint: []string{"sleep"}}}
	if spec, err := box.ContainerSpec(boxes, record, "image", "directory"); err != nil || spec.Snapshot != "sandbox-snapshot-id" {
		t.Errorf("the container begins with %q (%v)", spec.Snapshot, err)
	}
}

// TestLackingAbilities: what an engine cannot do is unsupported, by name, and the rest is not.
func TestLackingAbilities(t *testing.T) {
	if err := box.Unopened(box.Options{}).SnapshotsUnsupported(); !isUnsupported(err) {
		t.Errorf("without snapshots: %v", err)
	}
	for _, tt := range []struct {
		lacks engine.Ability
		check func(*box.Containers) error
	}{
		{engine.AbilitySnapshots, (*box.Containers).SnapshotsUnsupported},
		{engine.AbilityComparison, (*box.Containers).ComparisonUnsupported},
		{engine.AbilitySuspension, (*box.Containers).SuspensionUnsupported},
		{engine.AbilitySuspension, (*box.Containers).HibernationUnsupported},
	} {
		lacking := box.Unopened(box.Options{Snapshots: &keeping{lacks: map[engine.Ability]bool{tt.lacks: true}}})
		if err := tt.check(lacking); !isUnsupported(err) {
			t.Errorf("an engine without %s: %v", tt.lacks, err)
		}
		if err := lacking.SnapshotsUnsupported(); tt.lacks != engine.AbilitySnapshots && err != nil {
			t.Errorf("an engine without %s: %v", tt.lacks, err)
		}
		if err := tt.check(box.Unopened(box.Options{Snapshots: &keeping{}})); err != nil {
			t.Errorf("an engine with %s: %v", tt.lacks, err)
		}
	}
}

func isUnsupported(err error) bool {
	var known *lifecycle.Error
	return errors.As(err, &known) && known.Kind == lifecycle.KindUnsupported
}

// TestSnapshotErrors: an engine's errors are failures with a reason, or of a kind to act on.
func TestSnapshotErrors(t *testing.T) {
	e := &keeping{}
	boxes := box.Unopened(box.Options{Snapshots: e})
	for _, tt := range []struct {
		from   error
		kind   error
		reason lifecycle.Reason
	}{
		{engine.ErrNotFound, lifecycle.ErrNoBox, ""},
		{engine.ErrNotRunning, lifecycle.ErrBoxNotAlive, ""},
		{engine.ErrUnavailable, lifecycle.ErrBoxUnavailable, ""},
		{engine.ErrSnapshotTooLarge, nil, lifecycle.ReasonSnapshotTooLarge},
		{engine.ErrNoRoom, nil, lifecycle.ReasonNoRoom},
		{engine.ErrBusy, nil, lifecycle.ReasonSandboxBusy},
		{engine.ErrInvalid, nil, lifecycle.ReasonSnapshotFailed},
	} {
		e.err = fmt.Errorf("snapshot: %w", tt.from)
		_, err := boxes.TakeSnapshot(t.Context(), lifecycle.Record{}, lifecycle.Snapshot{ID: "id"}, 0)
		var failure *lifecycle.BoxFailure
		if tt.kind != nil && !errors.Is(err, tt.kind) || tt.reason != "" && (!errors.As(err, &failure) || failure.Reason != tt.reason) {
			t.Errorf("%v became %#v", tt.from, err)
		}
	}
	for _, refused := range []error{engine.ErrNoSnapshot, engine.ErrInvalid, engine.ErrNoRoom} {
		e.err = refused
		var failure *lifecycle.BoxFailure
		if err := boxes.Rollback(t.Context(), lifecycle.Record{}, "id"); !errors.As(err, &failure) || failure.Reason != lifecycle.ReasonRollbackFailed {
			t.Errorf("%v became %#v", refused, err)
		}
	}
}

// TestCompareAtTheEngine: snapshots are named after their ids, and what cannot be compared is a
// conflict.
func TestCompareAtTheEngine(t *testing.T) {
	e := &keeping{}
	boxes := box.Unopened(box.Options{Snapshots: e, Instance: "one"})
	for from, want := range map[string]string{"": " sandbox-snapshot-b", "a": "sandbox-snapshot-a sandbox-snapshot-b"} {
		var got lifecycle.FileChange
		err := boxes.CompareSnapshots(t.Context(), from, "b", func(f lifecycle.FileChange) error { got = f; return nil })
		if err != nil || got != (lifecycle.FileChange{Path: want, Kind: "added", Type: "file", Size: 3}) {
			t.Errorf("%q: %+v, %v", from, got, err)
		}
	}
	for _, tt := range []struct {
		err  error
		kind lifecycle.Kind
	}{{engine.ErrNoSnapshot, lifecycle.KindNoSnapshot}, {engine.ErrInvalid, lifecycle.KindConflict}, {engine.ErrSnapshotTooLarge, lifecycle.KindConflict}} {
		e.err = fmt.Errorf("archive: %w", tt.err)
		var known *lifecycle.Error
		if err := boxes.ArchiveSnapshot(t.Context(), "a", "b", io.Discard); !errors.As(err, &known) || known.Kind != tt.kind {
			t.Errorf("%v: %v, want %s", tt.err, err, tt.kind)
		}
	}
}
