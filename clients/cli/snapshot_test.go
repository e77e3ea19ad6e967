package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
)

const (
	snapshotID      = "2b7d5f0a-6c1e-4a7b-8a53-1f0e9d3c4b21"
	otherSnapshotID = "2b7d0000-6c1e-4a7b-8a53-1f0e9d3c4b22"
)

// keeper is a service with one sandbox that has a snapshot, and a snapshot of one that is gone. It
// records the bodies of requests, by method and path.
func keeper(t *testing.T) (env map[string]string, asked map[string]string) {
	t.Helper()
	asked = map[string]string{}
	taken := lifecycle.Snapshot{ID: snapshotID, SandboxID: sandboxID, Name: new("before"), Kind: "filesystem", FreezeMs: 1.8, Size: 1 << 20,
		Status: lifecycle.SnapshotStatus{State: "Ready"}, CreatedAt: time.Now(), Image: lifecycle.Image{URI: "x"}}
	other := taken
	other.ID, other.SandboxID = otherSnapshotID, "gone"
	box := named(sandboxID, "box", "Running")
	mux := http.NewServeMux()
	handle := func(pattern string, status int, body any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			asked[pattern] = strings.TrimSpace(string(text)) + r.URL.RawQuery
			if body == nil {
				w.WriteHeader(status)
				return
			}
			answer(w, status, body)
		})
	}
	handle("GET /v1/sandboxes", 200, lifecycle.SandboxList{Items: []lifecycle.Sandbox{box}})
	handle("GET /v1/sandboxes/"+sandboxID, 200, box)
	handle("GET /v1/version", 200, lifecycle.Version{Defaults: &lifecycle.CreateDefaults{Timeout: 700, Entrypoint: []string{"idle"}}})
	handle("POST /v1/sandboxes", 202, lifecycle.CreatedSandbox{ID: sandboxID, ExpiresAt: time.Now().Add(time.Hour)})
	handle("GET /v1/snapshots", 200, lifecycle.SnapshotList{Items: []lifecycle.Snapshot{taken, other}})
	handle("POST /v1/sandboxes/"+sandboxID+"/snapshots", 202, taken)
	handle("POST /v1/sandboxes/"+sandboxID+"/rollback", 202, nil)
	handle("POST /v1/sandboxes/"+sandboxID+"/fork", 202, lifecycle.ForkList{Items: []lifecycle.Fork{{Sandbox: &box},
		{Error: &lifecycle.Error{Code: "CONFLICT", Message: "the limit is reached"}}}})
	handle("PATCH /v1/sandboxes/"+sandboxID+"/metadata", 200, lifecycle.Metadata{"name": "box-5f0c1e0e"})
	handle("GET /v1/snapshots/"+snapshotID+"/diff", 200, lifecycle.SnapshotDiff{Truncated: true, Items: []lifecycle.FileChange{
		{Path: "/root/odd\x1b[31m", Kind: "added", Type: "file", Size: 2048}}})
	handle("POST /v1/snapshots/"+snapshotID+"/export", 200, lifecycle.StoredImage{ID: "sha256:0123", Names: []string{"team/prepared:1"}})
	child := other
	child.ParentID, child.SandboxID, child.Name = new(snapshotID), sandboxID, new(strings.Repeat("long", 30))
	handle("GET /v1/sandboxes/"+sandboxID+"/lineage", 200, lifecycle.Lineage{Snapshots: []lifecycle.Snapshot{taken, child}, Truncated: true,
		Sandboxes: []lifecycle.LineageSandbox{{ID: sandboxID, SnapshotID: new(snapshotID), State: "Running"}, {ID: "0c9d21b4-fork", ParentID: new(sandboxID), State: "Paused"}}})
	handle("DELETE /v1/snapshots/"+snapshotID, 204, nil)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return map[string]string{"SANDBOX_URL": server.URL}, asked
}

// snapshotTree is what the tool draws of a sandbox that was rolled back to its first snapshot.
const snapshotTree = `2b7d5f0a Ready, 1.0 MiB before
├─ sandbox 5f0c1e0e Running *
│  └─ sandbox 0c9d21b4 Paused
└─ 2b7d0000 Ready, 1.0 MiB longlonglonglonglonglonglonglonglonglonglonglonglo...
`

