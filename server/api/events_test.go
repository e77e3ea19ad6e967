package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/lifecycle"
)

// get returns the answer to a GET with pairs of header names and values, past the contract.
func (s *service) get(t *testing.T, method, path string, headers ...string) (status int, header http.Header, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(content)
}

// TestEventBody: webhooks get what the stream has.
func TestEventBody(t *testing.T) {
	for want, event := range map[string]lifecycle.Event{
		`{"from":"Pending","message":"ready","reason":"CONTAINER_RUNNING","sandboxId":"a","timestamp":"` + birth.Format(time.RFC3339Nano) +
			`","to":"Running","type":"state"}`: {
			Sequence: 7, SandboxID: "a", Owner: "alice", Type: lifecycle.EventState, Time: birth, From: lifecycle.StatePending, To: lifecycle.StateRunning,
			Reason: lifecycle.ReasonContainerRunning, Message: "ready",
		},
		`{"timestamp":"` + birth.Format(time.RFC3339Nano) + `","type":"reset"}`: {Type: "reset", Time: birth},
	} {
		if got, err := api.EventBody(event); err != nil || string(got) != want {
			t.Errorf("got  %s (%v)\nwant %s", got, err, want)
		}
	}
}

func TestEventStream(t *testing.T) {
	b := newBackend()
	id := b.sandbox.ID
	event := func(sequence int64, e lifecycle.Event) lifecycle.Event {
		e.Sequence, e.SandboxID, e.Owner, e.Time = sequence, id, "alice", birth
		return e
	}
	b.batches = []lifecycle.EventBatch{
		{Cursor: 7, Reset: true},
		{Cursor: 20, Events: []lifecycle.Event{
			event(8, lifecycle.Event{Type: lifecycle.EventState, To: lifecycle.StatePending, Reason: lifecycle.ReasonProvisioning, Message: "accepted"}),
			event(9, lifecycle.Event{Type: lifecycle.EventState, From: lifecycle.StatePending, To: lifecycle.StateFailed, Reason: lifecycle.ReasonOOMKilled, Message: "a\nb"}),
			event(10, lifecycle.Event{Type: lifecycle.EventStage, Stage: lifecycle.StagePulled, Took: 1500 * time.Microsecond, Elapsed: time.Second}),
			event(11, lifecycle.Event{Type: lifecycle.EventStage, Stage: lifecycle.StageAccepted}),
			event(12, lifecycle.Event{Type: lifecycle.EventProgress, Reason: lifecycle.ReasonImagePulling, Message: ""}),
			event(13, lifecycle.Event{Type: lifecycle.EventRenewed, ExpiresAt: birth.Add(time.Hour)}),
			event(14, lifecycle.Event{Type: lifecycle.EventMetadata, Metadata: map[string]string{"name": "x"}}),
			event(15, lifecycle.Event{Type: lifecycle.EventMetadata, Removed: []string{"name"}}),
			event(16, lifecycle.Event{Type: lifecycle.EventSnapshot, SnapshotID: "s", SnapshotState: lifecycle.SnapshotReady}),
			event(17, lifecycle.Event{Type: lifecycle.EventSnapshot, SnapshotID: "s", SnapshotState: lifecycle.SnapshotFailed, Reason: "NO_ROOM", Message: "full"}),
			event(18, lifecycle.Event{Type: lifecycle.EventForgotten}),
		}},
	}
	s := serve(t, b)
	r, err := s.client.StreamSandboxEventsWithResponse(t.Context(), id, nil)
	if err != nil || r.StatusCode() != http.StatusOK || r.HTTPResponse.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %v", r.Status(), err)
	}
	const at = `"timestamp":"2026-11-21T12:00:00.123456789Z"`
	head := `"sandboxId":"` + id + `",`
	want := []string{
		`id: 7|"type":"reset"`,
		`id: 8|{"message":"accepted","reason":"PROVISIONING",` + head + at + `,"to":"Pending","type":"state"}`,
		`id: 9|{"from":"Pending","message":"a\nb","reason":"OOM_KILLED",` + head + at + `,"to":"Failed","type":"state"}`,
		`id: 10|{"durationMs":1.5,"elapsedMs":1000,` + head + `"stage":"pulled",` + at + `,"type":"stage"}`,
		`id: 11|{"durationMs":0,"elapsedMs":0,` + head + `"stage":"accepted",` + at + `,"type":"stage"}`,
		`id: 12|{"message":"","reason":"IMAGE_PULLING",` + head + at + `,"type":"progress"}`,
		`id: 13|{"expiresAt":"2026-11-21T13:00:00.123456789Z",` + head + at + `,"type":"renewed"}`,
		`id: 14|{` + head + at + `,"type":"metadata","metadata":{"name":"x"}}`,
		`id: 15|{"metadataRemoved":["name"],` + head + at + `,"type":"metadata","metadata":{}}`,
		`id: 16|{` + head + `"snapshotId":"s","snapshotState":"Ready",` + at + `,"type":"snapshot"}`,
		`id: 17|{"message":"full","reason":"NO_ROOM",` + head + `"snapshotId":"s","snapshotState":"Failed",` + at + `,"type":"snapshot"}`,
		`id: 18|{` + head + at + `,"type":"forgotten"}`,
	}
	got := strings.Split(strings.TrimSuffix(string(r.Body), "\n\n"), "\n\n")
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d: %s", len(got), len(want), r.Body)
	}
	for i, event := range got {
		wantID, wantData, _ := strings.Cut(want[i], "|")
		gotID, gotData, _ := strings.Cut(event, "\ndata: ")
		if gotID != wantID || !strings.Contains(gotData, wantData) {
			t.Errorf("event %d: %s\nwant %s", i, event, want[i])
		}
	}
}

