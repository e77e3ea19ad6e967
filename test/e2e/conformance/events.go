package conformance

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
	"sandbox.internal/test/wait"
)

func testEventsOfALife(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Server: "terminated_retention = 1"})
	id := s.Create(t, s.Idle())
	path := "/v1/sandboxes/" + id + "/events"
	events := s.StreamEvents(t, path)
	seen := events.Until(State(id, "Running"))
	s.Pause(t, id)
	seen = append(seen, events.Until(State(id, "Paused"))...)
	s.Resume(t, id)
	seen = append(seen, events.Until(State(id, "Running"))...)
	expiresAt := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	s.Renew(t, id, expiresAt.Format(time.RFC3339))
	s.Send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", `{"name":"renamed"}`)
	s.Delete(t, id)
	seen = append(seen, events.Rest()...)

	others, stages := withoutStages(seen)
	if got := Describe(others); got != wholeLife {
		t.Errorf("events: %s\nwant:   %s", got, wholeLife)
	}
	if events.err != nil {
		t.Errorf("the stream did not end as a whole: %v", events.err)
	}
	var last StreamEvent
	state := ""
	for _, e := range seen {
		if e.ID <= last.ID || Value(e.SandboxID) != id {
			t.Errorf("event %d (%s) of %s comes after %d", e.ID, e.Type, Value(e.SandboxID),
				last.ID)
		}
		if e.Type == "state" {
			if Value(e.From) != state {
				t.Errorf("a state from %q comes after one to %q", Value(e.From), state)
			}
			state = Value(e.To)
		}
		if e.Type == "stage" && state != "Pending" {
			t.Errorf("stage %s is reported while the sandbox is %s", Value(e.Stage), state)
		}
		if e.Type == "stage" && Value(e.Stage) != "accepted" &&
			(e.DurationMs == nil || e.ElapsedMs == nil || *e.ElapsedMs < *e.DurationMs ||
				*e.ElapsedMs <= 0) {
			t.Errorf("stage %s has no times: %+v", Value(e.Stage), e.SandboxEvent)
		}
		if e.Type == "renewed" && !Value(e.ExpiresAt).Equal(expiresAt) || e.Type == "metadata" &&
			e.Metadata["name"] != "renamed" {
			t.Errorf("event %+v", e.SandboxEvent)
		}
		last = e
	}
	// What happens in between depends on the backend.
	if got := Describe(stages); !strings.HasPrefix(got, "accepted ") ||
		!strings.HasSuffix(got, " ready") {
		t.Errorf("the stages are %s, want them from accepted to ready", got)
	}
	WantProblem(t, s.Send(t, http.MethodGet, path, ""), 404, "SANDBOX_NOT_FOUND")
}

// wholeLife has the events of a sandbox that is paused, resumed, renewed, named and deleted, but
// for the stages of its creation.
const wholeLife = "Pending Running Pausing Paused Resuming Running renewed metadata Stopping Terminated forgotten"

// withoutStages sorts events.
func withoutStages(events []StreamEvent) (others, stages []StreamEvent) {
	for _, e := range events {
		if e.Type == "stage" {
			stages = append(stages, e)
		} else {
			others = append(others, e)
		}
	}
	return others, stages
}

// testEventsOfAllLives: the stream of all sandboxes has the events of a removed one, from any point
// on.
func testEventsOfAllLives(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Server: "terminated_retention = 1"})
	id := s.Running(t, s.Idle())
	s.Pause(t, id)
	s.Delete(t, id)
	isForgotten := func(e StreamEvent) bool { return e.Type == "forgotten" }
	all := s.StreamEvents(t, "/v1/events?after=0").Until(isForgotten)
	others, _ := withoutStages(all)
	if got, want := Describe(others),
		"Pending Running Pausing Paused Stopping Terminated forgotten"; got != want {
		t.Errorf("events of all sandboxes: %s, want %s", got, want)
	}
	middle := len(all) / 2
	rest := s.StreamEvents(t, "/v1/events?after=0", "Last-Event-ID",
		strconv.FormatInt(all[middle].ID, 10)).Until(isForgotten)
	if got, want := Describe(rest), Describe(all[middle+1:]); got != want {
		t.Errorf("events after %s: %s, want %s", Describe(all[:middle+1]), got, want)
	}
}

