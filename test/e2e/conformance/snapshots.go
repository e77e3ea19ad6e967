package conformance

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
	"sandbox.internal/test/wait"
)

// snapshotOperations are the operations that need a backend with snapshots.
var snapshotOperations = []string{
	"takeSnapshot", "listSandboxSnapshots", "rollbackSandbox", "forkSandbox", "listSnapshots", "getSnapshot", "deleteSnapshot",
	"getSnapshotDiff", "exportSnapshot", "getLineage",
}

// operationsWithSnapshots are these on a sandbox and a snapshot, those on the sandbox first.
func operationsWithSnapshots(sandbox, snapshot string) []Operation {
	path := "/v1/sandboxes/" + sandbox
	return []Operation{
		{"takeSnapshot", "POST", path + "/snapshots", "{}"},
		{"listSandboxSnapshots", "GET", path + "/snapshots", ""},
		{"getLineage", "GET", path + "/lineage", ""},
		{"forkSandbox", "POST", path + "/fork", `{"count":1}`},
		{"rollbackSandbox", "POST", path + "/rollback", fmt.Sprintf(`{"snapshotId":%q}`, snapshot)},
		{"getSnapshot", "GET", "/v1/snapshots/" + snapshot, ""},
		{"getSnapshotDiff", "GET", "/v1/snapshots/" + snapshot + "/diff", ""},
		{"deleteSnapshot", "DELETE", "/v1/snapshots/" + snapshot, ""},
		{"listSnapshots", "GET", "/v1/snapshots", ""},
	}
}

// readsOfSnapshots are those that a viewer may ask for.
var readsOfSnapshots = []string{"listSandboxSnapshots", "getLineage", "getSnapshot", "listSnapshots"}

// unknownSnapshot is the id of no snapshot.
const unknownSnapshot = "11111111-2222-4333-8444-555555555555"

// testSnapshots leads the files of a sandbox through a snapshot, a rollback, forks and a new
// sandbox, and provokes every answer of the operations. A backend without snapshots answers 501.
func testSnapshots(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Keys: []config.Key{
		{Name: "user", SHA256: Digest(userKey), Role: config.RoleUser},
		{Name: "other", SHA256: Digest(OtherKey), Role: config.RoleUser},
		{Name: "viewer", SHA256: Digest(ViewerKey), Role: config.RoleViewer},
		{Name: "slow", SHA256: Digest(SlowKey), Role: config.RoleViewer, RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
	}})
	user := s.As(t, userKey)
	r := s.Idle()
	r.Env = lifecycle.Env{"GIVEN": "secret"}
	id := user.Running(t, r)
	if !b.Snapshots {
		refuseSnapshots(t, user, id)
		WantProblem(t, s.Send(t, http.MethodPost, exportOf(unknownSnapshot).Path, exportOf(unknownSnapshot).Body), 501, "NOT_IMPLEMENTED", "snapshots")
		return
	}
	if b.OwnKernel {
		wantNoSnapshotOfFiles(t, user, id)
		return
	}
	box := user.Enter(t, id)
	box.Want(t, "mkdir /root/work && echo kept > /root/work/note && ln -s note /root/work/link && echo there > /etc/mark", "")
	before := user.Snapshot(t, id, `{"name":"before","comment":"all is well","ttl":3600}`)
	var after lifecycle.Snapshot
	t.Run("rollback", func(t *testing.T) { after = testRollback(t, user, id, before) })
	excused := []string{} // a store that fails, and the moment in which the service stops
	if b.Compares {
		t.Run("digest", func(t *testing.T) { testTreeDigest(t, user, id, before.ID, after.ID) })
		t.Run("diff", func(t *testing.T) { testSnapshotDiff(t, &s.Client, user, before.ID) })
	} else {
		path := "/v1/snapshots/" + before.ID + "/diff"
		for _, accept := range []string{"application/json", "application/x-tar"} {
			WantProblem(t, user.Send(t, http.MethodGet, path, "", "Accept", accept), 501, "NOT_IMPLEMENTED", "comparisons")
		}
		excused = append(excused, "getSnapshotDiff 200", "getSnapshotDiff 409", "exportSnapshot 409")
	}
	t.Run("export", func(t *testing.T) { testSnapshotExport(t, s, before.ID) })
	t.Run("fork", func(t *testing.T) { testFork(t, user, id) })
	if b.Suspends {
		t.Run("pause with files only", func(t *testing.T) { testPauseWithFilesOnly(t, user) })
	} else {
		WantProblem(t, user.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/pause", `{"filesOnly":true}`), 501, "NOT_IMPLEMENTED", "filesOnly")
	}
	t.Run("refused", func(t *testing.T) { testRefusedSnapshots(t, s, id, before.ID) })
	t.Run("create", func(t *testing.T) { testCreateWithSnapshot(t, user, id, before.ID) })
	for _, operation := range snapshotOperations {
		excused = append(excused, operation+" 500", operation+" 501", operation+" 503")
	}
	for _, pair := range s.Conform.Unseen() {
		if slices.Contains(snapshotOperations, strings.Fields(pair)[0]) && !slices.Contains(excused, pair) {
			t.Errorf("the contract declares %q, and nothing here provokes it", pair)
		}
	}
}

