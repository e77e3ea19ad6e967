package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
)

// snapshotOfTests is the id of the one snapshot that there is.
const snapshotOfTests = "2b7d5f0a-6c1e-4a7b-8a53-1f0e9d3c4b21"

// snapshots records its calls and returns what a test has set.
type snapshots struct {
	mu       sync.Mutex
	snapshot lifecycle.Snapshot
	settled  lifecycle.Snapshot
	forks    []lifecycle.ForkResult
	err      error

	request   lifecycle.SnapshotRequest
	filter    lifecycle.SnapshotFilter
	page      lifecycle.Page
	fork      lifecycle.ForkRequest
	options   lifecycle.CreateOptions
	rollbacks []string
	deleted   []string
	waited    []time.Duration
	diff      lifecycle.SnapshotDiff
	archive   io.Reader
	diffs     []string
}

var _ lifecycle.SnapshotStore = (*snapshots)(nil)

// newSnapshots has a snapshot of the backend's sandbox, of the same owner.
func newSnapshots(b *backend) *snapshots {
	return &snapshots{snapshot: lifecycle.Snapshot{
		ID: snapshotOfTests, SandboxID: b.sandbox.ID, Owner: "alice", Kind: lifecycle.SnapshotFilesystem, Image: "busybox",
		Status: lifecycle.SnapshotStatus{State: lifecycle.SnapshotCreating, LastTransitionAt: birth}, CreatedAt: birth,
	}}
}

func (s *snapshots) TakeSnapshot(_ context.Context, _ string, request lifecycle.SnapshotRequest) (lifecycle.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request = request
	return s.snapshot, s.err
}

func (s *snapshots) AwaitSnapshot(_ context.Context, _ string, atMost time.Duration) (lifecycle.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waited = append(s.waited, atMost)
	return s.settled, s.err
}

func (s *snapshots) Snapshot(_ context.Context, id string) (lifecycle.Snapshot, error) {
	if id != s.snapshot.ID {
		return lifecycle.Snapshot{}, lifecycle.NoSnapshot(id)
	}
	return s.snapshot, nil
}

func (s *snapshots) Snapshots(_ context.Context, filter lifecycle.SnapshotFilter, page lifecycle.Page) (lifecycle.SnapshotListing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter, s.page = filter, page
	return lifecycle.SnapshotListing{Items: []lifecycle.Snapshot{s.snapshot}, Total: 41}, s.err
}

func (s *snapshots) DiffSnapshot(_ context.Context, id, to string, limit int) (lifecycle.SnapshotDiff, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.diffs = append(s.diffs, fmt.Sprintf("%s %s %d", id, to, limit))
	return s.diff, s.err
}

func (s *snapshots) ArchiveSnapshotDiff(_ context.Context, id, to string) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.diffs = append(s.diffs, fmt.Sprintf("%s %s archive", id, to))
	return io.NopCloser(s.archive), s.err
}

func (s *snapshots) ExportSnapshot(_ context.Context, id, name string) (lifecycle.Image, error) {
	return lifecycle.Image{ID: "sha256:" + id, Names: []string{name}}, s.err
}

func (s *snapshots) Lineage(_ context.Context, sandboxID string, owner *string) (lifecycle.Lineage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter = lifecycle.SnapshotFilter{SandboxID: sandboxID, Owner: owner}
	return lifecycle.Lineage{
		Snapshots: []lifecycle.Snapshot{s.snapshot}, Truncated: true,
		Sandboxes: []lifecycle.LineageSandbox{{Sandbox: lifecycle.Sandbox{ID: "fork", SnapshotID: "gone", CreatedAt: birth,
			Status: lifecycle.Status{State: lifecycle.StateRunning}}, ParentID: sandboxID}},
	}, s.err
}

func (s *snapshots) DeleteSnapshot(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = append(s.deleted, id)
	return s.err
}

func (s *snapshots) Suspend(_ context.Context, sandboxID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rollbacks = append(s.rollbacks, "suspend "+sandboxID)
	return s.err
}

