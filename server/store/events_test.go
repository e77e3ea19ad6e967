package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

func event(id string, at time.Time) lifecycle.Event {
	return lifecycle.Event{SandboxID: id, Owner: "owner of " + id, Type: lifecycle.EventState,
		Time: at, To: lifecycle.StateRunning}
}

func page(t testing.TB, s *store.Store, query lifecycle.EventQuery) lifecycle.EventPage {
	t.Helper()
	if query.Limit == 0 {
		query.Limit = math.MaxInt
	}
	found, err := s.Events(context.Background(), query)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// wantGapless checks the events and the bounds of everything stored.
func wantGapless(t testing.TB, s *store.Store, count int) lifecycle.EventPage {
	t.Helper()
	all := page(t, s, lifecycle.EventQuery{})
	if len(all.Events) != count || all.Newest-all.Oldest+1 != int64(count) {
		t.Fatalf("%d events within %d and %d, want %d", len(all.Events), all.Oldest, all.Newest,
			count)
	}
	for i, e := range all.Events {
		if e.Sequence != all.Oldest+int64(i) {
			t.Fatalf("event %d has the sequence %d, the oldest is %d", i, e.Sequence, all.Oldest)
		}
	}
	return all
}

// TestStoredSize: what is stored follows what a client sent, in characters that JSON in HTML has in
// six bytes, too.
func TestStoredSize(t *testing.T) {
	const sent = 1 << 20
	dir := t.TempDir()
	s := open(t, dir)
	r, e := record("a"), event("a", birth)
	r.Sandbox.Metadata = map[string]string{"key": strings.Repeat("<", sent)}
	e.Metadata = r.Sandbox.Metadata
	if err := s.Insert(t.Context(), r, nil, e); err != nil {
		t.Fatal(err)
	}
	var ofRecord, ofEvent int
	if err := rawDB(t, dir).QueryRow(`SELECT length(record), length(event) FROM sandboxes, events`).
		Scan(&ofRecord, &ofEvent); err != nil {
		t.Fatal(err)
	}
	if ofRecord > sent+4096 || ofEvent > sent+4096 {
		t.Errorf("the record has %d bytes, the event %d", ofRecord, ofEvent)
	}
}

func TestEventRoundTrip(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	insert(t, s, record("a"))
	all := []lifecycle.Event{
		{Type: lifecycle.EventState, From: lifecycle.StatePending, To: lifecycle.StateFailed,
			Reason: lifecycle.ReasonOOMKilled, Message: "<&>\n"},
		{Type: lifecycle.EventStage, Stage: lifecycle.StagePulled, Took: 3, Elapsed: 5},
		{Type: lifecycle.EventRenewed, ExpiresAt: birth.Add(time.Hour)},
		{Type: lifecycle.EventMetadata, Metadata: map[string]string{"name": "x"},
			Removed: []string{"team"}},
		{Type: lifecycle.EventForgotten},
	}
	for i := range all {
		all[i].SandboxID, all[i].Owner, all[i].Time = "a", "alice", birth.Add(time.Duration(i))
	}
	if err := s.Save(t.Context(), record("a"), all...); err != nil {
		t.Fatal(err)
	}
	got := wantGapless(t, reopen(t, s, dir), len(all))
	for i := range all {
		all[i].Sequence = got.Oldest + int64(i)
	}
	if !reflect.DeepEqual(got.Events, all) {
		t.Errorf("got  %+v\nwant %+v", got.Events, all)
	}
}

func TestEventQueries(t *testing.T) {
	s := open(t, t.TempDir())
	empty := wantGapless(t, s, 0)
	for _, id := range []string{"a", "b", "a", "b", "a"} {
		r := record(id)
		err := s.Save(t.Context(), r, event(id, birth))
		if err != nil { // the first time
			err = s.Insert(t.Context(), r, nil, event(id, birth))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wantGapless(t, s, 5)
	first, alice, nobody := empty.Newest, "owner of a", "nobody"
	for name, c := range map[string]struct {
		query lifecycle.EventQuery
		want  []int64 // after the first
	}{
		"all":              {lifecycle.EventQuery{}, []int64{1, 2, 3, 4, 5}},
		"one sandbox":      {lifecycle.EventQuery{SandboxID: "a"}, []int64{1, 3, 5}},
		"one owner":        {lifecycle.EventQuery{Owner: &alice}, []int64{1, 3, 5}},
		"nobody":           {lifecycle.EventQuery{Owner: &nobody}, nil},
		"after":            {lifecycle.EventQuery{After: first + 3}, []int64{4, 5}},
		"after the newest": {lifecycle.EventQuery{After: first + 5}, nil},
		"far in future":    {lifecycle.EventQuery{After: math.MaxInt64}, nil},
		"limited": {lifecycle.EventQuery{After: first + 1, SandboxID: "a", Limit: 1},
			[]int64{3}},
	} {
		t.Run(name, func(t *testing.T) {
			found := page(t, s, c.query)
			var got []int64
			for _, e := range found.Events {
				got = append(got, e.Sequence-first)
			}
			if !slices.Equal(got, c.want) || found.Oldest != first+1 || found.Newest != first+5 {
				t.Errorf("got %v within %d and %d, want %v", got, found.Oldest-first,
					found.Newest-first, c.want)
			}
		})
	}
}

// An event is stored exactly when its change is.
func TestEventsAreAsDurableAsTheirChange(t *testing.T) {
	ctx := t.Context()
	s := open(t, t.TempDir())
	key := &lifecycle.IdempotencyKey{Owner: "o", Key: "k", CreatedAt: birth}
	if err := s.Insert(ctx, record("a"), key, event("a", birth)); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"insert twice":        s.Insert(ctx, record("a"), nil, event("a", birth)),
		"insert with a key":   s.Insert(ctx, record("b"), key, event("b", birth)),
		"save what is absent": s.Save(ctx, record("b"), event("b", birth)),
	} {
		if err == nil {
			t.Errorf("%s worked", what)
		}
	}
	if err := s.Forget(ctx, "b", event("b", birth)); err != nil {
		t.Errorf("forget what is absent: %v", err)
	}
	wantGapless(t, s, 1)
	if err := s.Forget(ctx, "a", event("a", birth), event("a", birth)); err != nil {
		t.Fatal(err)
	}
	wantGapless(t, s, 3)

	// Among others in one transaction, the failed ones leave no gap.
	var group errgroup.Group
	for i := range 100 {
		group.Go(func() error {
			r := record(fmt.Sprint("many-", i))
			if i%3 == 0 {
				if s.Save(ctx, r, event("x", birth)) == nil {
					return errors.New("a save of what is absent worked")
				}
				return nil
			}
			return s.Insert(ctx, r, nil, event(r.Sandbox.ID, birth))
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	wantGapless(t, s, 3+66)
}

func TestTrimEvents(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, dir)
	trim := func(keep int, notBefore time.Time, want int) {
		t.Helper()
		if err := s.TrimEvents(ctx, keep, notBefore); err != nil {
			t.Fatal(err)
		}
		wantGapless(t, s, want)
	}
	trim(10, birth, 0)
	insert(t, s, record("a"))
	for i := range 10 {
		if err := s.Save(ctx, record("a"),
			event("a", birth.Add(time.Duration(i)*time.Minute))); err != nil {
			t.Fatal(err)
		}
	}
	newest := wantGapless(t, s, 10).Newest
	trim(10, birth, 10)
	trim(8, birth, 8)
	trim(8, birth.Add(5*time.Minute), 5)
	trim(0, birth, 0)
	// The sequence goes on where it was, also after a restart with no event left.
	s = reopen(t, s, dir)
	if got := wantGapless(t, s, 0); got.Newest != newest {
		t.Errorf("the newest is %d, it was %d", got.Newest, newest)
	}
	if err := s.Save(ctx, record("a"), event("a", birth)); err != nil {
		t.Fatal(err)
	}
	if got := wantGapless(t, s, 1); got.Newest != newest+1 {
		t.Errorf("the next is %d, the newest was %d", got.Newest, newest)
	}
	trim(10, birth.Add(time.Hour), 0)
}

func TestANewDatabaseGoesOnBehindTheOld(t *testing.T) {
	first := wantGapless(t, open(t, t.TempDir()), 0).Newest
	if age := time.Since(time.UnixMilli(first)); age < -time.Minute || age > time.Minute {
		t.Errorf("the sequence begins at %d, %v ago", first, age)
	}
}

func TestLogs(t *testing.T) {
	ctx := t.Context()
	s := open(t, t.TempDir())
	insert(t, s, record("a"))
	want := func(id string, text []byte, kept bool) {
		t.Helper()
		if got, found, err := s.Log(ctx, id); err != nil || found != kept ||
			!bytes.Equal(got, text) {
			t.Errorf("log of %s: %q, %v, %v; want %q, %v", id, got, found, err, text, kept)
		}
	}
	want("a", nil, false)
	for _, text := range [][]byte{nil, []byte("\x00\xff\n"), []byte("newer")} {
		if err := s.SaveLog(ctx, "a", text); err != nil {
			t.Fatal(err)
		}
		want("a", text, true)
	}
	if err := s.SaveLog(ctx, "absent", []byte("x")); err != nil {
		t.Fatal(err)
	}
	want("absent", nil, false)
	if err := s.Forget(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	want("a", nil, false)
}

// large returns an event of so many bytes, and a few more.
func large(id string, size int) lifecycle.Event {
	return lifecycle.Event{SandboxID: id, Type: lifecycle.EventMetadata, Time: birth,
		Metadata: map[string]string{"x": strings.Repeat("x", size)}}
}

// Large events push out the oldest ones with the transaction that brings them, whatever the next
// sweep would do.
func TestKeptEventsAreBoundedInBytes(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, dir)
	insert(t, s, record("a"))
	const bound, size, changes = 64 << 20, 1 << 20, 80
	for i := range changes {
		if i == changes/2 {
			s = reopen(t, s, dir) // the count goes on after a restart
		}
		if err := s.Save(ctx, record("a"), large("a", size)); err != nil {
			t.Fatal(err)
		}
	}
	bytes, most := 0, 0
	for after, more := int64(0), true; more; {
		found := page(t, s, lifecycle.EventQuery{After: after, Limit: 10})
		for _, e := range found.Events {
			bytes, after = bytes+len(e.Metadata["x"]), e.Sequence
		}
		most, more = int(found.Newest-found.Oldest)+1, found.More
	}
	if bytes > bound || bytes < bound-2*size || most != bytes/size {
		t.Errorf("%d events of %d MiB are kept, want a little less than 64 MiB", most, bytes>>20)
	}
}

func TestPagesAreBoundedInBytes(t *testing.T) {
	s := open(t, t.TempDir())
	insert(t, s, record("a"))
	if err := s.Save(t.Context(), record("a"), large("a", 600), large("a", 600), large("a", 5000),
		event("a", birth)); err != nil {
		t.Fatal(err)
	}
	first := page(t, s, lifecycle.EventQuery{}).Oldest
	for _, c := range []struct {
		after  int64
		limit  int
		events int
		more   bool
	}{
		{first - 1, 10, 2, true}, {first + 1, 10, 1, true}, {first + 2, 10, 1, false},
		{first - 1, 1, 1, true}, {first + 3, 10, 0, false},
	} {
		got := page(t, s, lifecycle.EventQuery{After: c.after, Limit: c.limit, Bytes: 1000})
		if len(got.Events) != c.events || got.More != c.more {
			t.Errorf("after %d, at most %d: %d events, more: %t; want %d, %t", c.after-first,
				c.limit, len(got.Events), got.More, c.events, c.more)
		}
	}
}

// A database of the release before has events with all of the metadata. They go, with those before
// them; what came later stays.
func TestEventsOfTheReleaseBefore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	insert(t, s, record("a"))
	if err := s.Save(t.Context(), record("a"), event("a", birth), large("a", 10), event("a", birth),
		event("a", birth)); err != nil {
		t.Fatal(err)
	}
	newest := wantGapless(t, s, 4).Newest
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rawExec(t, dir, "DROP TABLE snapshots")
	rawExec(t, dir, "DROP TABLE api_keys")
	rawExec(t, dir, "DROP TABLE key_names")
	rawExec(t, dir, "DROP TABLE image_grants")
	rawExec(t, dir, "ALTER TABLE events DROP COLUMN total")
	rawExec(t, dir, "PRAGMA user_version = 2")
	s = open(t, dir)
	if got := wantGapless(t, s, 2); got.Newest != newest {
		t.Errorf("the newest is %d, it was %d", got.Newest, newest)
	}
	if err := s.Save(t.Context(), record("a"), event("a", birth)); err != nil {
		t.Fatal(err)
	}
	wantGapless(t, s, 3)
	var kept, total int
	if err := rawDB(t,
		dir).QueryRow("SELECT sum(length(event)), max(total) FROM events").Scan(&kept,
		&total); err != nil || kept != total {
		t.Errorf("%d bytes are kept, and counted are %d (%v)", kept, total, err)
	}
}