// refuseSnapshots demands that a backend without snapshots says so to the owner of a sandbox.
func refuseSnapshots(t *testing.T, user *Client, id string) {
	for _, o := range operationsWithSnapshots(id, unknownSnapshot) {
		WantProblem(t, user.Send(t, o.Method, o.Path, o.Body), 501, "NOT_IMPLEMENTED", "snapshots")
	}
	WantProblem(t, user.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/pause", `{"filesOnly":true}`), 501, "NOT_IMPLEMENTED", "filesOnly")
	created := user.Send(t, http.MethodPost, "/v1/sandboxes", fmt.Sprintf(`{"snapshotId":%q,"timeout":600}`, unknownSnapshot))
	WantProblem(t, created, 501, "NOT_IMPLEMENTED", "snapshots")
}

// testPauseWithFilesOnly: the processes of the sandbox are gone, its files are kept, and it starts
// again with its environment, also after the service was started again.
func testPauseWithFilesOnly(t *testing.T, user *Client) {
	r := user.Idle()
	r.Env = lifecycle.Env{"GIVEN": "secret"}
	id := user.Running(t, r)
	box := user.Enter(t, id)
	box.Want(t, "echo kept > /root/note; sleep 1000 >/dev/null 2>&1 & echo $! > /root/pid", "")
	path := "/v1/sandboxes/" + id
	WantProblem(t, user.Send(t, http.MethodPost, path+"/pause", `{"filesOnly":"no"}`), 400, "INVALID_REQUEST_BODY", "filesOnly")
	if got := user.Send(t, http.MethodPost, path+"/pause", `{"filesOnly":true}`, "Prefer", "wait=60"); got.Status != http.StatusAccepted {
		t.Fatalf("pause: %s", got)
	}
	if status := user.Await(t, id, "Paused").Status; status.Reason != "USER_PAUSE" || !strings.Contains(status.Message, "its files are kept") {
		t.Errorf("the paused sandbox is %+v", status)
	}
	WantProblem(t, user.Send(t, http.MethodPost, path+"/pause", `{"filesOnly":true}`), 409, "CONFLICT", "Paused")
	WantProblem(t, user.Send(t, http.MethodGet, path+"/endpoints/44772", ""), 409, "CONFLICT", "resume it first")
	taken := user.Snapshot(t, id, "{}")
	if got := user.Send(t, http.MethodDelete, "/v1/snapshots/"+taken.ID, ""); got.Status != http.StatusNoContent {
		t.Errorf("delete the snapshot of the paused sandbox: %s", got)
	}
	user.Resume(t, id)
	user.Enter(t, id).Want(t, `cat /root/note; echo "$GIVEN"; ! grep -q sleep "/proc/$(cat /root/pid)/comm"`, "kept\nsecret\n")
	user.Delete(t, id)
}

// Snapshot takes a snapshot and waits until it is Ready.
func (c *Client) Snapshot(t *testing.T, id, body string) lifecycle.Snapshot {
	t.Helper()
	got := c.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/snapshots", body, "Prefer", "wait=60")
	taken, err := Decode[lifecycle.Snapshot](got)
	if err != nil || got.Status != http.StatusAccepted || got.Header.Get("Location") != "/v1/snapshots/"+taken.ID ||
		got.Header.Get("Preference-Applied") != "wait" {
		t.Fatalf("snapshot: %s, %v, Location %q", got, err, got.Header.Get("Location"))
	}
	wait.Until(t, "the snapshot is not Creating", func() bool {
		taken, err = Decode[lifecycle.Snapshot](c.Send(t, http.MethodGet, "/v1/snapshots/"+taken.ID, ""))
		return err != nil || taken.Status.State != "Creating"
	})
	if err != nil || taken.Status.State != "Ready" || taken.SandboxID != id || taken.Kind != "filesystem" || taken.Size <= 0 {
		t.Fatalf("the snapshot is %+v (%s), %v", taken, Value(taken.Status.Message), err)
	}
	return taken
}

// wantNoSnapshotOfFiles: a kernel of the sandbox's own keeps in its memory what was written to
// files, so no snapshot of them alone can be made.
func wantNoSnapshotOfFiles(t *testing.T, c *Client, id string) {
	t.Helper()
	got, err := Decode[lifecycle.Snapshot](c.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/snapshots", `{}`))
	wait.Until(t, "the snapshot is not Creating", func() bool {
		got, err = Decode[lifecycle.Snapshot](c.Send(t, http.MethodGet, "/v1/snapshots/"+got.ID, ""))
		return err != nil || got.Status.State != "Creating"
	})
	if err != nil || got.Status.State != "Failed" || !strings.Contains(Value(got.Status.Message), "memory") {
		t.Errorf("a snapshot of the files of a sandbox with a kernel of its own: %+v, %v", got, err)
	}
}

// testRollback changes and deletes files, and gets them back, with the same id and token. What ran
// is gone.
func testRollback(t *testing.T, c *Client, id string, before lifecycle.Snapshot) (after lifecycle.Snapshot) {
	path := "/v1/sandboxes/" + id
	if Value(before.Name) != "before" || Value(before.Comment) != "all is well" || Value(before.Owner) != "user" || before.ExpiresAt == nil {
		t.Errorf("the snapshot is %+v", before)
	}
	endpoint := c.Endpoint(t, id, DaemonPort)
	through := ExecdThroughTheService(t, c.Inside(t, id, DaemonPort))
	through.Want(t, "echo changed > /root/work/note && rm /root/work/link && rm -r /etc/mark && echo new > /root/new", "")
	through.Want(t, "nohup sleep 4242 >/dev/null 2>&1 &", "")
	after = c.Snapshot(t, id, "")
	if Value(after.ParentID) != before.ID {
		t.Errorf("the parent of the second snapshot is %q, want %s", Value(after.ParentID), before.ID)
	}
	for _, step := range []struct{ snapshot, command, want string }{
		{before.ID, "cat /root/work/note /root/work/link /etc/mark; ls /root; echo $GIVEN", "kept\nkept\nthere\nwork\nsecret\n"},
		{after.ID, "cat /root/work/note /root/new; ls /root/work; test -e /etc/mark || echo gone", "changed\nnew\nnote\ngone\n"},
		{before.ID, "cat /root/work/link; ls /root", "kept\nwork\n"},
	} {
		got := c.Send(t, http.MethodPost, path+"/rollback", fmt.Sprintf(`{"snapshotId":%q}`, step.snapshot), "Prefer", "wait=60")
		if got.Status != http.StatusAccepted || got.Body != "" || got.Header.Get("Preference-Applied") != "wait" {
			t.Fatalf("rollback: %s", got)
		}
		if box := c.Await(t, id, "Running"); Value(box.SnapshotID) != step.snapshot {
			t.Errorf("the sandbox says that its files are of %q, want %s", Value(box.SnapshotID), step.snapshot)
		}
		// The same client as before, and one that asks for the endpoint.
		if got := through.Run(t, step.command); got.Stdout != step.want {
			t.Errorf("%q: %q (%s), want %q", step.command, got.Stdout, got.Stderr, step.want)
		}
		now := c.Endpoint(t, id, DaemonPort)
		if !maps.Equal(now.Headers, endpoint.Headers) {
			t.Error("the token is another one after the rollback")
		}
		if got := EnterAt(t, now).Run(t, step.command); got.Stdout != step.want {
			t.Errorf("at the endpoint: %q, want %q", got.Stdout, step.want)
		}
		if got := through.Run(t, "ps | grep 'sleep [4]242'"); got.Stdout != "" {
			t.Errorf("a process of before the rollback still runs: %q", got.Stdout)
		}
	}
	return after
}

// testTreeDigest: a snapshot after a rollback, and a change of a time, has the digest of the
// snapshot that the sandbox was rolled back to, and no other one.
func testTreeDigest(t *testing.T, c *Client, id, before, after string) {
	c.Enter(t, id).Want(t, "touch /root/work/note", "")
	again := c.Snapshot(t, id, "")
	digest := func(id string) (digest string) {
		wait.Until(t, "snapshot "+id+" has a digest", func() bool {
			found, err := Decode[lifecycle.Snapshot](c.Send(t, http.MethodGet, "/v1/snapshots/"+id, ""))
			digest = Value(found.TreeDigest)
			return err == nil && digest != ""
		})
		return digest
	}
	if got, want, other := digest(again.ID), digest(before), digest(after); got != want || got == other || !strings.HasPrefix(got, "sha256:") {
		t.Errorf("after a rollback the digest is %s, want %s and not %s", got, want, other)
	}
	if got := c.Send(t, http.MethodDelete, "/v1/snapshots/"+again.ID, ""); got.Status != http.StatusNoContent {
		t.Errorf("delete the snapshot after the rollback: %s", got)
	}
}

// testFork: each fork has the files and none of the environment, and an id, a token and a host name
// of its own.
func testFork(t *testing.T, c *Client, id string) {
	path := "/v1/sandboxes/" + id
	got := c.Send(t, http.MethodPost, path+"/fork", `{"count":2,"timeout":600,"env":{"ATTEMPT":"1"}}`, "Prefer", "wait=60")
	list, err := Decode[lifecycle.ForkList](got)
	if err != nil || got.Status != http.StatusAccepted || len(list.Items) != 2 {
		t.Fatalf("fork: %s, %v", got, err)
	}
	const files = "cat /root/work/link /etc/mark; echo $ATTEMPT$GIVEN"
	own := map[string]bool{}
	for _, box := range []string{id, "", ""} {
		if box == "" {
			item := list.Items[0]
			list.Items = list.Items[1:]
			if item.Sandbox == nil {
				t.Fatalf("a sandbox was not created: %+v", item.Error)
			}
			box = c.Await(t, item.Sandbox.ID, "Running").ID
			inside := c.Enter(t, box)
			inside.Want(t, files, "kept\nthere\n1\n")
			inside.Want(t, "echo of a fork > /root/work/note", "")
		}
		token := c.Endpoint(t, box, DaemonPort).Headers
		name := strings.TrimSpace(c.Enter(t, box).Run(t, "hostname").Stdout)
		for _, text := range []string{box, fmt.Sprint(token), "host name " + name} {
			if own[text] {
				t.Errorf("%s is of two sandboxes", text)
			}
			own[text] = true
		}
	}
	c.Enter(t, id).Want(t, "cat /root/work/note", "kept\n")
	lineage, err := Decode[lifecycle.Lineage](c.Send(t, http.MethodGet, path+"/lineage", ""))
	forks := slices.DeleteFunc(lineage.Sandboxes, func(s lifecycle.LineageSandbox) bool { return Value(s.ParentID) != id || s.State != "Running" })
	if err != nil || len(forks) != 2 || len(lineage.Snapshots) < 2 {
		t.Errorf("the lineage is %+v, %v", lineage, err)
	}
	listed, err := Decode[lifecycle.SnapshotList](c.Send(t, http.MethodGet, path+"/snapshots", ""))
	if err != nil || len(listed.Items) != 2 {
		t.Errorf("a fork left its snapshot in the list: %+v, %v", listed, err)
	}
}

// testRefusedSnapshots provokes the errors that the contract declares. No refused request changes
// anything.
func testRefusedSnapshots(t *testing.T, s *Service, id, snapshot string) {
	user, operations := s.As(t, userKey), operationsWithSnapshots(id, snapshot)
	for _, o := range operations {
		WantProblem(t, s.As(t, "wrong").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED", KeyHeader)
		if o.Name != "listSnapshots" {
			WantProblem(t, s.As(t, OtherKey).Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", "another key")
		}
		if !slices.Contains(readsOfSnapshots, o.Name) {
			WantProblem(t, s.As(t, ViewerKey).Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", "viewer")
		}
	}
	RefuseUnknownParameters(t, s, operations)
	AskTooOften(t, s, operations)
	for _, o := range operationsWithSnapshots(unknownSnapshot, snapshot)[:5] {
		WantProblem(t, user.Send(t, o.Method, o.Path, o.Body), 404, "SANDBOX_NOT_FOUND", unknownSnapshot)
	}
	for _, o := range operationsWithSnapshots(id, unknownSnapshot)[4:8] {
		WantProblem(t, user.Send(t, o.Method, o.Path, o.Body), 404, "SNAPSHOT_NOT_FOUND", unknownSnapshot)
	}
	ended := user.Running(t, s.Idle())
	user.Delete(t, ended)
	user.Await(t, ended, "Terminated")
	for _, o := range operationsWithSnapshots(ended, snapshot) {
		switch {
		case o.Name == "rollbackSandbox": // its snapshot is another sandbox's, too
			WantProblem(t, user.Send(t, o.Method, o.Path, o.Body), 409, "CONFLICT")
		case o.Method == http.MethodPost:
			WantProblem(t, user.Send(t, o.Method, o.Path, o.Body), 409, "CONFLICT", "Terminated")
		}
	}
	large := fmt.Sprintf(`{"name":%q}`, strings.Repeat("x", 1<<20))
	for _, path := range []string{"/snapshots", "/rollback", "/fork"} {
		WantProblem(t, user.Send(t, http.MethodPost, "/v1/sandboxes/"+id+path, large), 413, "REQUEST_TOO_LARGE", "body")
	}
	WantProblem(t, user.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/snapshots", `{"kind":"disk"}`), 400, "INVALID_REQUEST_BODY", "kind")
	WantProblem(t, user.Send(t, http.MethodGet, "/v1/snapshots?state=Running", ""), 400, "INVALID_REQUEST_BODY", "state", "Ready")
	for key, want := range map[string]int{userKey: 2, OtherKey: 0, ViewerKey: 2} {
		list, err := Decode[lifecycle.SnapshotList](s.As(t, key).Send(t, http.MethodGet, "/v1/snapshots?state=ready&pageSize=1&sandboxId="+id, ""))
		if err != nil || list.Pagination.TotalItems != want {
			t.Errorf("%s sees %+v, %v; want %d snapshots", key, list.Pagination, err, want)
		}
	}
}

// testCreateWithSnapshot: the snapshot outlives its sandbox, and a sandbox that began with it
// outlives the snapshot.
func testCreateWithSnapshot(t *testing.T, c *Client, id, snapshot string) {
	c.Delete(t, id)
	c.Await(t, id, "Terminated")
	body := fmt.Sprintf(`{"snapshotId":%q,"timeout":600}`, snapshot)
	created, err := Decode[lifecycle.CreatedSandbox](c.Send(t, http.MethodPost, "/v1/sandboxes", body))
	if err != nil {
		t.Fatal(err)
	}
	begun := c.Await(t, created.ID, "Running")
	if Value(begun.SnapshotID) != snapshot || begun.Image.URI != c.Images.Busybox || !slices.Equal(begun.Entrypoint, c.Idle().Entrypoint) {
		t.Errorf("the sandbox is %+v", begun)
	}
	const files = "cat /root/work/note /root/work/link; echo $GIVEN"
	c.Enter(t, begun.ID).Want(t, files, "kept\nkept\n\n")
	path := "/v1/snapshots/" + snapshot
	if got := c.Send(t, http.MethodDelete, path, ""); got.Status != http.StatusNoContent {
		t.Fatalf("delete: %s", got)
	}
	wait.Until(t, "the snapshot is gone", func() bool {
		return c.Send(t, http.MethodGet, path, "").Status == http.StatusNotFound
	})
	WantProblem(t, c.Send(t, http.MethodGet, path, ""), 404, "SNAPSHOT_NOT_FOUND", snapshot)
	WantProblem(t, c.Send(t, http.MethodDelete, path, ""), 404, "SNAPSHOT_NOT_FOUND", snapshot)
	WantProblem(t, c.Send(t, http.MethodPost, "/v1/sandboxes", body), 404, "SNAPSHOT_NOT_FOUND", snapshot)
	c.Enter(t, begun.ID).Want(t, files, "kept\nkept\n\n")
}
