package cluster_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestEventsAreTheSameEverywhere: what one replica reported goes on at another, without a gap or a
// repetition.
func TestEventsAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	one, two := s.replica(t), s.replica(t)
	id := create(t, one, sampleSpec()).ID
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	awaitState(t, one, id, lifecycle.StateRunning)
	blue := "blue"
	_, err := one.UpdateMetadata(t.Context(), id, map[string]*string{"team": &blue})
	must(t, err)
	must(t, one.Delete(t.Context(), id))
	s.play(t, id, v1alpha1.PhaseTerminated, v1alpha1.ReasonUserDelete, "removed")
	awaitState(t, two, id, lifecycle.StateTerminated)
	s.remove(t, id)

	zero := int64(0)
	read := func(c *cluster.Cluster, after *int64) (events []lifecycle.Event) {
		t.Helper()
		feed, err := c.Events(t.Context(), lifecycle.EventSelection{After: after})
		must(t, err)
		defer feed.Close()
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
		defer cancel()
		for {
			batch, err := feed.Next(ctx)
			if must(t, err); batch.Reset {
				t.Fatal("a reset")
			}
			events = append(events, batch.Events...)
			if n := len(events); n > 0 && events[n-1].Type == lifecycle.EventForgotten {
				return events
			}
		}
	}
	sent := read(one, &zero)
	var what []string
	for _, event := range sent {
		what = append(what, strings.Trim(string(event.Type)+" "+string(event.To)+string(event.Stage), " "))
	}
	want := []string{"state Pending", "stage accepted", "stage ready", "state Running", "metadata", "state Stopping", "state Terminated", "forgotten"}
	if !slices.Equal(what, want) {
		t.Errorf("the events are %q, want %q", what, want)
	}
	for i := range sent {
		rest := read(two, &sent[i].Sequence)
		if i == len(sent)-1 {
			break
		}
		if len(rest) != len(sent)-1-i || rest[0].Sequence != sent[i+1].Sequence || rest[0].Type != sent[i+1].Type {
			t.Errorf("after event %d (%s) the other replica has %d events", i, what[i], len(rest))
		}
		if i == len(sent)-2 {
			break
		}
	}
	// A replica that begins later has no events from before, and says so.
	late := s.replica(t)
	feed, err := late.Events(t.Context(), lifecycle.EventSelection{After: &sent[0].Sequence})
	must(t, err)
	defer feed.Close()
	if batch, err := feed.Next(t.Context()); err != nil || !batch.Reset || batch.Cursor <= sent[0].Sequence {
		t.Errorf("the late replica: %+v, %v", batch, err)
	}
	// A number from elsewhere is unknown everywhere.
	future := sent[0].Sequence << 20
	feed, err = one.Events(t.Context(), lifecycle.EventSelection{After: &future})
	must(t, err)
	defer feed.Close()
	if batch, err := feed.Next(t.Context()); err != nil || !batch.Reset {
		t.Errorf("a sequence that was never sent: %+v, %v", batch, err)
	}
}

func TestEventsOfOneSandboxEnd(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	id := create(t, c, sampleSpec()).ID
	create(t, c, sampleSpec())
	feed, err := c.Events(t.Context(), lifecycle.EventSelection{SandboxID: id})
	must(t, err)
	defer feed.Close()
	s.remove(t, id)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	var last lifecycle.Event
	for {
		batch, err := feed.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		for _, last = range batch.Events {
			if last.SandboxID != id {
				t.Errorf("an event of another sandbox: %+v", last)
			}
		}
	}
	if last.Type != lifecycle.EventForgotten {
		t.Errorf("the last event is %+v", last)
	}
	_, err = c.Events(t.Context(), lifecycle.EventSelection{SandboxID: id})
	refuses(t, err, lifecycle.KindNotFound)
}
