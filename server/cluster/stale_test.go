package cluster_test

import (
	"maps"
	"net/http"
	"testing"

	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// TestChangeOnAStaleView: what a replica knows may show a change as already made that another replica has undone since.
func TestChangeOnAStaleView(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	one := s.replica(t)
	id := create(t, one, sampleSpec()).ID
	red, blue := "red", "blue"
	stale := s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Query().Has("watch") {
			<-r.Context().Done() // it has its list, and learns nothing more
			return
		}
		pass.ServeHTTP(w, r)
	}))
	_, err := one.UpdateMetadata(t.Context(), id, map[string]*string{"team": &blue})
	must(t, err)
	if got, err := stale.Get(t.Context(), id); err != nil || got.Metadata["team"] != red {
		t.Fatalf("the view is not stale: %v, %v", got.Metadata, err)
	}
	merged, err := stale.UpdateMetadata(t.Context(), id, map[string]*string{"team": &red})
	must(t, err)
	e, err := view.NewEntry(s.batch(t, id))
	must(t, err)
	if merged["team"] != red || !maps.Equal(merged, e.Sandbox.Metadata) {
		t.Errorf("answered is %v, the resource has %v", merged, e.Sandbox.Metadata)
	}
	// Deleted by one, the sandbox is Stopping for the other; nothing to do stays nothing to do.
	must(t, one.Delete(t.Context(), id))
	must(t, stale.Delete(t.Context(), id))
	before := s.batch(t, id).ResourceVersion
	must(t, stale.Delete(t.Context(), id))
	if after := s.batch(t, id); after.ResourceVersion != before || awaitState(t, stale, id, lifecycle.StateStopping).ID != id {
		t.Errorf("a repeated delete has written")
	}
}
