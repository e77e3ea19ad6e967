package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/code"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/terminal"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

// keyHeader carries the name of the API key that a request came with, escaped as a part of a path.
// The service adds it, and takes it out of what its callers send.
const keyHeader = "X-EXECD-KEY-NAME"

// maxPaths bounds what is gathered of the paths of one operation, in bytes. The list cuts it.
const maxPaths = 8 << 10

// prepare returns a record of an operation that is asked for by the request of ctx.
func (h *handlers) prepare(ctx context.Context, kind activity.Kind) *activity.Operation {
	header := serve.Request(ctx).Header
	key := header.Get(keyHeader)
	if name, err := url.PathUnescape(key); err == nil {
		key = name
	}
	return h.activity.Prepare(kind, activity.Caller{Key: key, Client: header.Get("User-Agent")})
}

// begin records the beginning of an operation on files.
func (h *handlers) begin(ctx context.Context, kind activity.Kind, text string) *activity.Operation {
	record := h.prepare(ctx, kind)
	record.Begin("", text)
	return record
}

// finish records the end of an operation on files.
func finish(record *activity.Operation, err error) {
	if err != nil {
		record.End(activity.Result{Failed: true, Error: err.Error()})
		return
	}
	record.End(activity.Result{})
}

// recorded records an operation on paths, and returns its error.
func (h *handlers) recorded(ctx context.Context, kind activity.Kind, paths iter.Seq[string],
	do func() error) error {
	var text strings.Builder
	for path := range paths {
		if text.Len() > maxPaths {
			break
		}
		if text.Len() > 0 {
			text.WriteByte(' ')
		}
		text.WriteString(path)
	}
	record := h.begin(ctx, kind, text.String())
	err := do()
	finish(record, err)
	return err
}

// moves yields each source with its destination.
func moves(entries []files.MoveEntry) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, entry := range entries {
			if !yield(entry.Src + " -> " + entry.Dest) {
				return
			}
		}
	}
}

func resultOfCell(o code.Outcome) activity.Result {
	if o.Error == nil {
		return activity.Result{}
	}
	return activity.Result{Failed: true, Error: o.Error.Name + ": " + o.Error.Value}
}

func resultOfTerminal(s terminal.Status) activity.Result {
	if s.ExitCode == nil {
		return activity.Result{Failed: true, Error: "the terminal has no exit code: its timeout ended it"}
	}
	return activity.Result{Exit: s.ExitCode, Failed: *s.ExitCode != 0}
}

func (h *handlers) GetActivity(_ context.Context, request gen.GetActivityRequestObject) (gen.GetActivityResponseObject, error) {
	entries, cursor, _ := h.activity.After(value(request.Params.After))
	out := make([]gen.ActivityEntry, len(entries))
	for i := range entries {
		out[i] = toActivityEntry(&entries[i])
	}
	return gen.GetActivity200JSONResponse{Entries: out, Cursor: cursor}, nil
}

func (h *handlers) WatchActivity(ctx context.Context, request gen.WatchActivityRequestObject) (gen.WatchActivityResponseObject, error) {
	after, err := serve.LastEventID(request.Params.LastEventID)
	if err != nil {
		return nil, err
	}
	if request.Params.LastEventID == nil {
		after = value(request.Params.After)
	}
	return activityStream{ctx: ctx, log: h.activity, after: after, linger: h.linger}, nil
}

// activityStream is the answer with entries as they change.
type activityStream struct {
	ctx    context.Context
	log    *activity.Log
	after  int64
	linger time.Duration
}

// VisitWatchActivityResponse implements the generated interface.
func (s activityStream) VisitWatchActivityResponse(w http.ResponseWriter) error {
	return serve.StreamEvents(s.ctx, w, s.write)
}

func (s activityStream) write(ctx context.Context, out *respond.EventStream) error {
	ping := time.NewTimer(respond.PingInterval)
	defer ping.Stop()
	for {
		entries, next, changed := s.log.After(s.after)
		for i := range entries {
			data, err := json.Marshal(toActivityEntry(&entries[i]))
			if err != nil {
				return err
			}
			out.Event(entries[i].Change, data)
			if out.Buffered() >= flushSize && out.Flush() != nil {
				return nil // the client has left
			}
		}
		s.after = next
		if out.Flush() != nil {
			return nil
		}
		ping.Reset(respond.PingInterval)
		select {
		case <-changed:
		case <-ping.C:
			out.Ping()
		case <-listen.Draining(ctx):
			keepOpen(ctx, s.linger)
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

func toActivityEntry(e *activity.Entry) gen.ActivityEntry {
	entry := gen.ActivityEntry{
		ID: e.ID, Kind: gen.ActivityEntryKind(e.Kind), Operation: e.Operation, Text: e.Text, Truncated: e.Truncated,
		Key: e.Key, Client: e.Client, State: gen.ActivityEntryState(e.State), Exit: e.Exit, Error: e.Error,
		Started: e.Started.UTC(),
	}
	if !e.Ended.IsZero() {
		entry.Ended = new(e.Ended.UTC())
	}
	return entry
}