// A stream begins with an id to resume from, even when nothing has happened.
func TestEventStreamBeginsWithAPing(t *testing.T) {
	b := newBackend()
	b.batches = []lifecycle.EventBatch{{Cursor: 42}}
	s := serve(t, b)
	if _, _, body := s.get(t, http.MethodGet, "/v1/events"); !strings.HasPrefix(body, "id: 42\ndata: ") || !strings.Contains(body, `"type":"ping"`) {
		t.Errorf("stream: %s", body)
	}
}

func TestEventsResume(t *testing.T) {
	for _, tt := range []struct {
		query, header string
		want          int64 // -1: nothing was asked for
	}{
		{"", "", -1}, {"?after=0", "", 0}, {"?after=5", "", 5}, {"", "7", 7}, {"?after=5", "7", 7}, {"?after=5", "0", 0},
	} {
		b := newBackend()
		s := serve(t, b)
		for _, path := range []string{"/v1/events", "/v1/sandboxes/" + b.sandbox.ID + "/events"} {
			if status, _, body := s.get(t, http.MethodGet, path+tt.query, "Last-Event-ID", tt.header); status != http.StatusOK {
				t.Errorf("%s%s: %d %s", path, tt.query, status, body)
			}
			got := int64(-1)
			if after := b.selection.After; after != nil {
				got = *after
			}
			if got != tt.want {
				t.Errorf("%s%s with Last-Event-ID %q: after %d, want %d", path, tt.query, tt.header, got, tt.want)
			}
		}
	}
}

func TestUpdateMetadata(t *testing.T) {
	b := newBackend()
	s := serve(t, b)
	value := "x"
	r, err := s.client.UpdateMetadataWithApplicationMergePatchPlusJSONBodyWithResponse(t.Context(), b.sandbox.ID, gen.MetadataPatch{"name": &value, "Name": nil})
	if err != nil || r.JSON200 == nil || (*r.JSON200)["name"] != "merged" {
		t.Fatalf("%s, %v: %s", r.Status(), err, r.Body)
	}
	wantPatch(t, b)
	b.patch = nil
	// What people type: the content type that every other request has.
	asJSON, err := s.client.UpdateMetadataWithResponse(t.Context(), b.sandbox.ID, gen.MetadataPatch{"name": &value, "Name": nil})
	if err != nil || asJSON.JSON200 == nil {
		t.Fatalf("as application/json: %s, %v: %s", asJSON.Status(), err, asJSON.Body)
	}
	wantPatch(t, b)
}

func wantPatch(t *testing.T, b *backend) {
	t.Helper()
	if got, present := b.patch["Name"]; len(b.patch) != 2 || *b.patch["name"] != "x" || !present || got != nil {
		t.Errorf("patch: %v", b.patch)
	}
}

func TestLogs(t *testing.T) {
	b := newBackend()
	b.log = "\x00\xff<>\n"
	s := serve(t, b)
	path := "/v1/sandboxes/" + b.sandbox.ID + "/logs"
	status, header, body := s.get(t, http.MethodGet, path+"?tail=0&follow=true&since=2026-11-21T12:00:00.123456789Z")
	if status != http.StatusOK || body != b.log || header.Get("Content-Type") != "text/plain; charset=utf-8" || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %v %q", status, header, body)
	}
	if o := b.logOptions; o.Tail == nil || *o.Tail != 0 || !o.Follow || !o.Since.Equal(birth) {
		t.Errorf("options: %+v", o)
	}
	s.get(t, http.MethodGet, path)
	if o := b.logOptions; o.Tail != nil || o.Follow || !o.Since.IsZero() {
		t.Errorf("without parameters: %+v", o)
	}
	if status, _, body := s.get(t, http.MethodHead, path+"?follow=true"); status != http.StatusOK || body != "" || b.logOptions.Follow {
		t.Errorf("HEAD: %d %q, follow %t", status, body, b.logOptions.Follow)
	}
}