func (s *snapshots) Rollback(_ context.Context, sandboxID, snapshotID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rollbacks = append(s.rollbacks, sandboxID+" "+snapshotID)
	return s.err
}

func (s *snapshots) Fork(_ context.Context, _ string, request lifecycle.ForkRequest, options lifecycle.CreateOptions) ([]lifecycle.ForkResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fork, s.options = request, options
	return slices.Clone(s.forks), s.err
}

func TestTakeSnapshot(t *testing.T) {
	b := newBackend()
	store := newSnapshots(b)
	store.settled = store.snapshot
	store.settled.Status.State, store.settled.Frozen = lifecycle.SnapshotReady, 1800*time.Microsecond
	s := serveWith(t, api.Options{Backend: b, Snapshots: store, MaxSnapshots: 7, MaxSnapshotsBytes: 1 << 30,
		Keys: keys.Fixed(allKeys()...)})
	taken, err := s.client.TakeSnapshotWithResponse(t.Context(), b.sandbox.ID, &gen.TakeSnapshotParams{IdempotencyKey: new("key")}, gen.TakeSnapshotRequest{
		Metadata: gen.Metadata{"team": "red"}, Name: new("before"), Comment: new("all is well"), TTL: new(3600)}, with(aliceSecret))
	if err != nil || taken.JSON202 == nil || taken.JSON202.Status.State != "Creating" ||
		taken.HTTPResponse.Header.Get("Location") != "/v1/snapshots/"+snapshotOfTests {
		t.Fatalf("%v: %s", err, taken.Body)
	}
	want := lifecycle.SnapshotRequest{Name: "before", Comment: "all is well", Kind: lifecycle.SnapshotFilesystem, TTL: time.Hour,
		Owner: "alice", MaxSnapshots: 7, MaxBytes: 1 << 30, Metadata: map[string]string{"team": "red"}, IdempotencyKey: "key"}
	if !reflect.DeepEqual(store.request, want) {
		t.Errorf("the request is %+v, want %+v", store.request, want)
	}
	if timing := taken.HTTPResponse.Header.Get("Server-Timing"); !strings.Contains(timing, "durable;dur=") || strings.Contains(timing, "frozen") {
		t.Errorf("Server-Timing: %q", timing)
	}
	// Without a body, and with a wait.
	waited, err := s.client.TakeSnapshotWithBodyWithResponse(t.Context(), b.sandbox.ID, &gen.TakeSnapshotParams{Prefer: new("wait=9")},
		"", nil, with(adminSecret))
	if err != nil || waited.JSON202 == nil || waited.JSON202.Status.State != "Ready" || waited.JSON202.FreezeMs != 1.8 ||
		waited.HTTPResponse.Header.Get("Preference-Applied") != "wait" ||
		!strings.Contains(waited.HTTPResponse.Header.Get("Server-Timing"), "frozen;dur=1.800") || !slices.Equal(store.waited, []time.Duration{9 * time.Second}) {
		t.Errorf("%v: %s %v waited %v", err, waited.Body, waited.HTTPResponse.Header, store.waited)
	}
	if store.request.TTL != 0 || store.request.Kind != lifecycle.SnapshotFilesystem {
		t.Errorf("the request without a body is %+v", store.request)
	}
	if line := s.log.accessLine(t, "takeSnapshot"); line["snapshot_id"] != snapshotOfTests || line["sandbox_id"] != b.sandbox.ID {
		t.Errorf("the line of the log is %v", line)
	}
	for body, status := range map[string]int{
		`{"kind":"memory"}`: 202, `{"kind":"disk"}`: 400, `{"ttl":59}`: 400, `{"ttl":315360001}`: 400, `{"nme":"a"}`: 400, `{"metadata":{"sandbox.internal/x":""}}`: 400,
		`{"name":"` + strings.Repeat("\u00e4", 65) + `"}`: 400, `{"comment":"` + strings.Repeat("x", 4097) + `"}`: 400,
	} {
		if got := statusOf(t, s, http.MethodPost, "/v1/sandboxes/"+b.sandbox.ID+"/snapshots", body, adminSecret); got != status {
			t.Errorf("%.40s: %d, want %d", body, got, status)
		}
	}
}

