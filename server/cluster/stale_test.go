package cluster_test

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// TestChangeOnAStaleView: what a replica knows may show a change as already made that another
// replica has undone since.
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
	if got, err := stale.Read(t.Context(), id); err != nil || got.Metadata["team"] != blue {
		t.Errorf("Read returns %v, %v, want what the other replica has answered", got.Metadata, err)
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

// TestReadsShowWhatOtherReplicasAnswered: a replica whose watch brings nothing reads and waits for
// what another one has changed, and shows what it knows while the API server is away.
func TestReadsShowWhatOtherReplicasAnswered(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	one := s.replica(t)
	id := create(t, one, sampleSpec()).ID
	var away atomic.Bool
	stale := s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Query().Has("watch") {
			<-r.Context().Done()
			return
		}
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
		pass.ServeHTTP(w, r)
	}))
	known, err := stale.Get(t.Context(), id)
	must(t, err)
	expires := known.ExpiresAt.Add(time.Minute)
	_, err = one.Renew(t.Context(), id, expires)
	must(t, err)
	if got, err := stale.Read(t.Context(), id); err != nil || !got.ExpiresAt.Equal(expires) {
		t.Errorf("Read returns a sandbox that expires at %v, %v, want %v", got.ExpiresAt, err, expires)
	}
	must(t, one.Delete(t.Context(), id))
	if got, err := stale.AwaitStable(t.Context(), id, time.Millisecond); err != nil || got.Status.State != lifecycle.StateStopping {
		t.Errorf("AwaitStable returns %s, %v", got.Status.State, err)
	}
	away.Store(true)
	if got, err := stale.Read(t.Context(), id); err != nil || got.Status.State != lifecycle.StateStopping {
		t.Errorf("without the API server what is read is %s, %v", got.Status.State, err)
	}
}

// TestListsHaveWhatOtherReplicasAnswered: a list has what another replica has answered, however
// late the watch brings it.
func TestListsHaveWhatOtherReplicasAnswered(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	one := s.replica(t)
	late := s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Query().Has("watch") {
			w = delayed{w, 50 * time.Millisecond}
		}
		pass.ServeHTTP(w, r)
	}))
	listed := func(team string) (ids []string) {
		listing, err := late.List(t.Context(), lifecycle.Filter{Metadata: map[string]string{"team": team}}, lifecycle.Page{Number: 1, Size: 10})
		must(t, err)
		for _, item := range listing.Items {
			ids = append(ids, item.ID)
		}
		return ids
	}
	id := create(t, one, sampleSpec()).ID
	if ids := listed("red"); !slices.Equal(ids, []string{id}) {
		t.Errorf("after a create the other replica lists %q", ids)
	}
	for n := range 10 {
		mark := strconv.Itoa(n)
		_, err := one.UpdateMetadata(t.Context(), id, map[string]*string{"team": &mark})
		must(t, err)
		if ids := listed(mark); !slices.Equal(ids, []string{id}) {
			t.Errorf("after change %d the other replica lists %q", n, ids)
		}
	}
	must(t, one.Delete(t.Context(), id))
	ended, err := late.List(t.Context(), lifecycle.Filter{States: []lifecycle.State{lifecycle.StateStopping}}, lifecycle.Page{Number: 1, Size: 10})
	if err != nil || len(ended.Items) != 1 {
		t.Errorf("after the deletion the other replica lists %v, %v", ended.Items, err)
	}
}

// TestQuotaCountsWhatOtherReplicasMade: one sandbox is the most, whichever replica is asked for the
// next one.
func TestQuotaCountsWhatOtherReplicasMade(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	one := s.replica(t)
	late := s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Query().Has("watch") {
			w = delayed{w, 50 * time.Millisecond}
		}
		pass.ServeHTTP(w, r)
	}))
	options := lifecycle.CreateOptions{Owner: "alice", MaxSandboxes: 1}
	_, err := one.Create(t.Context(), sampleSpec(), options)
	must(t, err)
	if second, err := late.Create(t.Context(), sampleSpec(), options); err == nil {
		t.Errorf("the other replica has made %s", second.ID)
	}
}

// delayed holds each piece of an answer back for a while.
type delayed struct {
	http.ResponseWriter
	by time.Duration
}

// Write writes a piece.
func (d delayed) Write(p []byte) (int, error) {
	time.Sleep(d.by) // the delay that must change no result
	return d.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (d delayed) Unwrap() http.ResponseWriter { return d.ResponseWriter }
