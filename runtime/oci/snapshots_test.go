package oci_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/program"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// eachSnapshotting runs a test on engines that differ in what snapshots depend on.
func eachSnapshotting(t *testing.T, test func(t *testing.T, s site)) {
	for name, change := range map[string]func(*site){
		"unbounded":          func(s *site) { s.Users, s.Chain = oci.UserNamespacesOn, 3 },
		"unbounded, as root": func(s *site) { s.Users = oci.UserNamespacesOff },
		"bounded, kept":      func(s *site) { s.Users, s.DiskBytes, s.KeepFiles, s.Chain = oci.UserNamespacesOn, 64<<20, true, 1 },
		"bounded":            func(s *site) { s.Users, s.DiskBytes = oci.UserNamespacesOff, 64<<20 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "crun")
			change(&s)
			test(t, s)
			s.checkNothingLeft(t)
			if left := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(left) > 0 {
				t.Errorf("the directory of snapshots has %v", left)
			}
		})
	}
}

func take(t testing.TB, e *oci.Engine, id, name string) engine.Snapshot {
	t.Helper()
	taken, err := e.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: name})
	if err != nil {
		t.Fatalf("TakeSnapshot: %v", err)
	}
	return taken
}

func rollback(t testing.TB, e *oci.Engine, id, name string) {
	t.Helper()
	err := e.Rollback(t.Context(), id, name)
	if err == nil {
		err = e.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatalf("Rollback and Start: %v", err)
	}
}

func removeSnapshots(t testing.TB, e *oci.Engine) {
	t.Helper()
	all, err := e.ListSnapshots(t.Context())
	for _, one := range all {
		err = errors.Join(err, e.RemoveSnapshot(t.Context(), one.Name))
	}
	if err != nil {
		t.Error(err)
	}
}

// snapshotterProgram builds the program of snapshotter once. It looks for its failpoints in its
// working directory, which each test has for itself.
var snapshotterProgram = sync.OnceValue(func() error {
	return program.BuildWithFailpoints(context.Background(), programs, "failpoints", "sandbox.internal/runtime/oci/testdata/snapshotter")
})