func TestSnapshotsAreShown(t *testing.T) {
	b := newBackend()
	store := newSnapshots(b)
	store.snapshot.ParentID, store.snapshot.Name, store.snapshot.Comment = "parent", "before", "all is well"
	store.snapshot.Metadata = map[string]string{"team": "red"}
	store.snapshot.Size, store.snapshot.ExclusiveSize, store.snapshot.ExpiresAt = 2<<40, 1<<40, birth.Add(time.Hour)
	store.snapshot.Status = lifecycle.SnapshotStatus{State: lifecycle.SnapshotFailed, Reason: "NO_ROOM", Message: "full", LastTransitionAt: birth}
	s := serveWith(t, api.Options{Backend: b, Snapshots: store, Keys: keys.Fixed(allKeys()...)})
	want := gen.Snapshot{ID: snapshotOfTests, SandboxID: b.sandbox.ID, ParentID: new("parent"), Name: new("before"), Comment: new("all is well"),
		Metadata: gen.Metadata{"team": "red"}, Owner: new("alice"), Kind: "filesystem", Image: gen.Image{URI: "busybox"}, Size: 2 << 40, ExclusiveSize: 1 << 40,
		CreatedAt: birth, ExpiresAt: new(birth.Add(time.Hour)),
		Status: gen.SnapshotStatus{State: "Failed", Reason: new("NO_ROOM"), Message: new("full"), LastTransitionAt: birth}}
	read, err := s.client.GetSnapshotWithResponse(t.Context(), snapshotOfTests, nil, with(viewerSecret))
	if err != nil || read.JSON200 == nil || !reflect.DeepEqual(*read.JSON200, want) {
		t.Errorf("%v: %s", err, read.Body)
	}
	list, err := s.client.ListSnapshotsWithResponse(t.Context(), &gen.ListSnapshotsParams{
		Name: new("before"), Metadata: new("team=red&by=a%26b"), SandboxID: new("gone"), State: []string{"ready", "Failed"}, Page: new(3), PageSize: new(20)}, with(aliceSecret))
	if err != nil || list.JSON200 == nil || len(list.JSON200.Items) != 1 || !reflect.DeepEqual(list.JSON200.Items[0], want) ||
		list.JSON200.Pagination != (gen.Pagination{Page: 3, PageSize: 20, TotalItems: 41, TotalPages: 3}) {
		t.Errorf("%v: %s", err, list.Body)
	}
	filter := lifecycle.SnapshotFilter{SandboxID: "gone", Owner: new("alice"), Name: new("before"), Metadata: map[string]string{"team": "red", "by": "a&b"},
		States: []lifecycle.SnapshotState{lifecycle.SnapshotReady, lifecycle.SnapshotFailed}}
	if !reflect.DeepEqual(store.filter, filter) || store.page != (lifecycle.Page{Number: 3, Size: 20}) {
		t.Errorf("the filter is %+v, the page %+v", store.filter, store.page)
	}
	one, err := s.client.ListSandboxSnapshotsWithResponse(t.Context(), b.sandbox.ID, nil, with(viewerSecret))
	if err != nil || one.JSON200 == nil || !reflect.DeepEqual(store.filter, lifecycle.SnapshotFilter{SandboxID: b.sandbox.ID}) {
		t.Errorf("%v: %s, filter %+v", err, one.Body, store.filter)
	}
	if got := statusOf(t, s, http.MethodGet, "/v1/snapshots?state=Running", "", adminSecret); got != 400 {
		t.Errorf("a state of sandboxes: %d", got)
	}
}

