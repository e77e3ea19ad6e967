package local_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/program"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

var treeOperations = flag.Int("tree", 60, "how many operations TestSnapshotTree makes")

// Of how many sandboxes and snapshots TestSnapshotTree has at once at most.
const (
	treeSandboxes = 4
	treeSnapshots = 10
)

// TestSnapshotTree makes random changes in sandboxes, takes snapshots, rolls back, forks, creates
// from snapshots and from images of snapshots, and deletes, and kills the service, the keeper or
// both in the middle of some of that. The files of each sandbox are those that they must be, with
// owners, modes, times, attributes, hard links and holes, and when all is deleted, nothing is left.
func TestSnapshotTree(t *testing.T) {
	t.Parallel()
	on := newMachines()
	// Snapshots are merged as soon as a sandbox lies on three of them.
	directory := t.TempDir()
	if err := program.BuildWith(t.Context(), directory, "sandbox.internal/runtime/oci.defaultChain=3", "sandbox.internal/server/cmd/sandbox-server"); err != nil {
		t.Fatal(err)
	}
	other := []string{"sh", "-c", `server=$0; shift; exec "$server" "$@"`, filepath.Join(directory, "sandbox-server")}
	s := conformance.Start(t, onLocal(on), conformance.Plan{Program: true, Wrapper: other})
	tree := &tree{
		t: t, s: s, machine: on.of(s.Instance), random: random.New(t), program: conformance.Build(t, "sandbox.internal/runtime/engine/enginetest/probe"),
		sandboxes: map[string]string{}, snapshots: map[string]string{},
	}
	tree.add(s.Running(t, tree.request()), "")
	for range *treeOperations {
		tree.step()
	}
	t.Logf("%d operations, %d of them with a kill", *treeOperations, tree.kills)
	tree.checkDigests()
	for _, id := range slices.Sorted(maps.Keys(tree.sandboxes)) {
		tree.check(id)
		tree.deleteSandbox(id)
	}
	for _, id := range slices.Sorted(maps.Keys(tree.snapshots)) {
		tree.createFrom(id)
		tree.deleteSnapshot(id)
	}
	s.DeleteAll(t)
	for _, image := range tree.images {
		if got := s.Send(t, http.MethodDelete, "/v1/images/"+url.PathEscape(image), ""); got.Status != http.StatusNoContent {
			t.Errorf("delete the image %s: %s", image, got)
		}
	}
	tree.machine.awaitEmptyTrash(t)
	s.Halt(t)
	tree.machine.CheckNothingLeft(t)
}

// tree is sandboxes and snapshots, with the files that they must have.
type tree struct {
	t         *testing.T
	s         *conformance.Service
	machine   machine
	random    *rand.Rand
	program   string
	sandboxes map[string]string // files by id
	snapshots map[string]string // files by id
	images    []string
	names     int // of snapshots and images, so far
	kills     int
}

// request is of a sandbox that has the program which changes files.
func (r *tree) request() lifecycle.CreateSandboxRequest {
	request := r.s.Idle()
	request.Timeout = 3600
	volume := conformance.HostVolume(filepath.Dir(r.program), "/programs")
	volume.ReadOnly = new(true)
	request.Volumes = []lifecycle.Volume{volume}
	return request
}

// step makes one operation.
func (r *tree) step() {
	box := r.any(r.sandboxes)
	switch choice := r.random.IntN(20); {
	case choice < 7 || len(r.snapshots) == 0 && choice >= 11:
		r.change(box)
	case choice < 11:
		r.takeSnapshot(box)
	case choice < 14:
		r.rollback(box, r.any(r.snapshots))
	case choice < 16:
		r.fork(box)
	case choice < 17:
		r.createFrom(r.any(r.snapshots))
	case choice < 18:
		r.export(r.any(r.snapshots))
	case choice < 19:
		r.deleteSnapshot(r.any(r.snapshots))
	case len(r.sandboxes) > 1:
		r.deleteSandbox(box)
	}
	for len(r.sandboxes) > treeSandboxes {
		r.deleteSandbox(r.any(r.sandboxes))
	}
	for len(r.snapshots) > treeSnapshots {
		r.deleteSnapshot(r.any(r.snapshots))
	}
}

// any returns one of the ids.
func (r *tree) any(of map[string]string) string {
	ids := slices.Sorted(maps.Keys(of))
	return ids[r.random.IntN(len(ids))]
}

// inside runs the program in a sandbox, and returns what it prints.
func (r *tree) inside(id, args string) string {
	r.t.Helper()
	got := r.s.Enter(r.t, id).Run(r.t, "/programs/probe "+args)
	if got.Code != 0 {
		r.t.Fatalf("%s in %s: %+v", args, id, got)
	}
	return strings.TrimSpace(got.Stdout)
}

