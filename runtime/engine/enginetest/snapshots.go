package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// snapshots returns the engine as one with snapshots. Where it has none, or not of such containers,
// it must refuse them, and ok is false.
func (s *suite) snapshots(t *testing.T) (_ engine.Snapshots, ok bool) {
	t.Helper()
	snapshots, ok := s.engine.(engine.Snapshots)
	if !ok {
		spec := s.spec("sleep")
		spec.Snapshot = "any"
		_, err := s.engine.Create(t.Context(), spec)
		wantError(t, err, engine.ErrInvalid, "snapshot")
		return nil, false
	}
	if unsupported := snapshots.CheckAbility(engine.AbilitySnapshots); unsupported != nil {
		_, err := snapshots.ListSnapshots(t.Context())
		wantError(t, err, errors.ErrUnsupported)
		return nil, false
	}
	if s.ownKernel {
		id := s.start(t, s.spec("sleep"))
		_, err := snapshots.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: "enginetest-" + uuid.NewString()})
		wantError(t, err, engine.ErrInvalid, "snapshot")
		return nil, false
	}
	return snapshots, true
}

// take takes a snapshot, which is removed after the test.
func (s *suite) take(t *testing.T, snapshots engine.Snapshots, id string) engine.Snapshot {
	t.Helper()
	name := "enginetest-" + uuid.NewString()
	t.Cleanup(func() {
		if err := snapshots.RemoveSnapshot(context.WithoutCancel(t.Context()), name); err != nil {
			t.Errorf("remove snapshot: %v", err)
		}
	})
	taken, err := snapshots.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: name, Labels: s.labels()})
	if err != nil {
		t.Fatalf("TakeSnapshot: %v", err)
	}
	if taken.Name != name || taken.ImageID != s.imageID || taken.Labels[runLabel] != s.run || taken.Created.IsZero() {
		t.Errorf("the snapshot is %+v", taken)
	}
	return taken
}

// asKept returns what a snapshot has of the lines of a digest, which say what a container has
// written.
func (s *suite) asKept(lines ...string) []string {
	if !s.keptAsLayers {
		return lines
	}
	lost := strings.NewReplacer(`user.test="value"`, "", `user.test="of a directory"`, "", "1000000000123456789", "1000000000000000000", "sparse=true", "")
	for i, line := range lines {
		lines[i] = lost.Replace(line)
	}
	return lines
}

// from is a container that begins with a snapshot.
func (s *suite) from(snapshot engine.Snapshot, words ...string) engine.ContainerSpec {
	spec := s.spec(words...)
	spec.Snapshot = snapshot.Name
	return spec
}

// testSnapshot: what a container has written is there in others, and what these write is theirs
// alone.
func (s *suite) testSnapshot(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	id := s.start(t, s.spec("tree", "/data"))
	s.waitLog(t, id, "made")
	first := s.take(t, snapshots, id)
	made := s.output(t, s.from(first, "digest", "/data"))
	for _, want := range s.asKept(
		`"/data/file" -rw-r----- 0:0 [user.test="value"] 1000000000123456789 7`, `"/data/kept" drwxr-x--- 0:0 [user.test="of a directory"] 1000000000123456789`,
		`"/data/kept/link" -rw-r----- 0:0 [user.test="value"] is "/data/file"`, `"/data/program" ugrwx--x--x 7:8`, `to /etc/passwd`,
		`"/data/fifo" prw--w--w-`, "67108874", "sparse=true",
	) {
		if !strings.Contains(made, want) {
			t.Errorf("the files lack %s:\n%s", want, made)
		}
	}
	least, most := int64(1), int64(1<<20)
	if s.keptAsLayers { // with a hole of 64 MiB
		least, most = 64<<20, 65<<20
	}
	if first.Files < 15 && !s.keptAsLayers || first.Bytes < least || first.Bytes > most || first.Exclusive > first.Bytes || first.Frozen <= 0 || first.Frozen > wait.Patience() {
		t.Errorf("the snapshot is %+v", first)
	}

	fork := s.start(t, s.from(first, "prune", "/data"))
	s.waitLog(t, fork, "made")
	second := s.take(t, snapshots, fork)
	pruned := s.output(t, s.from(second, "digest", "/data"))
	for _, gone := range []string{"removed", "emptied/", "replaced/"} {
		if strings.Contains(pruned, gone) {
			t.Errorf("%s is there again:\n%s", gone, pruned)
		}
	}
	for _, want := range []string{`"/data/emptied" drwx------`, `"/data/replaced" -rw-------`, `"/data/kept" drwx--x--x`, `"/data/kept/file"`, `"/data/new"`} {
		if !strings.Contains(pruned, want) {
			t.Errorf("the files lack %s:\n%s", want, pruned)
		}
	}
	if mode := s.output(t, s.from(second, "mode", "/")); mode != "drwxr-x--x\n" && !s.keptAsLayers {
		t.Errorf("the root has the mode %s", mode)
	}
	if again := s.output(t, s.from(first, "digest", "/data")); again != made {
		t.Errorf("the first snapshot has changed, from\n%s\nto\n%s", made, again)
	}
	// Snapshots are removed while others, and containers, lie on them.
	for _, one := range []engine.Snapshot{first, second} {
		if err := snapshots.RemoveSnapshot(t.Context(), one.Name); err != nil {
			t.Fatalf("RemoveSnapshot: %v", err)
		}
		if err := snapshots.RemoveSnapshot(t.Context(), one.Name); err != nil {
			t.Errorf("RemoveSnapshot of a missing one: %v", err)
		}
	}
	third := s.take(t, snapshots, fork)
	if again := s.output(t, s.from(third, "digest", "/data")); again != pruned {
		t.Errorf("the container that lies on removed snapshots has not\n%s\nbut\n%s", pruned, again)
	}
}