func TestRollback(t *testing.T) {
	b := newBackend()
	store := newSnapshots(b)
	s := serveWith(t, api.Options{Backend: b, Snapshots: store})
	done, err := s.client.RollbackSandboxWithResponse(t.Context(), b.sandbox.ID, &gen.RollbackSandboxParams{Prefer: new("wait=9")},
		gen.RollbackRequest{SnapshotID: snapshotOfTests})
	if err != nil || done.StatusCode() != http.StatusAccepted || done.HTTPResponse.Header.Get("Preference-Applied") != "wait" ||
		!slices.Equal(store.rollbacks, []string{b.sandbox.ID + " " + snapshotOfTests}) || !slices.Equal(b.waited, []time.Duration{9 * time.Second}) {
		t.Errorf("%v: %s %s, rollbacks %q, waited %v", err, done.Status(), done.Body, store.rollbacks, b.waited)
	}
	for _, body := range []string{`{}`, `{"snapshotId":""}`, ``} {
		if got := statusOf(t, s, http.MethodPost, "/v1/sandboxes/"+b.sandbox.ID+"/rollback", body, ""); got != 400 {
			t.Errorf("%q: %d", body, got)
		}
	}
}

// TestPauseWithFilesOnly: the store of snapshots suspends a sandbox; without one it is refused.
func TestPauseWithFilesOnly(t *testing.T) {
	b := newBackend()
	store := newSnapshots(b)
	s := serveWith(t, api.Options{Backend: b, Snapshots: store})
	path := "/v1/sandboxes/" + b.sandbox.ID + "/pause"
	for body, want := range map[string]int{``: 202, `{}`: 202, `{"filesOnly":false}`: 202, `{"filesOnly":1}`: 400, `{"memory":false}`: 400} {
		if got := statusOf(t, s, http.MethodPost, path, body, ""); got != want {
			t.Errorf("%q: %d, want %d", body, got, want)
		}
	}
	if len(store.rollbacks) > 0 {
		t.Errorf("the store got %q", store.rollbacks)
	}
	if got := statusOf(t, s, http.MethodPost, path, `{"filesOnly":true}`, ""); got != http.StatusAccepted || !slices.Equal(store.rollbacks, []string{"suspend " + b.sandbox.ID}) {
		t.Errorf("%d, and the store got %q", got, store.rollbacks)
	}
	if got := statusOf(t, serveWith(t, api.Options{Backend: b}), http.MethodPost, path, `{"filesOnly":true}`, ""); got != http.StatusNotImplemented {
		t.Errorf("without snapshots: %d, want 501", got)
	}
}

// TestFork: an item says what became of its sandbox, and shows nothing of an internal error.
func TestFork(t *testing.T) {
	b := newBackend()
	b.settled = b.sandbox
	b.settled.Status.State = lifecycle.StateRunning
	store := newSnapshots(b)
	forked := b.sandbox
	forked.SnapshotID, forked.Extensions = snapshotOfTests, []byte(`{ "a" : 1.50 }`)
	store.forks = []lifecycle.ForkResult{{Sandbox: forked}, {Err: lifecycle.Conflictf("the limit is reached")}, {Err: errors.New("the cause")}}
	s := serveWith(t, api.Options{Backend: b, Snapshots: store, MaxSnapshots: 7, MaxSnapshotsBytes: 8, Keys: keys.Fixed(allKeys()...)})
	done, err := s.client.ForkSandboxWithResponse(t.Context(), b.sandbox.ID, &gen.ForkSandboxParams{IdempotencyKey: new("key")}, gen.ForkRequest{
		Count: new(3), Timeout: new(600), Env: gen.Env{"A": "1"}}, with(aliceSecret))
	if err != nil || done.JSON202 == nil || len(done.JSON202.Items) != 3 || !bytes.Contains(done.Body, []byte(`"extensions":{ "a" : 1.50 }}`)) {
		t.Fatalf("%v: %s", err, done.Body)
	}
	items := done.JSON202.Items
	if items[0].Sandbox == nil || *items[0].Sandbox.SnapshotID != snapshotOfTests || items[1].Error.Code != "CONFLICT" ||
		items[1].Error.Message != "the limit is reached" || items[2].Error.Code != "INTERNAL_ERROR" || strings.Contains(string(done.Body), "the cause") ||
		!strings.Contains(s.log.text(), "the cause") {
		t.Errorf("%s", done.Body)
	}
	want := lifecycle.ForkRequest{Count: 3, Timeout: 10 * time.Minute, Env: map[string]string{"A": "1"}, Snapshot: lifecycle.SnapshotRequest{
		Kind: lifecycle.SnapshotFilesystem, Owner: "alice", MaxSnapshots: 7, MaxBytes: 8}}
	if !reflect.DeepEqual(store.fork, want) || store.options.Owner != "alice" || store.options.Role != lifecycle.RoleUser ||
		store.options.IdempotencyKey != "key" {
		t.Errorf("the request is %+v with %+v", store.fork, store.options)
	}
	waited, err := s.client.ForkSandboxWithBodyWithResponse(t.Context(), b.sandbox.ID, &gen.ForkSandboxParams{Prefer: new("wait=9")}, "", nil, with(adminSecret))
	if err != nil || waited.JSON202 == nil || waited.JSON202.Items[0].Sandbox.Status.State != "Running" || store.fork.Count != 1 ||
		waited.HTTPResponse.Header.Get("Preference-Applied") != "wait" {
		t.Errorf("%v: %s, count %d", err, waited.Body, store.fork.Count)
	}
	for _, body := range []string{`{"count":0}`, `{"count":101}`, `{"timeout":59}`, `{"env":{"A":1}}`} {
		if got := statusOf(t, s, http.MethodPost, "/v1/sandboxes/"+b.sandbox.ID+"/fork", body, adminSecret); got != 400 {
			t.Errorf("%s: %d", body, got)
		}
	}
}