func (r *tree) change(id string) {
	r.t.Helper()
	r.inside(id, fmt.Sprintf("change /work %d 8", r.random.Uint64()))
	r.sandboxes[id] = r.files(id)
}

// files describes the files of a sandbox, a line each.
func (r *tree) files(id string) string { return r.inside(id, "digest /work") }

// check demands that the files of a sandbox are those that they must be.
func (r *tree) check(id string) {
	r.t.Helper()
	if got, want := r.files(id), r.sandboxes[id]; got != want {
		r.t.Fatalf("sandbox %s has other files than it must have:\n%s\nin place of\n%s", id, without(got, want), without(want, got))
	}
}

// without returns the lines of a text that another one has not.
func without(text, other string) string {
	lines := strings.Split(other, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return slices.Contains(lines, line) }), "\n")
}

// add takes a sandbox up, which must have these files; none for any.
func (r *tree) add(id, files string) {
	r.t.Helper()
	if files == "" {
		r.change(id)
		return
	}
	r.sandboxes[id] = files
	r.check(id)
}

// send sends a request, and kills the service or the keeper meanwhile, or does not. It returns
// false when the answer was lost.
func (r *tree) send(method, path, body string) (conformance.Answer, bool) {
	r.t.Helper()
	what := r.random.IntN(9) // 0: the keeper; 1: the service; 2: both
	after := time.Duration(r.random.Int64N(int64(30 * time.Millisecond)))
	if what > 2 {
		return r.s.Send(r.t, method, path, body, "Prefer", "wait=60"), true
	}
	r.kills++
	type sent struct {
		answer conformance.Answer
		err    error
	}
	answers := make(chan sent, 1)
	go func() {
		answer, err := r.s.Try(method, path, body, "Prefer", "wait=60")
		answers <- sent{answer, err}
	}()
	time.Sleep(after) // the moment of the kill, not a wait for something
	if what != 1 {
		r.machine.killKeeper(r.t)
	}
	if what != 0 {
		r.s.Kill()
	}
	got := wait.For(r.t, method+" "+path, answers)
	if what != 0 {
		r.s.Boot(r.t)
	}
	return got.answer, got.err == nil
}

// name returns a name that nothing has.
func (r *tree) name() string {
	r.names++
	return fmt.Sprintf("n%d", r.names)
}

func (r *tree) takeSnapshot(id string) {
	r.t.Helper()
	name := r.name()
	answer, known := r.send(http.MethodPost, "/v1/sandboxes/"+id+"/snapshots", fmt.Sprintf(`{"name":%q}`, name))
	if known && answer.Status != http.StatusAccepted {
		r.t.Fatalf("take a snapshot: %s", answer)
	}
	var found []lifecycle.Snapshot
	wait.Until(r.t, "the snapshot is not Creating", func() bool {
		list, err := conformance.Decode[lifecycle.SnapshotList](r.s.Send(r.t, http.MethodGet, "/v1/snapshots?name="+name, ""))
		if err != nil {
			r.t.Fatal(err)
		}
		found = list.Items
		return len(found) == 0 || found[0].Status.State != "Creating"
	})
	switch {
	case len(found) == 0 && known:
		r.t.Fatalf("the snapshot that was accepted is gone")
	case len(found) == 0: // the service was killed before it had the request
	case found[0].Status.State == "Ready":
		r.snapshots[found[0].ID] = r.sandboxes[id]
	default:
		r.t.Fatalf("the snapshot is %+v", found[0].Status)
	}
	r.settle(id)
	r.check(id)
}

// checkDigests demands that snapshots have the same digest exactly when they have the same files,
// but for the times of these.
func (r *tree) checkDigests() {
	r.t.Helper()
	times, digests, files := regexp.MustCompile(`(?m) \d{10,}\b| sparse=\w+`), map[string]string{}, map[string]string{}
	for id, has := range r.snapshots {
		var digest string
		wait.Until(r.t, "snapshot "+id+" has a digest", func() bool {
			found, err := conformance.Decode[lifecycle.Snapshot](r.s.Send(r.t, http.MethodGet, "/v1/snapshots/"+id, ""))
			digest = conformance.Value(found.TreeDigest)
			return err == nil && digest != ""
		})
		has = times.ReplaceAllString(has, "")
		if other, ok := digests[has]; ok && other != digest {
			r.t.Errorf("the same files have the digests %s and %s", digest, other)
		}
		if other, ok := files[digest]; ok && other != has {
			r.t.Errorf("the digest %s is of\n%s\nand of\n%s", digest, without(has, other), without(other, has))
		}
		digests[has], files[digest] = digest, has
	}
}

// settle waits until a sandbox is Running.
func (r *tree) settle(id string) {
	r.t.Helper()
	if status := r.s.Settled(r.t, id); status.State != "Running" {
		r.t.Fatalf("sandbox %s is %+v", id, status)
	}
}