func TestSnapshotCommands(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args           string
		code           int
		stdout, stderr string
		request, body  string
	}{
		{"snapshot create box --name before --ttl 1h --comment fine", 0, "1.8 ms", "",
			"POST /v1/sandboxes/" + sandboxID + "/snapshots", `{"comment":"fine","name":"before","ttl":3600}`},
		{"snapshot create box -l team=red -q", 0, "", "", "POST /v1/sandboxes/" + sandboxID + "/snapshots", `{"metadata":{"team":"red"}}`},
		{"snapshot ls --name before -l team=red -q", 0, snapshotID, "", "GET /v1/snapshots", "name=before&metadata=team%3Dred&page=1&pageSize=100"},
		{"snapshot create box -q", 0, snapshotID + "\n", "", "", ""},
		{"snapshot create box --ttl 1s", cli.ExitUsage, "", "ttl: must be at least 1m, not 1s", "", ""},
		{"snapshot ls box -q", 0, snapshotID + "\n" + otherSnapshotID + "\n", "", "GET /v1/snapshots", "sandboxId=" + sandboxID + "&page=1&pageSize=100"},
		{"snapshot list", 0, "before", "", "GET /v1/snapshots", "page=1&pageSize=100"},
		{"snapshot rm " + snapshotID, 0, "", "", "DELETE /v1/snapshots/" + snapshotID, ""},
		{"snapshot rm 2b7d5", 0, "", "", "DELETE /v1/snapshots/" + snapshotID, ""},
		{"snapshot rm before", cli.ExitFailed, "", `"before" is ambiguous: it means 2 snapshots`, "", ""},
		{"snapshot rm none", cli.ExitFailed, "", `there is no snapshot "none"`, "", ""},
		{"snapshot diff " + snapshotID + " " + otherSnapshotID + " --limit 1", 0, "added   file", "there are more than 1 files",
			"GET /v1/snapshots/" + snapshotID + "/diff", "to=" + otherSnapshotID + "&limit=1"},
		{"snapshot diff " + snapshotID, 0, "/root/odd?[31m", "", "GET /v1/snapshots/" + snapshotID + "/diff", "limit=1000"},
		{"snapshot diff " + snapshotID + " --tar", 0, "/root/odd", "", "GET /v1/snapshots/" + snapshotID + "/diff", ""},
		{"snapshot diff " + snapshotID + " --limit 0", cli.ExitUsage, "", "limit: must be from 1 to 10000, not 0", "", ""},
		{"snapshot export " + snapshotID + " team/prepared:1", 0, "team/prepared:1", "", "POST /v1/snapshots/" + snapshotID + "/export", `{"name":"team/prepared:1"}`},
		{"snapshot tree box", 0, snapshotTree, "there are more", "GET /v1/sandboxes/" + sandboxID + "/lineage", ""},
		{"rollback box before", 0, "box has the files of before\n", "", "POST /v1/sandboxes/" + sandboxID + "/rollback", `{"snapshotId":"` + snapshotID + `"}`},
		{"rollback box", cli.ExitUsage, "", "needs a SANDBOX and a SNAPSHOT", "", ""},
		{"fork box -n 2 --env A=1", cli.ExitFailed, sandboxID + "\n", "the limit is reached",
			"POST /v1/sandboxes/" + sandboxID + "/fork", `{"count":2,"env":{"A":"1"}}`},
		{"fork box", cli.ExitFailed, sandboxID + "\n", "", "PATCH /v1/sandboxes/" + sandboxID + "/metadata", `{"name":"box-5f0c1e0e"}`},
		{"fork box -n 101", cli.ExitUsage, "", "count: must be from 1 to 100, not 101", "", ""},
		{"create --no-wait -q --snapshot " + snapshotID, 0, sandboxID + "\n", "",
			"POST /v1/sandboxes", `{"snapshotId":"` + snapshotID + `","timeout":700}`},
		{"create --snapshot before image", cli.ExitUsage, "", `snapshot: must not be given with the IMAGE "image"`, "", ""},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			env, asked := keeper(t)
			got := run(t.Context(), env, strings.Fields(test.args)...)
			if got.code != test.code || !strings.Contains(got.stdout, test.stdout) || !strings.Contains(got.stderr, test.stderr) {
				t.Errorf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
			}
			if body, sent := asked[test.request]; test.request != "" && (!sent || body != test.body) {
				t.Errorf("%s has %q, sent %t; want %q", test.request, body, sent, test.body)
			}
		})
	}
}

// TestSnapshotsAsJSON: what is printed is as the contract has it.
func TestSnapshotsAsJSON(t *testing.T) {
	t.Parallel()
	env, _ := keeper(t)
	var list []lifecycle.Snapshot
	got := run(t.Context(), env, "snapshot", "ls", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || len(list) != 2 || list[0].ID != snapshotID || list[0].FreezeMs != 1.8 {
		t.Errorf("%v: %s", err, got.stdout)
	}
	var boxes []lifecycle.Sandbox
	got = run(t.Context(), env, "fork", "box", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &boxes); err != nil || len(boxes) != 1 || boxes[0].ID != sandboxID {
		t.Errorf("%v: %s", err, got.stdout)
	}
}