// testSnapshotDiff: a snapshot is compared with its image and with another one, and the archives
// have what the comparisons say.
func (s *suite) testSnapshotDiff(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	visit := func(engine.FileChange) error { return nil }
	if snapshots.CheckAbility(engine.AbilityComparison) != nil {
		wantError(t, snapshots.CompareSnapshots(t.Context(), "", "any", visit), errors.ErrUnsupported)
		wantError(t, snapshots.ArchiveSnapshot(t.Context(), "", "any", io.Discard), errors.ErrUnsupported)
		return
	}
	id := s.start(t, s.spec("tree", "/data"))
	s.waitLog(t, id, "made")
	first := s.take(t, snapshots, id)
	fork := s.start(t, s.from(first, "prune", "/data"))
	s.waitLog(t, fork, "made")
	second := s.take(t, snapshots, fork)
	for _, tt := range []struct {
		from, to string
		want     []string
		refused  string
	}{
		{"", first.Name, []string{"added /data directory", "added /data/fifo other", "added /data/kept/link file"}, "modified /data"},
		{first.Name, second.Name, []string{"removed /data/removed file", "added /data/new file", "modified /data/kept directory"}, "/data/kept/file"},
		{second.Name, first.Name, []string{"added /data/removed file", "removed /data/new file"}, "/data/kept/file"},
		{second.Name, second.Name, nil, "/"},
	} {
		var lines []string
		err := snapshots.CompareSnapshots(t.Context(), tt.from, tt.to, func(f engine.FileChange) error {
			lines = append(lines, fmt.Sprintf("%s %s %s", f.Kind, f.Path, f.Type))
			return nil
		})
		all := strings.Join(lines, "\n")
		for _, want := range tt.want {
			if !slices.Contains(lines, want) {
				t.Errorf("from %q to %q: no %s:\n%s", tt.from, tt.to, want, all)
			}
		}
		if err != nil || strings.Contains(all, tt.refused) {
			t.Errorf("from %q to %q: %v, %s in\n%s", tt.from, tt.to, err, tt.refused, all)
		}
		var archive bytes.Buffer
		if err := snapshots.ArchiveSnapshot(t.Context(), tt.from, tt.to, &archive); err != nil || archive.Len()%512 != 0 {
			t.Errorf("from %q to %q: an archive of %d bytes, %v", tt.from, tt.to, archive.Len(), err)
		}
	}
	for _, names := range [][2]string{{"", "none"}, {"none", first.Name}, {first.Name, "none"}} {
		err := snapshots.CompareSnapshots(t.Context(), names[0], names[1], visit)
		wantError(t, err, engine.ErrNoSnapshot, "none")
	}
}

