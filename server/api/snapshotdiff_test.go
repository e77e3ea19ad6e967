package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
)

// asTar asks for an archive.
func asTar(_ context.Context, r *http.Request) error {
	r.Header.Set("Accept", "application/x-tar")
	return nil
}

func TestSnapshotDiff(t *testing.T) {
	b := newBackend()
	store := newSnapshots(b)
	store.diff = lifecycle.SnapshotDiff{Truncated: true, Items: []lifecycle.FileChange{{Path: "/a\xff", Kind: "added", Type: "file", Size: 3}}}
	s := serveWith(t, api.Options{Backend: b, Snapshots: store, Keys: keys.Fixed(allKeys()...)})
	listed, err := s.client.GetSnapshotDiffWithResponse(t.Context(), snapshotOfTests, nil, with(aliceSecret))
	want := gen.SnapshotDiff{Truncated: true, Items: []gen.FileChange{{Path: "/a\ufffd", Kind: "added", Type: "file", Size: 3}}}
	if err != nil || listed.JSON200 == nil || !reflect.DeepEqual(*listed.JSON200, want) {
		t.Errorf("%v: %s", err, listed.Body)
	}
	params := &gen.GetSnapshotDiffParams{To: new(snapshotOfTests), Limit: new(7)}
	if _, err := s.client.GetSnapshotDiffWithResponse(t.Context(), snapshotOfTests, params, with(aliceSecret)); err != nil {
		t.Error(err)
	}
	store.archive = strings.NewReader(strings.Repeat("x", 100_000))
	archive, err := s.client.GetSnapshotDiffWithResponse(t.Context(), snapshotOfTests, nil, with(aliceSecret), asTar)
	if err != nil || archive.HTTPResponse.Header.Get("Content-Type") != "application/x-tar" || len(archive.Body) != 100_000 {
		t.Errorf("%v: %d bytes, %v", err, len(archive.Body), archive.HTTPResponse.Header)
	}
	if asked := []string{snapshotOfTests + "  1000", snapshotOfTests + " " + snapshotOfTests + " 7", snapshotOfTests + "  archive"}; !slices.Equal(store.diffs, asked) {
		t.Errorf("the backend was asked for %q, want %q", store.diffs, asked)
	}
	for path, status := range map[string]int{"?limit=0": 400, "?limit=10001": 400, "?to=": 400, "?to=other": 404} {
		if got := statusOf(t, s, http.MethodGet, "/v1/snapshots/"+snapshotOfTests+"/diff"+path, "", aliceSecret); got != status {
			t.Errorf("%s: %d, want %d", path, got, status)
		}
	}
}

// TestBrokenArchive: an error before the first bytes is an answer, and a later one cuts the body.
func TestBrokenArchive(t *testing.T) {
	b := newBackend()
	store := newSnapshots(b)
	s := serveWith(t, api.Options{Backend: b, Snapshots: store, Keys: keys.Fixed(allKeys()...)})
	store.archive = iotest.ErrReader(lifecycle.Conflictf("too large"))
	refused, err := s.client.GetSnapshotDiffWithResponse(t.Context(), snapshotOfTests, nil, with(aliceSecret), asTar)
	if err != nil || refused.StatusCode() != http.StatusConflict || !bytes.Contains(refused.Body, []byte("too large")) {
		t.Errorf("%v: %s", err, refused.Body)
	}
	store.archive = io.MultiReader(strings.NewReader(strings.Repeat("x", 100_000)), iotest.ErrReader(errors.New("the disk")))
	cut, err := s.client.GetSnapshotDiff(t.Context(), snapshotOfTests, nil, with(aliceSecret), asTar)
	if err != nil || cut.StatusCode != http.StatusOK {
		t.Fatalf("%v: %v", err, cut)
	}
	defer cut.Body.Close()
	if _, err := io.ReadAll(cut.Body); err == nil {
		t.Error("an archive that broke off ends as if it were whole")
	}
}

func TestLineage(t *testing.T) {
	b := newBackend()
	store := newSnapshots(b)
	s := serveWith(t, api.Options{Backend: b, Snapshots: store, Keys: keys.Fixed(allKeys()...)})
	shown, err := s.client.GetLineageWithResponse(t.Context(), b.sandbox.ID, with(aliceSecret))
	want := []gen.LineageSandbox{{ID: "fork", SnapshotID: new("gone"), ParentID: new(b.sandbox.ID), State: "Running", CreatedAt: birth}}
	if err != nil || shown.JSON200 == nil || !shown.JSON200.Truncated || len(shown.JSON200.Snapshots) != 1 || shown.JSON200.Snapshots[0].ID != snapshotOfTests ||
		!reflect.DeepEqual(shown.JSON200.Sandboxes, want) {
		t.Errorf("%v: %s", err, shown.Body)
	}
	if filter := (lifecycle.SnapshotFilter{SandboxID: b.sandbox.ID, Owner: new("alice")}); !reflect.DeepEqual(store.filter, filter) {
		t.Errorf("the backend was asked for %+v", store.filter)
	}
}
