package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"sandbox.internal/execd/internal/watch"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

func (h *handlers) WatchFiles(ctx context.Context, request gen.WatchFilesRequestObject) (gen.WatchFilesResponseObject, error) {
	infos, err := h.files.Info([]string{request.Params.Path})
	if err != nil {
		return nil, err
	}
	path := infos[request.Params.Path].Path
	w, err := watch.Open(watch.Options{Path: path, Recursive: value(request.Params.Recursive), Clock: time.Now})
	if err != nil {
		return nil, err
	}
	return fileStream{ctx: ctx, path: path, watch: w, linger: h.linger}, nil
}

// fileStream is the answer with what happens to a path. Its watch stands already.
type fileStream struct {
	ctx    context.Context
	path   string
	watch  *watch.Watch
	linger time.Duration
}

// VisitWatchFilesResponse implements the generated interface.
func (s fileStream) VisitWatchFilesResponse(w http.ResponseWriter) error {
	defer s.watch.Close()
	ctx, cancel := listen.UntilDraining(s.ctx)
	defer cancel()
	out := respond.NewEventStream(s.ctx, w, respond.EventStreamOptions{})
	events := []gen.FileEvent{{Type: gen.FileEventTypeReady, Path: &s.path, RawPath: rawPath(s.path), Timestamp: time.Now().UnixMilli()}}
	for {
		for _, event := range events {
			data, err := json.Marshal(event)
			if err != nil {
				return err
			}
			out.Data(data)
		}
		if out.Flush() != nil {
			return nil // the client has left
		}
		var err error
		switch events, err = s.next(ctx); {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			events = []gen.FileEvent{{Type: gen.FileEventTypePing, Timestamp: time.Now().UnixMilli()}}
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			keepOpen(s.ctx, s.linger)
			return nil
		case err != nil:
			return err
		}
	}
}

// next returns what comes within the time that a stream may be silent.
func (s fileStream) next(ctx context.Context) ([]gen.FileEvent, error) {
	ctx, cancel := context.WithTimeout(ctx, respond.PingInterval)
	defer cancel()
	events, err := s.watch.Next(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]gen.FileEvent, len(events))
	for i, event := range events {
		out[i] = gen.FileEvent{
			Type: gen.FileEventType(event.Type), Path: &events[i].Path, RawPath: rawPath(event.Path), Timestamp: event.Time.UnixMilli(),
		}
		if event.Message != "" {
			out[i].Message = &events[i].Message
		}
	}
	return out, nil
}
