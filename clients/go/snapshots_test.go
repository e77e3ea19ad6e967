package sandbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
)

// snapshotIn is a snapshot of the scripted box in a state.
func snapshotIn(id, state string) string {
	return fmt.Sprintf(`{"id":%q,"sandboxId":"box","kind":"filesystem","image":{"uri":"x"},"size":1,"exclusiveSize":1,"freezeMs":1.5,
		"createdAt":"2026-01-02T15:04:05Z","status":{"state":%q,"reason":"NO_ROOM","message":"full","lastTransitionAt":"2026-01-02T15:04:05Z"}}`, id, state)
}

// TestSnapshotWaits: a snapshot that is Creating is asked for until it is not, and one that failed
// is an error with the reason.
func TestSnapshotWaits(t *testing.T) {
	t.Parallel()
	for state, wantErr := range map[string]bool{"Ready": false, "Failed": true} {
		var asked atomic.Int32
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/sandboxes/box/snapshots", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if string(body) != `{"name":"before","ttl":3600}`+"\n" && string(body) != `{"name":"before","ttl":3600}` || r.Header.Get("Prefer") == "" {
				t.Errorf("the request is %s with Prefer %q", body, r.Header.Get("Prefer"))
			}
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, snapshotIn("s", "Creating"))
		})
		mux.HandleFunc("GET /v1/snapshots/s", func(w http.ResponseWriter, _ *http.Request) {
			now := "Creating"
			if asked.Add(1) == 2 {
				now = state
			}
			_, _ = io.WriteString(w, snapshotIn("s", now))
		})
		box, err := scripted(t, mux).Connect(t.Context(), "box")
		check(t, err)
		taken, err := box.Snapshot(limited(t), &sandbox.SnapshotOptions{Name: "before", TTL: time.Hour})
		var failed *sandbox.SnapshotError
		if errors.As(err, &failed) != wantErr || taken.Status.State != state || taken.FreezeMs != 1.5 || asked.Load() != 2 {
			t.Errorf("%s: %+v, %v after %d requests", state, taken, err, asked.Load())
		}
		if wantErr && (failed.Reason != "NO_ROOM" || !strings.Contains(err.Error(), "full")) {
			t.Errorf("the error is %v", err)
		}
	}
}

// TestSnapshotsAreListed: all pages are read, and what the options choose is asked for.
func TestSnapshotsAreListed(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/snapshots", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("sandboxId") != "box" {
			t.Errorf("the query is %v", query)
		}
		next := query.Get("page") == "1"
		_, _ = fmt.Fprintf(w, `{"items":[%s],"pagination":{"page":1,"pageSize":1,"totalItems":2,"totalPages":2,"hasNextPage":%t}}`,
			snapshotIn("s"+query.Get("page"), "Ready"), next)
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	var ids []string
	for snapshot, err := range box.Snapshots(limited(t)) {
		check(t, err)
		ids = append(ids, snapshot.ID)
	}
	if strings.Join(ids, " ") != "s1 s2" {
		t.Errorf("the list has %q", ids)
	}
}

// TestDeletedSnapshotWhoseAnswerWasLost: the attempt after it finds no snapshot: that is a success.
func TestDeletedSnapshotWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("DELETE /v1/snapshots/s", func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			cut(w)
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"code":"SNAPSHOT_NOT_FOUND","message":"gone","detail":"gone"}`)
	})
	client := scripted(t, mux)
	check(t, client.DeleteSnapshot(limited(t), "s"))
	if err := client.DeleteSnapshot(limited(t), "s"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a snapshot that never was: %v", err)
	}
}

// TestRollbackThatFails: a sandbox that is Paused instead is not waited for.
func TestRollbackThatFails(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{"ROLLBACK_FAILED": false, "CONTAINER_RUNNING": true} {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/sandboxes/box/rollback", func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); !strings.Contains(string(body), `{"snapshotId":"s"}`) {
				t.Errorf("the request is %s", body)
			}
			w.WriteHeader(http.StatusAccepted)
		})
		state := `Running","reason":"CONTAINER_RUNNING","message":"","lastTransitionAt":"2026-01-02T15:04:05Z"},"x":{"y":"`
		if !want {
			state = `Paused","reason":"ROLLBACK_FAILED","message":"no room","lastTransitionAt":"2026-01-02T15:04:05Z"},"x":{"y":"`
		}
		box, err := scriptedIn(t, state, mux, sandbox.Options{}).Connect(t.Context(), "box")
		check(t, err)
		err = box.Rollback(limited(t), "s")
		var failed *sandbox.StateError
		if want && err != nil || !want && (!errors.As(err, &failed) || failed.Reason != reason) {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

// TestFork: an item is a sandbox or an error of the kind that a create would have had.
func TestFork(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes/box/fork", func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Count, Timeout int
			Env            map[string]string
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || request.Count != 2 || request.Timeout != 0 || request.Env["A"] != "1" {
			t.Errorf("the request is %+v, %v", request, err)
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"items":[{"sandbox":`+scriptedBox+`},{"error":{"code":"CONFLICT","message":"the limit is reached","detail":""}}]}`)
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	forks, err := box.Fork(limited(t), &sandbox.ForkOptions{Count: 2, Env: map[string]string{"A": "1"}})
	if err != nil || len(forks) != 2 || forks[0].Err != nil || forks[0].Sandbox.ID() != "box" || !errors.Is(forks[1].Err, sandbox.ErrConflict) {
		t.Errorf("%+v, %v", forks, err)
	}
}

// TestCreateWithASnapshot: the service's defaults do not take the place of what the snapshot has.
func TestCreateWithASnapshot(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"defaults":{"image":"usual","timeout":700,"entrypoint":["idle"],"resourceLimits":{}}}`)
	})
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.TrimSpace(string(body)) != `{"snapshotId":"s","timeout":700}` {
			t.Errorf("the request is %s", body)
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, scriptedBox)
	})
	_, err := scripted(t, mux).Create(limited(t), &sandbox.CreateOptions{SnapshotID: "s"})
	check(t, err)
}

// TestSnapshotDiff: the list and the archive are one operation, which the media type chooses.
func TestSnapshotDiff(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/snapshots/s/diff", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "application/x-tar" {
			_, _ = io.WriteString(w, "an archive of "+r.URL.RawQuery)
			return
		}
		_, _ = fmt.Fprintf(w, `{"items":[{"path":"/a","kind":"added","type":"file","size":3}],"truncated":%t}`, r.URL.RawQuery == "to=t&limit=1")
	})
	client := scripted(t, mux)
	diff, err := client.DiffSnapshot(limited(t), "s", &sandbox.SnapshotDiffOptions{To: "t", Limit: 1})
	if err != nil || !diff.Truncated || len(diff.Items) != 1 || diff.Items[0] != (sandbox.FileChange{Path: "/a", Kind: "added", Type: "file", Size: 3}) {
		t.Errorf("%+v, %v", diff, err)
	}
	archive, err := client.ArchiveSnapshot(limited(t), "s", &sandbox.SnapshotDiffOptions{To: "t"})
	check(t, err)
	defer archive.Close()
	if content, err := io.ReadAll(archive); err != nil || string(content) != "an archive of to=t" {
		t.Errorf("%q, %v", content, err)
	}
}
