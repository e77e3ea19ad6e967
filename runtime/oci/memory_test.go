package oci_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

// rememberSite is a place for containers whose processes can be kept. The runtime that can has to
// be there: make test leaves these tests out, by their names.
func rememberSite(t testing.TB) site {
	t.Helper()
	if !slices.Contains(runtimes(t), "runsc") {
		t.Fatal("these tests need runsc in PATH: scripts/gvisor.sh --build makes it, and prints its directory")
	}
	return newSite(t, "runsc")
}

// remembering is a container that counts connections in its memory and in its files.
func remembering(imageID string) engine.ContainerSpec {
	spec := probe(imageID, "remember", "/count", "1")
	spec.Network, spec.Publish, spec.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	return spec
}

// ask returns what a container that counts answers.
func ask(t testing.TB, e *oci.Engine, id string) string {
	t.Helper()
	return answer(inspect(t, e, id).Ports[8080])
}

func wantAnswer(t testing.TB, e *oci.Engine, id, when, want string) {
	t.Helper()
	if got := ask(t, e, id); got != want {
		t.Errorf("%s the container answers %q, want %q", when, got, want)
	}
}

func remember(t testing.TB, e *oci.Engine, id, name string) engine.Snapshot {
	t.Helper()
	taken, err := e.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: name, Memory: true})
	if err != nil {
		t.Fatalf("TakeSnapshot: %v", err)
	}
	return taken
}

// TestGVisor has what containers with gVisor alone can do.
func TestGVisor(t *testing.T) {
	t.Run("memory", testMemory)
	t.Run("memory is refused", testMemoryRefuses)
	t.Run("memory is lost", testMemoryLost)
	t.Run("memory and kills", testMemoryKilled)
	t.Run("memory and machine id", testMemoryMachineID)
	t.Run("hibernation", testHibernate)
	t.Run("hibernation is lost", testHibernateLost)
	t.Run("hibernation and kills", testHibernateKilled)
}

