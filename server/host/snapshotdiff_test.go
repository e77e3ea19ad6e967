package host_test

import (
	"context"
	"io"
	"slices"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// TestSnapshotDiff: the list ends at its limit, and snapshots stay while they are compared.
func TestSnapshotDiff(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.write(container(id), "ab")
	first := m.keep(id)
	m.engine.write(container(id), "abcd")
	second := m.keep(id)
	for _, tt := range []struct {
		id, to string
		limit  int
		want   lifecycle.SnapshotDiff
	}{
		{first.ID, "", 2, lifecycle.SnapshotDiff{Items: []lifecycle.FileChange{{Path: "/a", Kind: "added", Type: "file"}, {Path: "/b", Kind: "added", Type: "file"}}}},
		{first.ID, second.ID, 1, lifecycle.SnapshotDiff{Items: []lifecycle.FileChange{{Path: "/c", Kind: "added", Type: "file"}}, Truncated: true}},
		{second.ID, first.ID, 1, lifecycle.SnapshotDiff{}},
	} {
		got, err := m.host.DiffSnapshot(t.Context(), tt.id, tt.to, tt.limit)
		if err != nil || !slices.Equal(got.Items, tt.want.Items) || got.Truncated != tt.want.Truncated {
			t.Errorf("%+v: got %+v, %v", tt, got, err)
		}
	}
	for _, ids := range [][2]string{{"none", ""}, {first.ID, "none"}} {
		if _, err := m.host.DiffSnapshot(t.Context(), ids[0], ids[1], 1); kindOf(err) != lifecycle.KindNoSnapshot {
			t.Errorf("%q: %v", ids, err)
		}
	}
	// A client that reads nothing keeps the snapshot, and a third archive waits for its end.
	archives := make([]io.ReadCloser, 2)
	for i := range archives {
		archive, err := m.host.ArchiveSnapshotDiff(t.Context(), first.ID, second.ID)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = archive
	}
	if _, err := m.host.ArchiveSnapshotDiff(t.Context(), first.ID, ""); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("a third archive: %v", err)
	}
	if err := m.host.DeleteSnapshot(context.Background(), first.ID); err != nil {
		t.Fatal(err)
	}
	if content, err := io.ReadAll(archives[0]); err != nil || string(content) != "/c/d" {
		t.Errorf("the archive is %q, %v", content, err)
	}
	if !slices.Contains(m.engine.snapshotNames(), engineName(first.ID)) {
		t.Error("the snapshot was removed while it was read")
	}
	for _, archive := range archives {
		if err := archive.Close(); err != nil {
			t.Error(err)
		}
	}
	m.awaitRemoval(first.ID)
}

// TestSnapshotDiffFails: an engine without an answer is unavailable, and the end of the service
// ends an archive.
func TestSnapshotDiffFails(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.write(container(id), "ab")
	snapshot := m.keep(id)
	archive, err := m.host.ArchiveSnapshotDiff(t.Context(), snapshot.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Error(err)
	}
	m.engine.failBefore(callCompare, func(context.Context, string) error { return engine.ErrUnavailable })
	if _, err := m.host.DiffSnapshot(t.Context(), snapshot.ID, "", 1); kindOf(err) != lifecycle.KindUnavailable {
		t.Errorf("without an engine: %v", err)
	}
}

// TestExportSnapshot: a snapshot stays while an image is made of it.
func TestExportSnapshot(t *testing.T) {
	m := newMachine(t).start()
	snapshot := m.keep(m.running())
	m.engine.failBefore(callExport, func(ctx context.Context, _ string) error {
		if err := m.host.DeleteSnapshot(ctx, snapshot.ID); err != nil {
			t.Error(err)
		}
		return nil
	})
	image, err := m.host.ExportSnapshot(t.Context(), snapshot.ID, "team/prepared:1")
	if err != nil || image.ID != "sha256:"+engineName(snapshot.ID) || !slices.Equal(image.Names, []string{"team/prepared:1"}) {
		t.Errorf("%+v, %v", image, err)
	}
	m.awaitRemoval(snapshot.ID)
	if _, err := m.host.ExportSnapshot(t.Context(), snapshot.ID, "team/prepared:1"); kindOf(err) != lifecycle.KindNoSnapshot {
		t.Errorf("a snapshot that is gone: %v", err)
	}
}