// testEventsReset requests events after one that never existed.
func testEventsReset(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	id := s.Running(t, s.Idle())
	for _, path := range []string{"/v1/events", "/v1/sandboxes/" + id + "/events"} {
		events := s.StreamEvents(t, path+"?after=999999999999999999")
		reset := events.Until(func(StreamEvent) bool { return true })[0]
		if reset.Type != "reset" || reset.ID == 0 {
			t.Fatalf("%s begins with %+v", path, reset)
		}
		// It goes on, and from its own id on there is no other reset.
		again := s.StreamEvents(t, path, "Last-Event-ID", strconv.FormatInt(reset.ID, 10))
		s.Send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata",
			`{"at":`+strconv.Quote(path)+`}`)
		for _, stream := range []*Stream{events, again} {
			seen := stream.Until(func(e StreamEvent) bool {
				return e.Type == "metadata" &&
					e.Metadata["at"] == path
			})
			if slices.ContainsFunc(seen, func(e StreamEvent) bool { return e.Type == "reset" }) {
				t.Errorf("%s: another reset", path)
			}
		}
	}
}

func testEventsHaveScopes(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Keys: []config.Key{
		{Name: "user", SHA256: Digest(userKey), Role: config.RoleUser},
		{Name: "other", SHA256: Digest(OtherKey), Role: config.RoleUser},
		{Name: "viewer", SHA256: Digest(ViewerKey), Role: config.RoleViewer},
	}})
	user, other, viewer := s.As(t, userKey), s.As(t, OtherKey), s.As(t, ViewerKey)
	streams := map[*Client]*Stream{}
	for _, c := range []*Client{&s.Client, user, other, viewer} {
		streams[c] = c.StreamEvents(t, "/v1/events?after=0")
	}
	mine, theirs := user.Create(t, s.Idle()), other.Create(t, s.Idle())
	for _, c := range []*Client{&s.Client, viewer} {
		seen, missing := map[string]bool{}, []string{mine, theirs}
		streams[c].Until(func(e StreamEvent) bool {
			if Value(e.To) == "Running" {
				seen[Value(e.SandboxID)] = true
			}
			return !slices.ContainsFunc(missing, func(id string) bool { return !seen[id] })
		})
	}
	for c, id := range map[*Client]string{user: mine, other: theirs} {
		for _, e := range streams[c].Until(State(id, "Running")) {
			if Value(e.SandboxID) != id {
				t.Errorf("the key that owns %s gets an event of %s", id, Value(e.SandboxID))
			}
		}
	}
}

func testEventsSurviveKills(t *testing.T, b Backend) {
	EventsSurviveKills(t, b, func(last, next int64) bool { return next > last })
}

