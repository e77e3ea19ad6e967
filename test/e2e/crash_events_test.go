package e2e_test

import (
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"sandbox.internal/test/e2e/conformance"
)

// removed stands for a key of metadata that the last event about it removed.
const removed = "\x00removed"

// checkEvents checks all events of the test: one sequence without a gap, each sandbox's states one
// out of the other, and at the end of it what GET shows.
func (st *crashRun) checkEvents(t *testing.T, clients []*crashClient) {
	t.Helper()
	type account struct {
		state    string
		expires  time.Time
		metadata map[string]string // what its events have changed
	}
	// An event after all others.
	marker := uuid.NewString()
	var marked *crashClient
	for _, p := range clients {
		if !p.gone {
			marked = p
		}
	}
	if marked == nil {
		t.Fatal("no sandbox is left for the last event")
	}
	if got := st.s.Send(t, http.MethodPatch, "/v1/sandboxes/"+marked.id+"/metadata",
		`{"end": "`+marker+`"}`); got.Status != http.StatusOK {
		t.Fatalf("patch: %s", got)
	}
	marked.metadata["end"] = marker

	accounts := map[string]*account{}
	stream := st.s.StreamEvents(t, "/v1/events?after=0")
	events := stream.Until(func(e conformance.StreamEvent) bool {
		return e.Type == "metadata" &&
			e.Metadata["end"] == marker
	})
	for i, e := range events {
		if i > 0 && e.ID != events[i-1].ID+1 {
			t.Errorf("event %d (%s) follows event %d", e.ID, e.Type, events[i-1].ID)
		}
		id := conformance.Value(e.SandboxID)
		a := accounts[id]
		if a == nil {
			if e.Type != "state" || conformance.Value(e.To) != "Pending" {
				t.Errorf("the events of %s begin with %+v", id, e.SandboxEvent)
			}
			a = &account{}
			accounts[id] = a
		}
		switch e.Type {
		case "state":
			if conformance.Value(e.From) != a.state {
				t.Errorf("%s comes from %q to %q, it was %q", id, conformance.Value(e.From),
					conformance.Value(e.To), a.state)
			}
			a.state = conformance.Value(e.To)
		case "renewed":
			a.expires = conformance.Value(e.ExpiresAt)
		case "metadata":
			if a.metadata == nil {
				a.metadata = map[string]string{}
			}
			maps.Copy(a.metadata, e.Metadata)
			for _, key := range e.MetadataRemoved {
				a.metadata[key] = removed
			}
		}
	}
	listed := st.s.Everything(t)
	if len(listed) != len(accounts) {
		t.Errorf("%d sandboxes are listed, the events name %d", len(listed), len(accounts))
	}
	for _, sandbox := range listed {
		a := accounts[sandbox.ID]
		if a == nil {
			t.Errorf("no event names %s", sandbox.ID)
			continue
		}
		if a.state != sandbox.Status.State {
			t.Errorf("%s is %s, the events end with %s", sandbox.ID, sandbox.Status.State, a.state)
		}
		if !a.expires.IsZero() && !a.expires.Equal(sandbox.ExpiresAt) {
			t.Errorf("%s expires at %v, its last renewal was to %v", sandbox.ID, sandbox.ExpiresAt,
				a.expires)
		}
		for key, value := range a.metadata {
			if has, there := sandbox.Metadata[key]; there != (value != removed) || there &&
				has != value {
				t.Errorf("%s has the metadata %v, the events of its changes say %v", sandbox.ID,
					sandbox.Metadata, a.metadata)
			}
		}
	}
	t.Logf("%d events", len(events))
}