// TestCreateWithASnapshot: the request has an image or a snapshot, which the caller may use.
func TestCreateWithASnapshot(t *testing.T) {
	b := newBackend()
	s := serveWith(t, api.Options{Backend: b, Snapshots: newSnapshots(b), Keys: keys.Fixed(allKeys()...)})
	created, err := s.client.CreateSandboxWithResponse(t.Context(), nil, gen.CreateSandboxRequest{
		SnapshotID: new(snapshotOfTests), Timeout: 60}, with(aliceSecret))
	if err != nil || created.JSON202 == nil {
		t.Fatalf("%v: %s", err, created.Body)
	}
	if want := (lifecycle.Spec{SnapshotID: snapshotOfTests, Timeout: time.Minute, Resources: lifecycle.ResourceLimits{}}); !reflect.DeepEqual(b.spec, want) {
		t.Errorf("the spec is %+v", b.spec)
	}
	for _, tt := range []struct {
		body, secret string
		status       int
		words        string
	}{
		{`{"snapshotId":"` + snapshotOfTests + `","image":{"uri":"busybox"},"timeout":60}`, aliceSecret, 400, "body/image: must be left out"},
		{`{"timeout":60,"resourceLimits":{},"entrypoint":["a"]}`, aliceSecret, 400, "body/image: is required, unless snapshotId"},
		{`{"timeout":60,"image":{"uri":"busybox"},"entrypoint":["a"]}`, aliceSecret, 400, "body/resourceLimits: is required"},
		{`{"snapshotId":"other","timeout":60}`, aliceSecret, 404, "SNAPSHOT_NOT_FOUND"},
		{`{"snapshotId":"` + snapshotOfTests + `","timeout":60}`, bobSecret, 403, "a snapshot that another key asked for"},
	} {
		got, err := s.client.CreateSandboxWithBodyWithResponse(t.Context(), nil, "application/json", strings.NewReader(tt.body), with(tt.secret))
		if err != nil || got.StatusCode() != tt.status || !strings.Contains(string(got.Body), tt.words) {
			t.Errorf("%s: %v %s, want %d %s", tt.body, err, got.Body, tt.status, tt.words)
		}
	}
}

