package e2e_test

import (
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/config"
)

func TestEventsOfALife(t *testing.T) {
	t.Parallel()
	s := start(t, plan{server: "terminated_retention = 1"})
	id := s.create(t, idle())
	path := "/v1/sandboxes/" + id + "/events"
	events := s.streamEvents(t, path)
	seen := events.until(state(id, "Running"))
	s.pause(t, id)
	seen = append(seen, events.until(state(id, "Paused"))...)
	s.resume(t, id)
	seen = append(seen, events.until(state(id, "Running"))...)
	expiresAt := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	s.renew(t, id, expiresAt.Format(time.RFC3339))
	s.send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", `{"name":"told"}`)
	s.delete(t, id)
	seen = append(seen, events.rest()...)

	const want = "Pending accepted pulled created started ready Running Pausing Paused Resuming Running renewed metadata Stopping Terminated forgotten"
	if got := describe(seen); got != want {
		t.Errorf("events: %s\nwant:   %s", got, want)
	}
	if events.err != nil {
		t.Errorf("the stream did not end as a whole: %v", events.err)
	}
	var last told
	for _, e := range seen {
		if e.id <= last.id || value(e.SandboxID) != id {
			t.Errorf("event %d (%s) of %s comes after %d", e.id, e.Type, value(e.SandboxID), last.id)
		}
		if e.Type == "state" && last.Type == "state" && value(e.From) != value(last.To) {
			t.Errorf("a state from %q comes after one to %q", value(e.From), value(last.To))
		}
		if e.Type == "stage" && value(e.Stage) != "accepted" && (e.DurationMs == nil || e.ElapsedMs == nil || *e.ElapsedMs < *e.DurationMs || *e.ElapsedMs <= 0) {
			t.Errorf("stage %s has no times: %+v", value(e.Stage), e.SandboxEvent)
		}
		if e.Type == "renewed" && !value(e.ExpiresAt).Equal(expiresAt) || e.Type == "metadata" && e.Metadata["name"] != "told" {
			t.Errorf("event %+v", e.SandboxEvent)
		}
		last = e
	}
	wantProblem(t, s.send(t, http.MethodGet, path, ""), 404, "SANDBOX_NOT_FOUND")

	// The stream of all sandboxes still has them, from any point on.
	all := s.streamEvents(t, "/v1/events?after=0")
	if got := describe(all.until(func(e told) bool { return e.Type == "forgotten" })); got != want {
		t.Errorf("events of all sandboxes: %s", got)
	}
	middle := s.streamEvents(t, "/v1/events?after=0", "Last-Event-ID", strconv.FormatInt(seen[9].id, 10))
	if got := describe(middle.until(func(e told) bool { return e.Type == "forgotten" })); got != describe(seen[10:]) {
		t.Errorf("events after the tenth: %s, want %s", got, describe(seen[10:]))
	}
}

// TestEventsReset asks for events that are not there any more, or are of another database.
func TestEventsReset(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	id := s.running(t, idle())
	for _, after := range []string{"1", "999999999999999999"} {
		for _, path := range []string{"/v1/events", "/v1/sandboxes/" + id + "/events"} {
			events := s.streamEvents(t, path+"?after="+after)
			reset := events.until(func(told) bool { return true })[0]
			if reset.Type != "reset" || reset.id == 0 {
				t.Fatalf("%s after %s begins with %+v", path, after, reset)
			}
			if after == "1" {
				events.until(state(id, "Running"))
			}
			// It goes on, and from its own id on there is no other reset.
			again := s.streamEvents(t, path, "Last-Event-ID", strconv.FormatInt(reset.id, 10))
			s.send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", `{"at":`+strconv.Quote(path+after)+`}`)
			for _, stream := range []*stream{events, again} {
				seen := stream.until(func(e told) bool { return e.Type == "metadata" && e.Metadata["at"] == path+after })
				if slices.ContainsFunc(seen, func(e told) bool { return e.Type == "reset" }) {
					t.Errorf("%s after %s: another reset", path, after)
				}
			}
		}
	}

	// A lost database does not give ids out twice.
	before := s.streamEvents(t, "/v1/events?after=0").until(state(id, "Running"))
	last := before[len(before)-1].id
	s.halt(t)
	if err := os.RemoveAll(s.folder); err != nil {
		t.Fatal(err)
	}
	s.boot(t)
	after := s.streamEvents(t, "/v1/sandboxes/"+id+"/events", "Last-Event-ID", strconv.FormatInt(last, 10))
	if seen := after.until(state(id, "Running")); seen[0].Type != "reset" || seen[1].id <= last {
		t.Errorf("after the loss of the database, events after %d: %s, the second is %d", last, describe(seen), seen[1].id)
	}
}

