package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/server/lifecycle"
)

func (h *handlers) StreamSandboxEvents(
	ctx context.Context, request gen.StreamSandboxEventsRequestObject,
) (gen.StreamSandboxEventsResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead); err != nil {
		return nil, err
	}
	stream, err := h.follow(ctx, lifecycle.EventSelection{SandboxID: request.SandboxID},
		request.Params.LastEventID, request.Params.After)
	return stream, err
}

func (h *handlers) StreamEvents(
	ctx context.Context, request gen.StreamEventsRequestObject,
) (gen.StreamEventsResponseObject, error) {
	stream, err := h.follow(ctx, lifecycle.EventSelection{Owner: caller(ctx).ListScope()},
		request.Params.LastEventID, request.Params.After)
	return stream, err
}

// follow opens the stream of the selected events. The client's last event is in the header that
// browsers send when they reconnect, else in the query.
func (h *handlers) follow(
	ctx context.Context, selection lifecycle.EventSelection, lastEventID *string, after *int64,
) (*eventStream, error) {
	selection.After = after
	if value(lastEventID) != "" {
		id, err := serve.LastEventID(lastEventID)
		if err != nil {
			return nil, err
		}
		selection.After = &id
	}
	feed, err := h.backend.Events(ctx, selection)
	if err != nil {
		return nil, err
	}
	return &eventStream{ctx: ctx, feed: feed}, nil
}

// eventStream is the response with events.
type eventStream struct {
	ctx  context.Context
	feed lifecycle.EventFeed
}

// VisitStreamSandboxEventsResponse implements the generated interface.
func (s *eventStream) VisitStreamSandboxEventsResponse(w http.ResponseWriter) error {
	return s.serve(w)
}

// VisitStreamEventsResponse implements the generated interface.
func (s *eventStream) VisitStreamEventsResponse(w http.ResponseWriter) error { return s.serve(w) }

func (s *eventStream) serve(w http.ResponseWriter) error {
	defer s.feed.Close()
	ctx, cancel := listen.UntilDraining(s.ctx)
	defer cancel()
	out := respond.NewEventStream(s.ctx, w, respond.EventStreamOptions{})
	var cursor int64
	for first := true; ; first = false {
		batch, err := s.next(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			batch.Cursor = cursor
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			_ = out.Flush() // the client gets the header before the first event
			return nil
		case err != nil:
			return err
		}
		cursor = batch.Cursor
		if err := write(out, batch, first); err != nil {
			return err
		}
		if out.Flush() != nil {
			return nil // the client has disconnected, and can resume with Last-Event-ID
		}
	}
}

// next waits for events, at most until a ping is due.
func (s *eventStream) next(ctx context.Context) (lifecycle.EventBatch, error) {
	ctx, cancel := context.WithTimeout(ctx, respond.PingInterval)
	defer cancel()
	return s.feed.Next(ctx)
}

// write writes a batch to the stream. An empty batch becomes a ping, and a stream begins with one:
// from then on the client has an id to resume from.
func write(out *respond.EventStream, batch lifecycle.EventBatch, first bool) error {
	now := gen.SandboxEvent{Timestamp: time.Now().UTC()}
	if batch.Reset {
		now.Type = "reset"
		return writeEvent(out, batch.Cursor, now)
	}
	for _, event := range batch.Events {
		if err := writeEvent(out, event.Sequence, toEvent(event)); err != nil {
			return err
		}
	}
	if len(batch.Events) > 0 && !first {
		return nil
	}
	now.Type = "ping"
	return writeEvent(out, batch.Cursor, now)
}

// EventBody returns the JSON of an event as GET /v1/events has it. An event without a sandbox has
// nothing but its type and time, as a reset there.
func EventBody(event lifecycle.Event) ([]byte, error) {
	if event.SandboxID == "" {
		return json.Marshal(gen.SandboxEvent{Type: string(event.Type), Timestamp: event.Time})
	}
	return json.Marshal(toEvent(event))
}

func writeEvent(out *respond.EventStream, id int64, event any) error {
	data, err := json.Marshal(event)
	if err != nil {
		return err
	}
	out.Event(id, data)
	return nil
}

// metadataEvent has an object of the keys that were set even when none was.
type metadataEvent struct {
	gen.SandboxEvent
	Metadata gen.Metadata `json:"metadata"`
}

func toEvent(e lifecycle.Event) any {
	event := gen.SandboxEvent{Type: string(e.Type), SandboxID: &e.SandboxID, Timestamp: e.Time}
	switch e.Type {
	case lifecycle.EventState:
		from, to := gen.SandboxState(e.From), gen.SandboxState(e.To)
		if event.To = &to; from != "" {
			event.From = &from
		}
	case lifecycle.EventStage:
		stage, took, elapsed := string(e.Stage), e.Took.Seconds()*1000, e.Elapsed.Seconds()*1000
		event.Stage, event.DurationMs, event.ElapsedMs = &stage, &took, &elapsed
	case lifecycle.EventRenewed:
		event.ExpiresAt = &e.ExpiresAt
	case lifecycle.EventPolicy:
		if e.NetworkPolicy != nil {
			policy := toNetworkPolicy(*e.NetworkPolicy)
			event.NetworkPolicy = &policy
		}
	case lifecycle.EventLifecycle:
		if e.Lifecycle != nil {
			event.Lifecycle = new(toLifecycle(*e.Lifecycle))
		}
	case lifecycle.EventSnapshot:
		state := gen.SnapshotState(e.SnapshotState)
		event.SnapshotID, event.SnapshotState = &e.SnapshotID, &state
	case lifecycle.EventMetadata:
		event.MetadataRemoved = e.Removed
		return metadataEvent{event, toMetadata(e.Metadata)}
	}
	if e.Reason != "" {
		reason := string(e.Reason)
		event.Reason, event.Message = &reason, &e.Message
	}
	return event
}