// testSnapshotExport: a container of the image of a snapshot has its files, and none of the
// environment of the container that it was taken of.
func (s *suite) testSnapshotExport(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	spec := s.spec("tree", "/data")
	spec.Env = map[string]string{"GIVEN": "secret"}
	id := s.start(t, spec)
	s.waitLog(t, id, "made")
	first := s.take(t, snapshots, id)
	fork := s.start(t, s.from(first, "prune", "/data"))
	s.waitLog(t, fork, "made")
	second := s.take(t, snapshots, fork)
	for _, one := range []engine.Snapshot{first, second} {
		ref := "sandbox/" + one.Name + ":1"
		image, err := snapshots.ExportSnapshot(t.Context(), one.Name, ref)
		if err != nil {
			t.Fatalf("ExportSnapshot: %v", err)
		}
		t.Cleanup(func() {
			if err := s.engine.(engine.ImageStore).RemoveImage(context.WithoutCancel(t.Context()), ref); err != nil {
				t.Errorf("remove the image: %v", err)
			}
		})
		if found, err := s.engine.FindImage(t.Context(), ref); err != nil || found.ID != image.ID || len(image.Names) != 1 {
			t.Errorf("the image is %+v, found %+v, %v", image, found, err)
		}
		again, err := snapshots.ExportSnapshot(t.Context(), one.Name, ref)
		if err != nil || again.ID != image.ID {
			t.Errorf("a second export: %+v, %v", again, err)
		}
		of := s.spec("digest", "/data")
		of.ImageID = image.ID
		want, got := s.output(t, s.from(one, "digest", "/data")), s.output(t, of)
		if want = withoutSockets(want); got != want {
			t.Errorf("the image has\n%s\nand the snapshot\n%s", got, want)
		}
	}
	for _, ref := range []string{"UPPER", "a b", "sandbox/x@sha256:" + strings.Repeat("0", 64), ""} {
		_, err := snapshots.ExportSnapshot(t.Context(), first.Name, ref)
		wantError(t, err, engine.ErrInvalid, "name")
	}
	_, err := snapshots.ExportSnapshot(t.Context(), "none", "sandbox/x:1")
	wantError(t, err, engine.ErrNoSnapshot, "none")
}