func TestEventsHaveScopes(t *testing.T) {
	t.Parallel()
	s := start(t, plan{keys: []config.Key{
		{Name: "user", SHA256: digest(userKey), Role: config.RoleUser},
		{Name: "other", SHA256: digest(otherKey), Role: config.RoleUser},
		{Name: "viewer", SHA256: digest(viewerKey), Role: config.RoleViewer},
	}})
	user, other, viewer := s.as(t, userKey), s.as(t, otherKey), s.as(t, viewerKey)
	streams := map[*client]*stream{}
	for _, c := range []*client{&s.client, user, other, viewer} {
		streams[c] = c.streamEvents(t, "/v1/events?after=0")
	}
	mine, theirs := user.create(t, idle()), other.create(t, idle())
	for _, c := range []*client{&s.client, viewer} {
		seen, missing := map[string]bool{}, []string{mine, theirs}
		streams[c].until(func(e told) bool {
			if value(e.To) == "Running" {
				seen[value(e.SandboxID)] = true
			}
			return !slices.ContainsFunc(missing, func(id string) bool { return !seen[id] })
		})
	}
	for c, id := range map[*client]string{user: mine, other: theirs} {
		for _, e := range streams[c].until(state(id, "Running")) {
			if value(e.SandboxID) != id {
				t.Errorf("the key that owns %s is told of %s", id, value(e.SandboxID))
			}
		}
	}
}

// TestEventsSurviveKills kills the service in the middle of streams and of work. What a client is told over all connections is one
// sequence without a gap or a repetition, and leads to the state that each sandbox has.
func TestEventsSurviveKills(t *testing.T) {
	t.Parallel()
	s := start(t, plan{program: true})
	var last int64
	states := map[string]string{}
	note := func(e told) {
		if e.Type == "reset" {
			t.Errorf("a reset at %d", e.id)
		}
		if last != 0 && e.id != last+1 {
			t.Errorf("event %d (%s) comes after %d", e.id, describe([]told{e}), last)
		}
		last = e.id
		if e.Type == "state" {
			if from := value(e.From); from != states[value(e.SandboxID)] {
				t.Errorf("%s: told to come from %q, was told before to be %q", value(e.SandboxID), from, states[value(e.SandboxID)])
			}
			states[value(e.SandboxID)] = value(e.To)
		}
	}
	for round, after := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 1200 * time.Millisecond} {
		path := "/v1/events"
		if round == 0 {
			path += "?after=0"
		}
		events := s.streamEvents(t, path, "Last-Event-ID", resumeAt(last))
		var creates sync.WaitGroup
		for range 4 {
			creates.Go(func() { _, _ = s.try(http.MethodPost, "/v1/sandboxes", encode(t, idle())) })
		}
		events.until(func(e told) bool { note(e); return true }) // the storm has begun
		time.Sleep(after)                                        // the moment of the crash, not a wait for something
		s.kill()
		creates.Wait()
		for _, e := range events.rest() {
			note(e)
		}
		s.boot(t)
	}
	for _, sandbox := range s.everything(t) {
		s.settled(t, sandbox.ID)
	}
	// The end is told by a change that comes after everything else.
	all := s.everything(t)
	mark := all[0].ID
	s.send(t, http.MethodPatch, "/v1/sandboxes/"+mark+"/metadata", `{"mark":"1"}`)
	for _, e := range s.streamEvents(t, "/v1/events", "Last-Event-ID", resumeAt(last)).until(func(e told) bool { return e.Metadata["mark"] == "1" }) {
		note(e)
	}
	for _, sandbox := range all {
		if got := s.get(t, sandbox.ID).Status.State; got != states[sandbox.ID] {
			t.Errorf("%s is %s, and was told to be %s", sandbox.ID, got, states[sandbox.ID])
		}
	}
	if len(all) == 0 || last == 0 {
		t.Error("nothing was created: this proves nothing")
	}
	t.Logf("%d sandboxes, last event %d", len(all), last)
}