// testMemory: the processes of a container go on from a snapshot, with their open files, as
// often as it is rolled back, also after another Engine was opened.
func testMemory(t *testing.T) {
	for name, change := range map[string]func(*site){
		"unbounded": func(*site) {},
		"bounded":   func(s *site) { s.DiskBytes, s.KeepFiles = 64<<20, true },
	} {
		t.Run(name, func(t *testing.T) {
			s := rememberSite(t)
			change(&s)
			e := s.mustOpen(t)
			id := start(t, e, remembering(loadProbe(t, e)))
			awaitLog(t, e, id, "ready")
			wantAnswer(t, e, id, "at first", "1 1 1 y")
			taken := remember(t, e, id, "one")
			if !taken.Memory || taken.Frozen <= 0 || taken.Bytes < 1<<20 || taken.Exclusive < 1<<20 {
				t.Errorf("the snapshot is %+v", taken)
			}
			wantAnswer(t, e, id, "after the snapshot", "2 2 2 y")
			if err := e.Freeze(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			remember(t, e, id, "two")
			if c := inspect(t, e, id); c.Status != engine.StatusFrozen {
				t.Errorf("after a snapshot of a container that is frozen, it is %s", c.Status)
			}
			for _, round := range []struct{ name, want string }{{"one", "2 2 2 y"}, {"two", "3 3 3 y"}, {"one", "2 2 2 y"}} {
				if err := e.Rollback(t.Context(), id, round.name); err != nil {
					t.Fatal(err)
				}
				closeEngine(t, e)
				e = s.mustOpen(t)
				if err := e.Start(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				if c := inspect(t, e, id); c.Status != engine.StatusRunning || !c.Restored || c.RestoreError != "" {
					t.Errorf("after a rollback the container is %+v", c)
				}
				wantAnswer(t, e, id, "rolled back to "+round.name, round.want)
			}
			wantAnswer(t, e, id, "at last", "3 3 3 y")
			removeSnapshots(t, e)
			if left, err := filepath.Glob(filepath.Join(s.Directory, "images/snapshots/*/memory")); err != nil || len(left) > 0 {
				t.Errorf("of snapshots that were removed there is %v, %v", left, err)
			}
			removeAll(t, e)
			closeEngine(t, e)
			s.checkNothingLeft(t)
		})
	}
}

// testMemoryRefuses: memory is kept of nothing but what can be restored, and given back to
// nothing but the container that it is of.
func testMemoryRefuses(t *testing.T) {
	s := rememberSite(t)
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)
	id, other := start(t, e, remembering(imageID)), start(t, e, remembering(imageID))
	plain := probe(imageID, "sleep")
	plain.Runtime = "crun"
	crun := start(t, e, plain)
	created, err := e.Create(t.Context(), remembering(imageID))
	if err != nil {
		t.Fatal(err)
	}
	for what, attempt := range map[string]struct {
		id      string
		options engine.SnapshotOptions
		want    error
	}{
		"of a container of crun":             {crun, engine.SnapshotOptions{Memory: true}, engine.ErrNoMemory},
		"of a container that is not started": {created, engine.SnapshotOptions{Memory: true}, engine.ErrNotRunning},
		"that is too large":                  {id, engine.SnapshotOptions{Memory: true, MaxBytes: 1 << 20}, engine.ErrSnapshotTooLarge},
		"of its files alone":                 {id, engine.SnapshotOptions{}, engine.ErrInvalid},
	} {
		attempt.options.Name = "refused"
		if _, err := e.TakeSnapshot(t.Context(), attempt.id, attempt.options); !errors.Is(err, attempt.want) {
			t.Errorf("a snapshot %s: %v, want %v", what, err, attempt.want)
		}
	}
	if err := errors.Join(e.KeepsMemory(""), e.KeepsMemory("runsc")); err != nil {
		t.Error(err)
	}
	if err := e.KeepsMemory("crun"); !errors.Is(err, engine.ErrNoMemory) {
		t.Errorf("memory of containers of crun: %v", err)
	}
	awaitLog(t, e, id, "ready")
	wantAnswer(t, e, id, "at first", "1 1 1 y")
	remember(t, e, id, "one")
	if err := e.Rollback(t.Context(), other, "one"); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a rollback of another container: %v", err)
	}
	for field, value := range map[string]string{"Runtime": "runsc 0", "Processor": "fpu no-such-feature"} {
		closeEngine(t, e)
		restore := s.changeMemory(t, field, value)
		e = s.mustOpen(t)
		if err := e.Rollback(t.Context(), id, "one"); !errors.Is(err, engine.ErrNoMemory) || !strings.Contains(err.Error(), strings.TrimPrefix(value, "fpu ")) {
			t.Errorf("a rollback to memory of another %s: %v", field, err)
		}
		if c := inspect(t, e, id); c.Status != engine.StatusRunning {
			t.Errorf("after a rollback that was refused, the container is %s", c.Status)
		}
		closeEngine(t, e)
		restore()
		e = s.mustOpen(t)
	}
	wantAnswer(t, e, id, "after rollbacks that were refused", "2 2 2 y")
	removeSnapshots(t, e)
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// changeMemory changes what the record of the only snapshot says about its memory, until restore is
// called.
func (s site) changeMemory(t *testing.T, field, value string) (restore func()) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Directory, "images/snapshots/*/snapshot.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("there are the records %v, %v", found, err)
	}
	before, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(before, &record); err != nil {
		t.Fatal(err)
	}
	record["Memory"].(map[string]any)[field] = value
	changed, err := json.Marshal(record)
	if err == nil {
		err = os.WriteFile(found[0], changed, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(found[0], before, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// testMemoryLost: a container whose processes cannot be restored starts on the files of the
// snapshot, and the reason is known.
func testMemoryLost(t *testing.T) {
	s := rememberSite(t)
	e := s.mustOpen(t)
	id := start(t, e, remembering(loadProbe(t, e)))
	awaitLog(t, e, id, "ready")
	wantAnswer(t, e, id, "at first", "1 1 1 y")
	remember(t, e, id, "one")
	wantAnswer(t, e, id, "after the snapshot", "2 2 2 y")
	written, err := filepath.Glob(filepath.Join(s.Directory, "images/snapshots/*/memory/checkpoint.img"))
	if err != nil || len(written) != 1 {
		t.Fatalf("there is the memory %v, %v", written, err)
	}
	if err := os.WriteFile(written[0], []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	rollback(t, e, id, "one")
	if c := inspect(t, e, id); c.Status != engine.StatusRunning || c.Restored || c.RestoreError == "" || len(c.RestoreError) > 1<<10 {
		t.Errorf("the container is %+v", c)
	}
	var got string
	wait.Until(t, "the container has started again", func() bool {
		got = ask(t, e, id)
		return got == "1 2 1 y"
	}, func() any { return got })
	rollback(t, e, id, "one")
	if err := e.RemoveSnapshot(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// testMemoryKilled: a service that is killed while it takes a snapshot of memory leaves the
// container running, and either the snapshot or nothing of it; one that is killed while it rolls
// back leaves a container that is given the processes of the snapshot in the end.
func testMemoryKilled(t *testing.T) {
	s := rememberSite(t)
	e := s.mustOpen(t)
	id := start(t, e, remembering(loadProbe(t, e)))
	awaitLog(t, e, id, "ready")
	wantAnswer(t, e, id, "at first", "1 1 1 y")
	remember(t, e, id, "one")
	closeEngine(t, e)
	for failpoint, want := range map[string]int{
		oci.HeldFailpoint: 1, oci.CheckpointFailpoint: 1, oci.CopiedFailpoint: 1, oci.TakenFailpoint: 2,
	} {
		s.snapshotter(t, failpoint, "remember", id, failpoint)
		e = s.mustOpen(t)
		all, err := e.ListSnapshots(t.Context())
		if directories := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); err != nil || len(all) != want || len(directories) != want {
			t.Errorf("%s: there are the snapshots %v and the directories %v, %v", failpoint, all, directories, err)
		}
		if c := inspect(t, e, id); c.Status != engine.StatusRunning {
			t.Errorf("%s: the container is %s", failpoint, c.Status)
		}
		if got := ask(t, e, id); !strings.HasSuffix(got, " y") {
			t.Errorf("%s: the container answers %q", failpoint, got)
		}
		if err := e.RemoveSnapshot(t.Context(), failpoint); err != nil {
			t.Error(err)
		}
		closeEngine(t, e)
	}
	for _, failpoint := range []string{oci.KilledFailpoint, oci.RolledBackFailpoint, oci.RestoredFailpoint} {
		call := "rollback"
		if failpoint == oci.RestoredFailpoint {
			call = "start"
			e = s.mustOpen(t)
			if err := e.Rollback(t.Context(), id, "one"); err != nil {
				t.Fatal(err)
			}
			closeEngine(t, e)
		}
		s.snapshotter(t, failpoint, call, id, "one")
		e = s.mustOpen(t)
		if failpoint == oci.KilledFailpoint {
			if err := e.Rollback(t.Context(), id, "one"); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, e, id, failpoint, "2 2 2 y")
		closeEngine(t, e)
	}
	e = s.mustOpen(t)
	removeSnapshots(t, e)
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// testMemoryMachineID: the processes of a container go on that has written a machine id,
// which its image does not have, and those of one that was given a machine id of its own.
func testMemoryMachineID(t *testing.T) {
	s := rememberSite(t)
	e := s.mustOpen(t)
	id := start(t, e, remembering(loadProbe(t, e)))
	awaitLog(t, e, id, "ready")
	wantAnswer(t, e, id, "at first", "1 1 1 y")
	remember(t, e, id, "one")
	directory := s.onlySnapshot(t, "tree") + "/etc"
	if err := os.MkdirAll(directory, 0o755); err != nil { //nolint:gosec // as in images
		t.Fatal(err)
	}
	if err := os.WriteFile(directory+"/machine-id", []byte(strings.Repeat("0", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	memory := s.onlySnapshot(t, "memory/checkpoint.img")
	restored := func(name, want string) {
		t.Helper()
		rollback(t, e, id, name)
		if c := inspect(t, e, id); c.Status != engine.StatusRunning || !c.Restored || c.RestoreError != "" {
			t.Errorf("rolled back to %s the container is %+v", name, c)
		}
		wantAnswer(t, e, id, "rolled back to "+name, want)
	}
	restored("one", "2 2 2 y")
	remember(t, e, id, "two")
	restored("two", "3 3 3 y")
	if err := os.WriteFile(memory, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	rollback(t, e, id, "one") // a start of its program, which has a machine id
	wait.Until(t, "the container has started again", func() bool { return strings.HasSuffix(ask(t, e, id), " y") })
	remember(t, e, id, "three")
	restored("three", "2 3 2 y")
	removeSnapshots(t, e)
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// onlySnapshot returns the path of something of the only snapshot.
func (s site) onlySnapshot(t *testing.T, name string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Directory, "images/snapshots/*", name))
	if err != nil || len(found) != 1 {
		t.Fatalf("there are %v, %v", found, err)
	}
	return found[0]
}

// hibernate freezes a container and has its processes written to the disk.
func hibernate(t testing.TB, e *oci.Engine, id string) {
	t.Helper()
	if err := errors.Join(e.Freeze(t.Context(), id), e.Hibernate(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	if c := inspect(t, e, id); c.Status != engine.StatusStopped {
		t.Errorf("the hibernated container is %s", c.Status)
	}
}

// restart starts a container, whose processes have to go on.
func restart(t testing.TB, e *oci.Engine, id string) {
	t.Helper()
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if c := inspect(t, e, id); c.Status != engine.StatusRunning || !c.Restored || c.RestoreError != "" {
		t.Errorf("the container that was started again is %+v", c)
	}
}

// wantMemories looks how many containers have processes on the disk.
func (s site) wantMemories(t testing.TB, when string, want int) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Directory, "containers/*/memory"))
	if err != nil || len(found) != want {
		t.Errorf("%s there are the memories %v, %v; want %d", when, found, err, want)
	}
}

// testHibernate: the processes of a container go on from the disk, with their files, as often as it
// is hibernated, also after another Engine was opened and after a reboot of the host, and no
// snapshot is seen.
func testHibernate(t *testing.T) {
	for name, change := range map[string]func(*site){
		"unbounded": func(*site) {},
		"bounded":   func(s *site) { s.DiskBytes, s.KeepFiles = 64<<20, true },
	} {
		t.Run(name, func(t *testing.T) {
			s := rememberSite(t)
			change(&s)
			e := s.mustOpen(t)
			id := start(t, e, remembering(loadProbe(t, e)))
			awaitLog(t, e, id, "ready")
			for round, want := range []string{"1 1 1 y", "2 2 2 y", "3 3 3 y"} {
				wantAnswer(t, e, id, "before it is hibernated", want)
				hibernate(t, e, id)
				s.wantMemories(t, "hibernated", 1)
				if list, err := e.ListSnapshots(t.Context()); err != nil || len(list) > 0 {
					t.Errorf("there are the snapshots %v, %v", list, err)
				}
				switch round {
				case 1:
					closeEngine(t, e)
					e = s.mustOpen(t)
				case 2:
					closeEngine(t, e)
					s.reboot(t)
					e = s.mustOpen(t)
				}
				restart(t, e, id)
				s.wantMemories(t, "started", 0)
			}
			wantAnswer(t, e, id, "at last", "4 4 4 y")
			remember(t, e, id, "one")
			hibernate(t, e, id)
			rollback(t, e, id, "one") // in place of what it was hibernated with
			s.wantMemories(t, "rolled back", 0)
			wantAnswer(t, e, id, "rolled back", "5 5 5 y")
			hibernate(t, e, id)
			if err := e.Suspend(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
			s.wantMemories(t, "suspended", 0)
			removeSnapshots(t, e)
			removeAll(t, e)
			closeEngine(t, e)
			s.checkNothingLeft(t)
		})
	}
}

// testHibernateLost: a container whose processes cannot be restored starts on its files, and the
// reason is known; one whose memory cannot be written stays frozen, and goes on.
func testHibernateLost(t *testing.T) {
	s := rememberSite(t)
	e := s.mustOpen(t)
	id := start(t, e, remembering(loadProbe(t, e)))
	awaitLog(t, e, id, "ready")
	wantAnswer(t, e, id, "at first", "1 1 1 y")
	if err := e.Freeze(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Hibernate(gone, id); !errors.Is(err, context.Canceled) {
		t.Errorf("for a caller that has gone: %v", err)
	}
	s.wantMemories(t, "for a caller that has gone", 0)
	// One that goes in the middle of the write: the write ends, and nothing of it is left.
	going, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Hibernate(going, id) }()
	wait.Until(t, "the memory is being written", func() bool {
		begun, err := filepath.Glob(filepath.Join(s.Directory, "containers/*/memory/*"))
		return err == nil && len(begun) > 0 || len(ended) > 0
	})
	cancel()
	if err := wait.For(t, "Hibernate returns", ended); err == nil { // it was faster
		restart(t, e, id)
		if err := e.Freeze(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("for a caller that goes: %v", err)
	}
	s.wantMemories(t, "for a caller that goes", 0)
	if c := inspect(t, e, id); c.Status != engine.StatusFrozen {
		t.Errorf("a container that was not hibernated is %s", c.Status)
	}
	if err := e.Thaw(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, e, id, "thawed", "2 2 2 y")
	hibernate(t, e, id)
	written, err := filepath.Glob(filepath.Join(s.Directory, "containers/*/memory/checkpoint.img"))
	if err != nil || len(written) != 1 {
		t.Fatalf("there is the memory %v, %v", written, err)
	}
	if err := os.WriteFile(written[0], []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if c := inspect(t, e, id); c.Status != engine.StatusRunning || c.Restored || c.RestoreError == "" {
		t.Errorf("the container is %+v", c)
	}
	s.wantMemories(t, "started on its files", 0)
	var got string
	wait.Until(t, "the container has started again", func() bool {
		got = ask(t, e, id)
		return got == "1 3 1 y"
	}, func() any { return got })
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// testHibernateKilled: a service that is killed while it hibernates a container leaves one that is
// frozen or one that is stopped, and one that is killed while it starts such a container leaves it
// to the next: its processes go on in the end.
func testHibernateKilled(t *testing.T) {
	s := rememberSite(t)
	e := s.mustOpen(t)
	id := start(t, e, remembering(loadProbe(t, e)))
	awaitLog(t, e, id, "ready")
	wantAnswer(t, e, id, "at first", "1 1 1 y")
	for _, round := range []struct {
		failpoint string
		left      engine.Status
		thaws     bool
		want      string
	}{
		{oci.MemoryWrittenFailpoint, engine.StatusFrozen, true, "2 2 2 y"},
		{oci.MemoryWrittenFailpoint, engine.StatusFrozen, false, "3 3 3 y"},
		{oci.HibernatedFailpoint, engine.StatusStopped, false, "4 4 4 y"},
		{oci.RestoredFailpoint, engine.StatusStopped, false, "5 5 5 y"},
	} {
		if err := e.Freeze(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		call := "hibernate"
		if round.failpoint == oci.RestoredFailpoint {
			hibernate(t, e, id)
			call = "start"
		}
		closeEngine(t, e)
		s.snapshotter(t, round.failpoint, call, id, "")
		e = s.mustOpen(t)
		if c := inspect(t, e, id); c.Status != round.left {
			t.Errorf("%s: the container is %s, want %s", round.failpoint, c.Status, round.left)
		}
		if round.thaws {
			if err := e.Thaw(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		} else {
			if err := e.Hibernate(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			restart(t, e, id)
		}
		s.wantMemories(t, round.failpoint, 0)
		wantAnswer(t, e, id, round.failpoint, round.want)
	}
	removeAll(t, e)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}