// withoutSockets leaves out what an image cannot have.
func withoutSockets(digest string) string {
	var kept []string
	for line := range strings.Lines(digest) {
		if !strings.Contains(line, `" S`) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// testSnapshotWhileWriting: a snapshot is of one moment, and its container runs on.
func (s *suite) testSnapshotWhileWriting(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	id := s.start(t, s.spec("journal", "/first", "/second"))
	s.waitLog(t, id, "journal")
	for range 3 {
		taken := s.take(t, snapshots, id)
		read := func(path string) int {
			numbers, err := strconv.Atoi(strings.TrimSpace(s.output(t, s.from(taken, "numbers", path))))
			if err != nil {
				t.Fatal(err)
			}
			return numbers
		}
		if first, second := read("/first"), read("/second"); first < 100 || first-second < 0 || first-second > 1 {
			t.Errorf("the snapshot has %d numbers in the first file and %d in the second", first, second)
		}
		if c := s.inspect(t, id); c.Status != engine.StatusRunning {
			t.Errorf("the container is %s", c.Status)
		}
	}
}

// testSnapshotShares: files that have not changed take no room again.
func (s *suite) testSnapshotShares(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	id := s.start(t, s.spec("many", "/data", "50", "100000"))
	s.waitLog(t, id, "made")
	first := s.take(t, snapshots, id)
	if first.Exclusive < 50*100_000 {
		t.Errorf("the first snapshot has %d bytes of its own", first.Exclusive)
	}
	var next engine.Snapshot
	wait.Until(t, "the last change of the files is past", func() bool {
		next = s.take(t, snapshots, id)
		return next.Exclusive < 100_000
	})
	if next.Bytes != first.Bytes || next.Files != first.Files {
		t.Errorf("the first snapshot is %+v, the next one %+v", first, next)
	}
	if got, want := s.output(t, s.from(next, "digest", "/data")), s.output(t, s.from(first, "digest", "/data")); got != want {
		t.Errorf("the next snapshot has\n%s\nwant\n%s", got, want)
	}
}

// testRollback: a container gets the files of a snapshot, and starts on them.
func (s *suite) testRollback(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	spec := s.spec("again", "/starts")
	spec.Publish, spec.PublishIP = []int{8080}, "127.0.0.1"
	s.start(t, spec)
	id := spec.Name // it may have another id after a rollback
	s.waitLog(t, id, "start 1\n")
	taken := s.take(t, snapshots, id)
	for range 2 {
		if err := snapshots.Rollback(t.Context(), id, taken.Name); err != nil {
			t.Fatalf("Rollback: %v", err)
		}
		if c := s.inspect(t, id); c.Status != engine.StatusStopped || len(c.Ports) > 0 {
			t.Errorf("after a rollback the container is %s, with ports %v", c.Status, c.Ports)
		}
	}
	stopped := s.take(t, snapshots, id)
	if stopped.Files != 0 || stopped.Frozen != 0 {
		t.Errorf("the snapshot of a container that was just rolled back is %+v", stopped)
	}
	for round := range 2 {
		if err := s.engine.Start(t.Context(), id); err != nil {
			t.Fatalf("Start: %v", err)
		}
		wait.Until(t, "the container has started on the file of the snapshot", func() bool {
			starts := strings.Count(s.logs(t, id, 1000), "start 2\n")
			return starts == round+1 || starts == 1 && s.keptAsLayers // the log is of this container alone
		})
		if c := s.inspect(t, id); c.Status != engine.StatusRunning || c.Ports[8080] == 0 {
			t.Errorf("the container is %s, with ports %v", c.Status, c.Ports)
		}
		if err := s.engine.Freeze(t.Context(), id); err != nil {
			t.Fatalf("Freeze: %v", err)
		}
		if frozen := s.take(t, snapshots, id); frozen.Frozen != 0 || frozen.Files == 0 && !s.keptAsLayers {
			t.Errorf("the snapshot of a frozen container is %+v", frozen)
		}
		if c := s.inspect(t, id); c.Status != engine.StatusFrozen {
			t.Errorf("the container is %s", c.Status)
		}
		if err := snapshots.Rollback(t.Context(), id, taken.Name); err != nil { // of one that is frozen
			t.Fatalf("Rollback: %v", err)
		}
	}
	if got := s.output(t, s.from(stopped, "cat", "/starts")); got != "1" {
		t.Errorf("a snapshot of a container that was rolled back has %q, want 1", got)
	}
}

// testSuspend: a container whose processes have ended starts on the files that they have written,
// and each start counts.
func (s *suite) testSuspend(t *testing.T) {
	snapshots, ok := s.engine.(engine.Snapshots) // also of containers with a kernel of their own
	if !ok {
		return
	}
	if snapshots.CheckAbility(engine.AbilitySuspension) != nil {
		wantError(t, snapshots.Suspend(t.Context(), "any", 0), errors.ErrUnsupported)
		wantError(t, snapshots.Hibernate(t.Context(), "any"), errors.ErrUnsupported)
		return
	}
	spec := s.spec("again", "/starts")
	spec.Publish, spec.PublishIP = []int{8080}, "127.0.0.1"
	if err := snapshots.Suspend(t.Context(), s.create(t, s.spec("sleep")), 0); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("suspending a container that was not started: %v, want ErrNotRunning", err)
	}
	if err := snapshots.Suspend(t.Context(), "none", 0); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("suspending a missing container: %v, want ErrNotFound", err)
	}
	id := s.start(t, spec)
	for round := 1; round <= 3; round++ {
		s.waitLog(t, id, fmt.Sprintf("start %d\n", round))
		if round == 2 { // of one that is frozen
			if err := s.engine.Freeze(t.Context(), id); err != nil {
				t.Fatalf("Freeze: %v", err)
			}
		}
		for range 2 {
			if err := snapshots.Suspend(t.Context(), id, 0); err != nil {
				t.Fatalf("Suspend: %v", err)
			}
			if c := s.inspect(t, id); c.Status != engine.StatusStopped || len(c.Ports) > 0 {
				t.Errorf("the suspended container is %s, with ports %v", c.Status, c.Ports)
			}
		}
		if err := s.engine.Start(t.Context(), id); err != nil {
			t.Fatalf("Start: %v", err)
		}
	}
	s.waitLog(t, id, "start 4\n")
	if c := s.inspect(t, id); c.Status != engine.StatusRunning || c.Ports[8080] == 0 {
		t.Errorf("the container is %s, with ports %v", c.Status, c.Ports)
	}
}