func (r *tree) rollback(id, snapshot string) {
	r.t.Helper()
	answer, known := r.send(http.MethodPost, "/v1/sandboxes/"+id+"/rollback", fmt.Sprintf(`{"snapshotId":%q}`, snapshot))
	if known && answer.Status != http.StatusAccepted {
		r.t.Fatalf("roll back: %s", answer)
	}
	r.settle(id)
	if conformance.Value(r.s.Get(r.t, id).SnapshotID) == snapshot && (known || r.files(id) == r.snapshots[snapshot]) {
		r.sandboxes[id] = r.snapshots[snapshot]
	} else if known {
		r.t.Fatalf("sandbox %s has not the files of snapshot %s", id, snapshot)
	}
	r.check(id)
}

// others returns the sandboxes that were not taken up, once they have settled.
func (r *tree) others() (ids []string) {
	r.t.Helper()
	for _, sandbox := range r.s.Everything(r.t) {
		if _, known := r.sandboxes[sandbox.ID]; !known && r.s.Settled(r.t, sandbox.ID).State == "Running" {
			ids = append(ids, sandbox.ID)
		}
	}
	return ids
}

// take takes the sandboxes up that were made with these files: as many as were asked for, or, after
// a kill, any number of them.
func (r *tree) take(asked int, known bool, files string) {
	r.t.Helper()
	made := r.others()
	if len(made) > asked || known && len(made) != asked {
		r.t.Fatalf("%d sandboxes were made, %d were asked for", len(made), asked)
	}
	for _, id := range made {
		r.add(id, files)
	}
}

func (r *tree) fork(id string) {
	r.t.Helper()
	count := 1 + r.random.IntN(2)
	answer, known := r.send(http.MethodPost, "/v1/sandboxes/"+id+"/fork", fmt.Sprintf(`{"count":%d,"timeout":3600}`, count))
	if known && answer.Status != http.StatusAccepted {
		r.t.Fatalf("fork: %s", answer)
	}
	r.settle(id)
	r.check(id)
	r.take(count, known, r.sandboxes[id])
}

func (r *tree) createFrom(snapshot string) {
	r.t.Helper()
	request := r.request()
	body := fmt.Sprintf(`{"snapshotId":%q,"timeout":3600,"volumes":%s}`, snapshot, conformance.Encode(r.t, request.Volumes))
	answer, known := r.send(http.MethodPost, "/v1/sandboxes", body)
	if known && answer.Status != http.StatusAccepted {
		r.t.Fatalf("create from a snapshot: %s", answer)
	}
	r.take(1, known, r.snapshots[snapshot])
}

// export makes an image of a snapshot, and has a sandbox of the image.
func (r *tree) export(snapshot string) {
	r.t.Helper()
	image := "sandbox/tree:" + r.name()
	path, body := "/v1/snapshots/"+snapshot+"/export", fmt.Sprintf(`{"name":%q}`, image)
	if answer, known := r.send(http.MethodPost, path, body); !known { // the answer to a repeated request is the same
		r.s.Send(r.t, http.MethodPost, path, body)
	} else if answer.Status >= http.StatusMultipleChoices {
		r.t.Fatalf("export: %s", answer)
	}
	r.images = append(r.images, image)
	request := r.request()
	request.Image.URI = image
	id := r.s.Running(r.t, request)
	// A layer of an image has no holes; zeros in the layer become holes, but not to the page.
	holes := regexp.MustCompile(` sparse=\w+`)
	got, want := holes.ReplaceAllString(r.files(id), ""), holes.ReplaceAllString(r.snapshots[snapshot], "")
	if got != want {
		r.t.Fatalf("the image of snapshot %s has other files:\n%s\nin place of\n%s", snapshot, without(got, want), without(want, got))
	}
	r.sandboxes[id] = ""
	r.deleteSandbox(id) // snapshots of another image cannot be rolled back to
}

func (r *tree) deleteSnapshot(id string) {
	r.t.Helper()
	path := "/v1/snapshots/" + id
	answer, known := r.send(http.MethodDelete, path, "")
	if !known {
		answer = r.s.Send(r.t, http.MethodDelete, path, "")
	}
	if answer.Status != http.StatusNoContent && (known || answer.Status != http.StatusNotFound) {
		r.t.Fatalf("delete a snapshot: %s", answer)
	}
	delete(r.snapshots, id)
}

func (r *tree) deleteSandbox(id string) {
	r.t.Helper()
	if _, known := r.send(http.MethodDelete, "/v1/sandboxes/"+id, ""); !known {
		r.s.Send(r.t, http.MethodDelete, "/v1/sandboxes/"+id, "")
	}
	if status := r.s.Await(r.t, id, "Terminated").Status; status.Reason != "USER_DELETE" {
		r.t.Fatalf("sandbox %s is %+v", id, status)
	}
	delete(r.sandboxes, id)
}