// TestRepeatedCreateWithASnapshot: with an Idempotency-Key the backend says what became of a create
// whose snapshot is gone.
func TestRepeatedCreateWithASnapshot(t *testing.T) {
	b := newBackend()
	s := serveWith(t, api.Options{Backend: b, Snapshots: newSnapshots(b), Keys: keys.Fixed(allKeys()...)})
	params := &gen.CreateSandboxParams{IdempotencyKey: new("key")}
	body := gen.CreateSandboxRequest{SnapshotID: new("gone"), Timeout: 60}
	again, err := s.client.CreateSandboxWithResponse(t.Context(), params, body, with(aliceSecret))
	if err != nil || again.JSON202 == nil || b.spec.SnapshotID != "gone" || b.options.IdempotencyKey != "key" {
		t.Errorf("%v: %s, spec %+v", err, again.Body, b.spec)
	}
	b.err = lifecycle.NoSnapshot("gone")
	first, err := s.client.CreateSandboxWithResponse(t.Context(), params, body, with(aliceSecret))
	if err != nil || first.StatusCode() != http.StatusNotFound {
		t.Errorf("%v: %s", err, first.Body)
	}
	body.SnapshotID = new(snapshotOfTests)
	foreign, err := s.client.CreateSandboxWithResponse(t.Context(), params, body, with(bobSecret))
	if err != nil || foreign.StatusCode() != http.StatusForbidden {
		t.Errorf("a snapshot of another key: %v: %s", err, foreign.Body)
	}
}

// TestErrorsOfSnapshots has every answer but those of the whole service.
func TestErrorsOfSnapshots(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"gone":        {lifecycle.NoSnapshot(snapshotOfTests), 404, "SNAPSHOT_NOT_FOUND"},
		"unavailable": {&lifecycle.Error{Kind: lifecycle.KindUnavailable, Message: "no answer", RetryAfter: 1}, 503, "SERVICE_UNAVAILABLE"},
		"unsupported": {lifecycle.Unsupportedf("not here"), 501, "NOT_IMPLEMENTED"},
		"internal":    {io.ErrUnexpectedEOF, 500, "INTERNAL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend()
			store := newSnapshots(b)
			store.err = tt.err
			s := serveWith(t, api.Options{Backend: b, Snapshots: store})
			deleted, err := s.client.DeleteSnapshotWithResponse(t.Context(), snapshotOfTests)
			if err != nil || deleted.StatusCode() != tt.status || !bytes.Contains(deleted.Body, []byte(`"`+tt.code+`"`)) {
				t.Errorf("%s, %v; want %d %s", deleted.Body, err, tt.status, tt.code)
			}
			rolled, err := s.client.RollbackSandboxWithResponse(t.Context(), b.sandbox.ID, nil, gen.RollbackRequest{SnapshotID: snapshotOfTests})
			if err != nil || rolled.StatusCode() != tt.status {
				t.Errorf("rollback: %s, %v; want %d", rolled.Body, err, tt.status)
			}
		})
	}
}

// TestWithoutSnapshots: a backend without the ability says so, to those who may ask.
func TestWithoutSnapshots(t *testing.T) {
	b := newBackend()
	s := serveWith(t, api.Options{Backend: b, Keys: keys.Fixed(allKeys()...)})
	sandbox := "/v1/sandboxes/" + b.sandbox.ID
	for request, body := range map[string]string{
		"POST " + sandbox + "/snapshots": `{}`, "GET " + sandbox + "/snapshots": "", "POST " + sandbox + "/fork": `{}`,
		"POST " + sandbox + "/rollback": `{"snapshotId":"a"}`, "GET /v1/snapshots": "", "GET /v1/snapshots/a": "", "DELETE /v1/snapshots/a": "",
		"POST /v1/sandboxes": `{"snapshotId":"a","timeout":60}`,
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := statusOf(t, s, method, path, body, aliceSecret); got != http.StatusNotImplemented {
			t.Errorf("%s: %d, want 501", request, got)
		}
		if got := statusOf(t, s, method, path, body, bobSecret); strings.HasPrefix(path, sandbox) && got != http.StatusForbidden {
			t.Errorf("%s by another user: %d, want 403", request, got)
		}
	}
}