func resumeAt(id int64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatInt(id, 10)
}

// TestSlowReaderHoldsNobodyUp has a client that does not read its stream while a thousand events happen.
func TestSlowReaderHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	id := s.running(t, idle())
	response, _ := s.open(t, "/v1/sandboxes/"+id+"/events")
	slow := &stream{t: t, events: make(chan told, 10_000)}
	const changes = 1000
	long := string(slices.Repeat([]byte("x"), 4000)) // four megabytes in all: more than a connection holds
	for i := range changes {
		got := s.send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", `{"long":"`+long+`","count":"`+strconv.Itoa(i)+`"}`)
		if got.status != http.StatusOK {
			t.Fatalf("change %d: %s", i, got)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(slow.events)
		slow.err = slow.read(response.Body, s.conform)
	}()
	t.Cleanup(func() { response.Body.Close(); <-done })
	// A client that takes nothing for long enough is disconnected, which a slow machine can bring about here. It loses nothing either.
	count, last := 0, int64(0)
	for current := slow; count < changes; {
		e, open := current.next()
		if !open {
			t.Logf("disconnected after %d changes: %v", count, current.err)
			current = s.streamEvents(t, "/v1/sandboxes/"+id+"/events", "Last-Event-ID", resumeAt(last))
			continue
		}
		last = e.id
		if e.Type == "metadata" {
			if e.Metadata["count"] != strconv.Itoa(count) {
				t.Fatalf("the event with count %s comes where %d was expected", e.Metadata["count"], count)
			}
			count++
		}
	}
}

func TestMetadataPatch(t *testing.T) {
	t.Parallel()
	s := start(t, plan{program: true})
	r := idle()
	r.Metadata = lifecycle.Metadata{"name": "first", "team": "red"}
	id := s.running(t, r)
	patch := func(body string) answer {
		t.Helper()
		return s.send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", body)
	}
	for _, c := range []struct{ body, want string }{
		{`{}`, `{"name":"first","team":"red"}`},
		{`{"name":"second","team":null,"new":""}`, `{"name":"second","new":""}`},
		{`{"absent":null}`, `{"name":"second","new":""}`},
	} {
		if got := patch(c.body); got.status != http.StatusOK || got.body != c.want+"\n" {
			t.Errorf("patch %s: %s, want %s", c.body, got, c.want)
		}
	}
	s.kill()
	s.boot(t)
	if got := s.get(t, id).Metadata; len(got) != 2 || got["name"] != "second" {
		t.Errorf("after a kill the metadata is %v", got)
	}
	if got := ids(s.page(t, "metadata=name%3Dsecond").Items); !slices.Equal(got, []string{id}) {
		t.Errorf("the filter by the new value finds %v", got)
	}
	if got := s.page(t, "metadata=team%3Dred").Items; len(got) != 0 {
		t.Errorf("the filter by the removed value finds %v", ids(got))
	}
	if got := patch(`{"name":null,"new":null}`); got.body != "{}\n" {
		t.Errorf("without any metadata: %s", got)
	}
}