// testHibernate: a container that is not frozen, or whose runtime keeps no processes, stays as it
// is; any other has no processes, and goes on with those that it had.
func (s *suite) testHibernate(t *testing.T) {
	snapshots, ok := s.engine.(engine.Snapshots)
	if !ok || snapshots.CheckAbility(engine.AbilitySuspension) != nil {
		return
	}
	spec := s.spec("again", "/starts")
	spec.Publish, spec.PublishIP = []int{8080}, "127.0.0.1"
	if err := snapshots.Hibernate(t.Context(), "none"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("hibernating a missing container: %v, want ErrNotFound", err)
	}
	id := s.start(t, spec)
	s.waitLog(t, id, "start 1\n")
	keeps := snapshots.KeepsMemory("") == nil
	want := engine.ErrNotRunning
	if !keeps {
		want = engine.ErrNoMemory
	}
	if err := snapshots.Hibernate(t.Context(), id); !errors.Is(err, want) || s.inspect(t, id).Status != engine.StatusRunning {
		t.Errorf("hibernating a container that runs: %v, want %v; it is %s", err, want, s.inspect(t, id).Status)
	}
	if err := s.engine.Freeze(t.Context(), id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	if !keeps {
		if err := snapshots.Hibernate(t.Context(), id); !errors.Is(err, engine.ErrNoMemory) || s.inspect(t, id).Status != engine.StatusFrozen {
			t.Errorf("hibernating a container of another runtime: %v, and it is %s", err, s.inspect(t, id).Status)
		}
		return
	}
	for range 2 {
		if err := snapshots.Hibernate(t.Context(), id); err != nil {
			t.Fatalf("Hibernate: %v", err)
		}
		if c := s.inspect(t, id); c.Status != engine.StatusStopped || len(c.Ports) > 0 {
			t.Errorf("the hibernated container is %s, with ports %v", c.Status, c.Ports)
		}
	}
	if err := s.engine.Start(t.Context(), id); err != nil {
		t.Fatalf("Start: %v", err)
	}
	if c := s.inspect(t, id); c.Status != engine.StatusRunning || c.Ports[8080] == 0 || !c.Restored {
		t.Errorf("the container is %+v", c)
	}
}

// testSnapshotRefuses: what cannot be is refused, and leaves nothing.
func (s *suite) testSnapshotRefuses(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	id := s.start(t, s.spec("many", "/data", "50", "100000"))
	s.waitLog(t, id, "made")
	take := func(id string, options engine.SnapshotOptions) error {
		_, err := snapshots.TakeSnapshot(t.Context(), id, options)
		return err
	}
	name := "enginetest-" + uuid.NewString()
	wantError(t, take(id, engine.SnapshotOptions{Name: name, MaxBytes: 1 << 20}), engine.ErrSnapshotTooLarge)
	wantError(t, take(id, engine.SnapshotOptions{}), engine.ErrInvalid)
	wantError(t, take(id, engine.SnapshotOptions{Name: "../" + name}), engine.ErrInvalid)
	wantError(t, take("enginetest-none", engine.SnapshotOptions{Name: name}), engine.ErrNotFound)
	wantError(t, take(s.create(t, s.spec("sleep")), engine.SnapshotOptions{Name: name}), engine.ErrNotRunning)
	spec := s.spec("sleep")
	spec.Snapshot = name
	_, err := s.engine.Create(t.Context(), spec)
	wantError(t, err, engine.ErrNoSnapshot)
	wantError(t, snapshots.Rollback(t.Context(), id, name), engine.ErrNoSnapshot)
	wantError(t, snapshots.Rollback(t.Context(), "enginetest-none", name), engine.ErrNotFound)
	if c := s.inspect(t, id); c.Status != engine.StatusRunning {
		t.Errorf("the container is %s", c.Status)
	}
	all, err := snapshots.ListSnapshots(t.Context())
	if err != nil {
		t.Fatalf("ListSnapshots: %v", err)
	}
	for _, one := range all {
		if one.Name == name {
			t.Errorf("a snapshot that was refused is there: %+v", one)
		}
	}
	taken := s.take(t, snapshots, id)
	again, err := snapshots.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: taken.Name})
	if err != nil || again.Created != taken.Created {
		t.Errorf("taken again under the same name it is %+v, %v", again, err)
	}
}

// testSnapshotUnseen: watchers see neither a freeze nor a thaw.
func (s *suite) testSnapshotUnseen(t *testing.T) {
	snapshots, ok := s.snapshots(t)
	if !ok {
		return
	}
	spec := s.spec("sleep")
	spec.Labels["enginetest-unseen"] = uuid.NewString()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	ready, events := make(chan struct{}), make(chan engine.EventType, 100)
	ended := make(chan error, 1)
	id := s.start(t, spec)
	go func() {
		ended <- s.engine.Watch(ctx, spec.Labels, func() { close(ready) }, func(e engine.Event) { events <- e.Type })
	}()
	<-ready
	s.take(t, snapshots, id)
	if err := s.engine.Stop(t.Context(), id, time.Minute); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	for event := range events {
		if event == engine.EventFrozen || event == engine.EventThawed {
			t.Errorf("a watcher got %s", event)
		}
		if event == engine.EventExited {
			break
		}
	}
	cancel()
	<-ended
}