// EventsSurviveKills kills the service in the middle of streams and of work. The events that a
// client receives over all connections are one sequence without a gap or a repetition, and lead to
// the state that each sandbox has. The backend says which ids may follow each other.
func EventsSurviveKills(t *testing.T, b Backend, follows func(last, next int64) bool) {
	s := Start(t, b, Plan{Program: true})
	var last int64
	states := map[string]string{}
	note := func(e StreamEvent) {
		if e.Type == "reset" {
			t.Errorf("a reset at %d", e.ID)
		}
		if last != 0 && !follows(last, e.ID) {
			t.Errorf("event %d (%s) comes after %d", e.ID, Describe([]StreamEvent{e}), last)
		}
		last = e.ID
		if e.Type == "state" {
			if from := Value(e.From); from != states[Value(e.SandboxID)] {
				t.Errorf("%s: the event says from %q, the one before said %q", Value(e.SandboxID),
					from, states[Value(e.SandboxID)])
			}
			states[Value(e.SandboxID)] = Value(e.To)
		}
	}
	for round, after := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond,
		1200 * time.Millisecond} {
		path := "/v1/events"
		if round == 0 {
			path += "?after=0"
		}
		events := s.StreamEvents(t, path, "Last-Event-ID", resumeAt(last))
		var creates sync.WaitGroup
		for range 4 {
			creates.Go(func() {
				_,
					_ = s.Try(http.MethodPost, "/v1/sandboxes", Encode(t, s.Idle()))
			})
		}
		events.Until(func(e StreamEvent) bool { note(e); return true }) // events have begun
		time.Sleep(after)                                               // the moment of the kill, not a wait for something
		s.Kill()
		creates.Wait()
		for _, e := range events.Rest() {
			note(e)
		}
		s.Boot(t)
	}
	for _, sandbox := range s.Everything(t) {
		s.Settled(t, sandbox.ID)
	}
	// The end is marked by a change that comes after everything else.
	all := s.Everything(t)
	mark := all[0].ID
	s.Send(t, http.MethodPatch, "/v1/sandboxes/"+mark+"/metadata", `{"mark":"1"}`)
	for _, e := range s.StreamEvents(t, "/v1/events", "Last-Event-ID",
		resumeAt(last)).Until(func(e StreamEvent) bool { return e.Metadata["mark"] == "1" }) {
		note(e)
	}
	for _, sandbox := range all {
		if got := s.Get(t, sandbox.ID).Status.State; got != states[sandbox.ID] {
			t.Errorf("%s is %s, and its last event says %s", sandbox.ID, got, states[sandbox.ID])
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

// prompt is how long a change and its event may take, while another client does not read. An event
// that waited for that client would come when it is disconnected: after serve.DefaultWriteTimeout,
// 30 s. An API server on a busy machine was seen to take 7 s.
const prompt = 15 * time.Second

// testSlowReaderDelaysNoOther has a client that does not read its stream while a thousand events
// happen, and one that does.
func testSlowReaderDelaysNoOther(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	id := s.Running(t, s.Idle())
	response, _ := s.openEndless(t, "/v1/sandboxes/"+id+"/events")
	slow := &Stream{t: t, events: make(chan StreamEvent, 10_000)}
	other := s.StreamEvents(t, "/v1/sandboxes/"+id+"/events")
	const changes = 1000
	// four megabytes in all: more than a connection holds
	long := string(slices.Repeat([]byte("x"), 4000))
	for i := range changes {
		began := time.Now()
		got := s.Send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata",
			`{"long":"`+long+`","count":"`+strconv.Itoa(i)+`"}`)
		if got.Status != http.StatusOK {
			t.Fatalf("change %d: %s", i, got)
		}
		other.Until(func(e StreamEvent) bool { return e.Metadata["count"] == strconv.Itoa(i) })
		if took := time.Since(began); took > prompt {
			t.Fatalf("change %d and its event took %v", i, took)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(slow.events)
		slow.err = slow.read(response.Body, s.Conform)
	}()
	t.Cleanup(func() { response.Body.Close(); wait.For(t, "the end of the reader", done) })
	// A client that takes nothing for long enough is disconnected, which a slow machine can bring
	// about here. It loses nothing either.
	count, last := 0, int64(0)
	for current := slow; count < changes; {
		e, open := current.Next()
		if !open {
			t.Logf("disconnected after %d changes: %v", count, current.err)
			current = s.StreamEvents(t, "/v1/sandboxes/"+id+"/events", "Last-Event-ID",
				resumeAt(last))
			continue
		}
		last = e.ID
		if e.Type == "metadata" {
			if e.Metadata["count"] != strconv.Itoa(count) {
				t.Fatalf("the event with count %s comes where %d was expected", e.Metadata["count"],
					count)
			}
			count++
		}
	}
}

func testMetadataPatch(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Program: true})
	r := s.Idle()
	r.Metadata = lifecycle.Metadata{"name": "first", "team": "red"}
	id := s.Running(t, r)
	patch := func(body string) Answer {
		t.Helper()
		return s.Send(t, http.MethodPatch, "/v1/sandboxes/"+id+"/metadata", body)
	}
	for _, c := range []struct{ body, want string }{
		{`{}`, `{"name":"first","team":"red"}`},
		{`{"name":"second","team":null,"new":""}`, `{"name":"second","new":""}`},
		{`{"absent":null}`, `{"name":"second","new":""}`},
	} {
		if got := patch(c.body); got.Status != http.StatusOK || got.Body != c.want+"\n" {
			t.Errorf("patch %s: %s, want %s", c.body, got, c.want)
		}
	}
	s.Kill()
	s.Boot(t)
	if got := s.Get(t, id).Metadata; len(got) != 2 || got["name"] != "second" {
		t.Errorf("after a kill the metadata is %v", got)
	}
	if got := IDs(s.page(t, "metadata=name%3Dsecond").Items); !slices.Equal(got, []string{id}) {
		t.Errorf("the filter by the new value finds %v", got)
	}
	if got := s.page(t, "metadata=team%3Dred").Items; len(got) != 0 {
		t.Errorf("the filter by the removed value finds %v", IDs(got))
	}
	if got := patch(`{"name":null,"new":null}`); got.Body != "{}\n" {
		t.Errorf("without any metadata: %s", got)
	}
}