// snapshotter runs an Engine's call in another process, which is killed at the failpoint.
func (s site) snapshotter(t *testing.T, failpoint, call, id, name string) {
	t.Helper()
	if err := snapshotterProgram(); err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	armed := program.Failpoints(filepath.Join(directory, "failpoints"))
	if err := armed.Arm(failpoint, 1); err != nil {
		t.Fatal(err)
	}
	options, err := json.Marshal(map[string]any{
		"Directory": s.Directory, "RunDirectory": s.RunDirectory, "Bridge": s.Bridge, "Keeper": s.Keeper, "Runtime": s.Runtime,
		"UserNamespaces": s.Users, "DiskBytes": s.DiskBytes, "KeepFiles": s.KeepFiles, "Chain": s.Chain,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(programs, "snapshotter"), string(options), call, id, name)
	command.Dir = directory
	printed, err := command.CombinedOutput()
	if left, counted := armed.Left(failpoint); err == nil || counted != nil || left != 0 {
		t.Fatalf("%s: the process was not killed there: %v\n%s", failpoint, errors.Join(err, counted), printed)
	}
}

// TestSnapshotKilled: a service that is killed while it takes a snapshot leaves the container
// running, and either the snapshot or nothing of it.
func TestSnapshotKilled(t *testing.T) {
	eachSnapshotting(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		id := start(t, e, probe(loadProbe(t, e), "journal", "/first", "/second"))
		awaitLog(t, e, id, "journal")
		closeEngine(t, e)
		for failpoint, want := range map[string]int{oci.HeldFailpoint: 0, oci.CopiedFailpoint: 0, oci.TakenFailpoint: 1} {
			s.snapshotter(t, failpoint, "take", id, failpoint)
			e = s.mustOpen(t)
			if c := inspect(t, e, id); c.Status != engine.StatusRunning {
				t.Errorf("%s: the container is %s", failpoint, c.Status)
			}
			all, err := e.ListSnapshots(t.Context())
			if directories := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); err != nil || len(all) != want || len(directories) != want {
				t.Errorf("%s: there are the snapshots %v and the directories %v, %v", failpoint, all, directories, err)
			}
			removeSnapshots(t, e)
			before := take(t, e, id, "before")
			wait.Until(t, "the container writes", func() bool {
				after := take(t, e, id, "after")
				if err := e.RemoveSnapshot(t.Context(), "after"); err != nil {
					t.Fatal(err)
				}
				return after.Bytes > before.Bytes
			})
			removeSnapshots(t, e)
			closeEngine(t, e)
		}
		e = s.mustOpen(t)
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestRollbackKilled: a service that is killed while it rolls a container back leaves it with its
// own files or those of the snapshot, and the call can be repeated.
func TestRollbackKilled(t *testing.T) {
	eachSnapshotting(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		spec := kept(loadProbe(t, e))
		id := start(t, e, spec)
		awaitLog(t, e, id, "start 1")
		take(t, e, id, "one")
		for round, failpoint := range []string{oci.KilledFailpoint, oci.RolledBackFailpoint} {
			closeEngine(t, e)
			s.snapshotter(t, failpoint, "rollback", id, "one")
			e = s.mustOpen(t)
			c, disk := inspect(t, e, id), filepath.Join(s.Directory, "containers", id, "disk")
			_, err := os.Lstat(disk)
			if failpoint == oci.KilledFailpoint && (c.Status != engine.StatusExited || err != nil) ||
				failpoint == oci.RolledBackFailpoint && (c.Status != engine.StatusStopped || !errors.Is(err, os.ErrNotExist)) {
				t.Errorf("%s: the container is %s, and its files: %v", failpoint, c.Status, err)
			}
			if failpoint == oci.KilledFailpoint {
				if err := e.Rollback(t.Context(), id, "one"); err != nil {
					t.Fatal(err)
				}
			}
			if err := e.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			wait.Until(t, "the container has started on the snapshot", func() bool {
				log, err := e.Logs(t.Context(), id, 1000)
				if err != nil {
					t.Fatal(err)
				}
				return strings.Count(log, "start 2\n") == round+1
			})
		}
		removeSnapshots(t, e)
		if directories := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(directories) != 1 {
			t.Errorf("a container lies on a snapshot that was removed, and there are %v", directories)
		}
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestSuspendKilled: a service that is killed while it suspends a container leaves one that runs,
// or whose files are kept, and the call can be repeated.
func TestSuspendKilled(t *testing.T) {
	eachSnapshotting(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		id := start(t, e, kept(loadProbe(t, e)))
		awaitLog(t, e, id, "start 1")
		for round, failpoint := range []string{oci.KeepingFailpoint, oci.SuspendedFailpoint} {
			closeEngine(t, e)
			s.snapshotter(t, failpoint, "suspend", id, "")
			e = s.mustOpen(t)
			want := engine.StatusRunning
			if failpoint == oci.SuspendedFailpoint {
				want = engine.StatusExited
			}
			if c := inspect(t, e, id); c.Status != want {
				t.Errorf("%s: the container is %s, want %s", failpoint, c.Status, want)
			}
			if err := e.Suspend(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
			if c := inspect(t, e, id); c.Status != engine.StatusStopped {
				t.Errorf("%s: the suspended container is %s", failpoint, c.Status)
			}
			taken := take(t, e, id, "suspended")
			if taken.Files == 0 || taken.Frozen != 0 {
				t.Errorf("%s: the snapshot of the suspended container is %+v", failpoint, taken)
			}
			removeSnapshots(t, e)
			if err := e.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			awaitLog(t, e, id, fmt.Sprintf("start %d", round+2))
		}
		// A start after it that is given up loses nothing.
		if err := errors.Join(e.Suspend(t.Context(), id, 0), e.Start(t.Context(), id)); err != nil {
			t.Fatal(err)
		}
		awaitLog(t, e, id, "start 4")
		if err := errors.Join(e.Stop(t.Context(), id, 0), e.Start(t.Context(), id)); err != nil {
			t.Fatal(err)
		}
		awaitLog(t, e, id, "start 5")
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestSnapshotOfStopped: what a container kept across a reboot can be taken, also if it lies on a
// snapshot, and a container that was rolled back outlives a reboot if it is to.
func TestSnapshotOfStopped(t *testing.T) {
	eachKeeping(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		imageID := loadProbe(t, e)
		id := start(t, e, kept(imageID))
		awaitLog(t, e, id, "start 1")
		closeEngine(t, e)
		s.reboot(t, id)
		e = s.mustOpen(t)
		take(t, e, id, "stopped")
		rollback(t, e, id, "stopped")
		awaitLog(t, e, id, "start 2")
		closeEngine(t, e)
		s.reboot(t, id)
		e = s.mustOpen(t)
		take(t, e, id, "above")
		if err := e.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		awaitLog(t, e, id, "start 3")
		spec := probe(imageID, "cat", "/written")
		spec.Snapshot = "above"
		if log, _ := output(t, e, spec); log != "2" {
			t.Errorf("the snapshot has %q, want 2", log)
		}
		port := inspect(t, e, id).Ports[8080]
		rollback(t, e, id, "above")
		if got := inspect(t, e, id).Ports[8080]; got != port {
			t.Errorf("after a rollback the published port is %d, and was %d", got, port)
		}
		if err := errors.Join(e.Suspend(t.Context(), id, 0), e.Start(t.Context(), id)); err != nil {
			t.Fatal(err)
		}
		if got := inspect(t, e, id).Ports[8080]; got != port {
			t.Errorf("after a stop and a start the published port is %d, and was %d", got, port)
		}
		removeSnapshots(t, e)
		removeAll(t, e)
		closeEngine(t, e)
	})
}

// TestSnapshotFullDisk: a snapshot for which there is no room leaves nothing, and its container
// runs on.
func TestSnapshotFullDisk(t *testing.T) {
	s := newSite(t, "crun")
	disk := smallDisk(t, s)
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	id := occupy(t, e, loadProbe(t, e))
	fill(t, disk)
	_, err := e.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: "one"})
	if !errors.Is(err, engine.ErrNoRoom) {
		t.Errorf("a snapshot on a full disk: %v", err)
	}
	if c := inspect(t, e, id); c.Status != engine.StatusRunning {
		t.Errorf("the container is %s", c.Status)
	}
	if left := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(left) > 0 {
		t.Errorf("the directory of snapshots has %v", left)
	}
	remove(t, e, id)
}

// TestSnapshotLeavesRoom: a snapshot that would fit takes no room that containers may need.
func TestSnapshotLeavesRoom(t *testing.T) {
	s := newSite(t, "crun")
	disk := smallDisk(t, s)
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	id := occupy(t, e, loadProbe(t, e))
	var info unix.Statfs_t
	if err := unix.Statfs(disk, &info); err != nil {
		t.Fatal(err)
	}
	const fits = 42 << 20 // the 40 MiB of the container, and less than a twentieth of the disk
	rest := filepath.Join(disk, "rest")
	if err := os.WriteFile(rest, make([]byte, int64(info.Bavail)*info.Bsize-fits), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := e.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: "one"})
	if !errors.Is(err, engine.ErrNoRoom) || !strings.Contains(err.Error(), "too few") {
		t.Errorf("a snapshot that leaves too little: %v", err)
	}
	if left := entries(t, filepath.Join(s.Directory, "images"), "snapshots"); len(left) > 0 {
		t.Errorf("the directory of snapshots has %v", left)
	}
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a snapshot has room, once what the first has copied is removed behind", func() bool {
		_, err := e.TakeSnapshot(t.Context(), id, engine.SnapshotOptions{Name: "one"})
		return err == nil
	})
	removeSnapshots(t, e)
	remove(t, e, id)
}

// TestSnapshotKeepsImage: an image that a snapshot adds to is not removed, and another image has no
// use for it.
func TestSnapshotKeepsImage(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	id := start(t, e, probe(imageID, "tree", "/data"))
	awaitLog(t, e, id, "made")
	take(t, e, id, "one")
	remove(t, e, id)
	otherID := loadProbeOf(t, e, "2")
	spec := probe(otherID, "sleep")
	spec.Snapshot = "one"
	if _, err := e.Create(t.Context(), spec); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a container of another image: %v", err)
	}
	if _, err := e.PruneImages(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	images, err := e.ListImages(t.Context())
	if err != nil || !slices.ContainsFunc(images, func(i engine.Image) bool { return i.ID == imageID && i.InUse }) {
		t.Errorf("the snapshot's image is not in use: %+v, %v", images, err)
	}
	spec.ImageID = imageID
	spec.Entrypoint = []string{"/probe", "cat", "/data/file"}
	if log, _ := output(t, e, spec); log != "content" {
		t.Errorf("it has %q", log)
	}
	removeSnapshots(t, e)
}

// TestSnapshotRandom makes random changes in containers, takes snapshots of them, rolls them back,
// and begins others with the snapshots. Each has the files that its snapshot was taken with.
func TestSnapshotRandom(t *testing.T) {
	numbers := random.New(t)
	eachSnapshotting(t, func(t *testing.T, s site) {
		e := s.mustOpen(t)
		defer closeEngine(t, e)
		w := newWanderer(t, e, numbers)
		w.begin("")
		for range 40 {
			w.step()
		}
		for name, want := range w.digests {
			w.begin(name)
			if w.digest != want {
				t.Errorf("the snapshot %s has the digest %s, want %s", name, w.digest, want)
			}
		}
		removeSnapshots(t, e)
		removeAll(t, e)
	})
}

// wanderer has one container at a time.
type wanderer struct {
	t       *testing.T
	e       *oci.Engine
	imageID string
	numbers *rand.Rand
	orders  string // a directory that the container has mounted
	digests map[string]string

	id     string
	starts int // of the container
	order  int // the last one since then
	digest string
}

func newWanderer(t *testing.T, e *oci.Engine, numbers *rand.Rand) *wanderer {
	t.Helper()
	w := &wanderer{t: t, e: e, imageID: loadProbe(t, e), numbers: numbers, orders: filepath.Join(t.TempDir(), "orders"), digests: map[string]string{}}
	if err := os.Mkdir(w.orders, 0o755); err != nil { //nolint:gosec // a container reads it
		t.Fatal(err)
	}
	return w
}

func (w *wanderer) step() {
	w.t.Helper()
	switch choice := w.numbers.IntN(10); {
	case choice < 5 || len(w.digests) == 0 && choice < 8:
		w.change()
	case choice < 8:
		name := "s" + strconv.Itoa(len(w.digests))
		take(w.t, w.e, w.id, name)
		w.digests[name] = w.digest
	case len(w.digests) == 0:
	case choice == 8:
		w.rollback(w.any())
	default:
		w.begin(w.any())
	}
}

// any returns one of the snapshots.
func (w *wanderer) any() string { return "s" + strconv.Itoa(w.numbers.IntN(len(w.digests))) }

// change has the container make some changes.
func (w *wanderer) change() {
	w.t.Helper()
	w.order++
	next := filepath.Join(w.orders, ".next")
	if err := os.WriteFile(next, []byte(strconv.FormatUint(w.numbers.Uint64(), 10)), 0o644); err != nil { //nolint:gosec // a container reads it
		w.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(w.orders, strconv.Itoa(w.order))); err != nil {
		w.t.Fatal(err)
	}
	w.await(fmt.Sprintf("done %d ", w.order))
}

// begin replaces the container by one that begins with a snapshot, or with none.
func (w *wanderer) begin(snapshot string) {
	w.t.Helper()
	removeAll(w.t, w.e)
	w.clear()
	spec := probe(w.imageID, "mutate", "/work", "/orders", "8")
	spec.Snapshot, spec.KeepFiles = snapshot, true
	spec.Mounts = []engine.Mount{{HostPath: w.orders, Target: "/orders", ReadOnly: true}}
	w.starts, w.id = 0, start(w.t, w.e, spec)
	w.begun(snapshot)
}

func (w *wanderer) rollback(snapshot string) {
	w.t.Helper()
	if err := w.e.Rollback(w.t.Context(), w.id, snapshot); err != nil {
		w.t.Fatal(err)
	}
	w.clear()
	if err := w.e.Start(w.t.Context(), w.id); err != nil {
		w.t.Fatal(err)
	}
	w.begun(snapshot)
}

// clear removes all orders.
func (w *wanderer) clear() {
	w.t.Helper()
	for ; w.order > 0; w.order-- {
		if err := os.Remove(filepath.Join(w.orders, strconv.Itoa(w.order))); err != nil {
			w.t.Fatal(err)
		}
	}
}

// begun waits for the start of the container, and compares its files.
func (w *wanderer) begun(snapshot string) {
	w.t.Helper()
	w.starts++
	w.await("begin ")
	if want := w.digests[snapshot]; snapshot != "" && w.digest != want {
		w.t.Fatalf("a container that begins with snapshot %s has the digest %s, want %s", snapshot, w.digest, want)
	}
}

// await waits for a line of the last start, and takes the digest that it has.
func (w *wanderer) await(prefix string) {
	w.t.Helper()
	wait.Until(w.t, "the container prints "+prefix, func() bool {
		log, err := w.e.Logs(w.t.Context(), w.id, 1000)
		if err != nil {
			w.t.Fatal(err)
		}
		lives := strings.Split(log, "begin ")
		if len(lives) != w.starts+1 {
			return false
		}
		for line := range strings.Lines("begin " + lives[w.starts]) {
			if digest, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(digest, "\n") {
				w.digest = strings.TrimSpace(digest)
				return true
			}
		}
		if c := inspect(w.t, w.e, w.id); c.Status != engine.StatusRunning {
			w.t.Fatalf("the container is %s:\n%s", c.Status, log)
		}
		return false
	})
}
