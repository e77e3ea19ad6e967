package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/code"
	"sandbox.internal/execd/internal/eventlog"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
)

func (h *handlers) RunCode(ctx context.Context, request gen.RunCodeRequestObject) (gen.RunCodeResponseObject, error) {
	spec, err := fromCodeRequest(*request.Body)
	if err != nil {
		return nil, err
	}
	key := request.Params.IdempotencyKey
	id, err := h.repeats.once(ctx, "runCode", repeat{key, request.Params.IdempotencyAge}, func() (string, error) {
		if err := h.requireThawed(); err != nil {
			return "", err
		}
		record := h.prepare(ctx, activity.Code)
		spec.Ended = func(o code.Outcome) { record.End(resultOfCell(o)) }
		execution, err := h.code.Execute(ctx, spec)
		if err != nil {
			return "", err
		}
		record.Begin(execution.ID(), spec.Code)
		return execution.ID(), nil
	})
	if err != nil {
		return nil, err
	}
	execution, err := h.code.Execution(id)
	if err != nil {
		return nil, gone(key, err)
	}
	serve.LogField(ctx, "execution_id", execution.ID())
	reader, err := execution.Log().Reader(0)
	if err != nil {
		return nil, err
	}
	return codeStream{id: execution.ID(), logStream: logStream{
		ctx: ctx, reader: reader, detail: appendCodeDetail, linger: h.linger, greet: true,
	}}, nil
}

func (h *handlers) StreamExecution(ctx context.Context, request gen.StreamExecutionRequestObject) (gen.StreamExecutionResponseObject, error) {
	execution, err := h.code.Execution(request.ID)
	if err != nil {
		return nil, err
	}
	reader, err := resume(execution.Log(), request.Params.LastEventID)
	if err != nil {
		return nil, err
	}
	return codeStream{id: execution.ID(), logStream: logStream{ctx: ctx, reader: reader, detail: appendCodeDetail, linger: h.linger}}, nil
}

func (h *handlers) InterruptCode(ctx context.Context, request gen.InterruptCodeRequestObject) (gen.InterruptCodeResponseObject, error) {
	if err := h.requireThawed(); err != nil {
		return nil, err
	}
	if err := h.code.Interrupt(ctx, request.Params.ID); err != nil {
		return nil, err
	}
	return gen.InterruptCode200JSONResponse{}, nil
}

func (h *handlers) CreateContext(ctx context.Context, request gen.CreateContextRequestObject) (gen.CreateContextResponseObject, error) {
	key := request.Params.IdempotencyKey
	id, err := h.repeats.once(ctx, "createContext", repeat{key, request.Params.IdempotencyAge}, func() (string, error) {
		if err := h.requireThawed(); err != nil {
			return "", err
		}
		created, err := h.code.CreateContext(ctx, request.Body.Language)
		return created.ID, err
	})
	if err != nil {
		return nil, err
	}
	created, err := h.code.Context(id)
	if err != nil {
		return nil, gone(key, err)
	}
	serve.LogField(ctx, "context_id", created.ID)
	return gen.CreateContext200JSONResponse(toContext(created)), nil
}

func (h *handlers) ListContexts(_ context.Context, request gen.ListContextsRequestObject) (gen.ListContextsResponseObject, error) {
	contexts := h.code.Contexts(request.Params.Language)
	out := make(gen.ListContexts200JSONResponse, len(contexts))
	for i, c := range contexts {
		out[i] = toContext(c)
	}
	return out, nil
}

func (h *handlers) GetContext(_ context.Context, request gen.GetContextRequestObject) (gen.GetContextResponseObject, error) {
	found, err := h.code.Context(request.ContextID)
	if err != nil {
		return nil, err
	}
	return gen.GetContext200JSONResponse(toContext(found)), nil
}

func (h *handlers) DeleteContext(ctx context.Context, request gen.DeleteContextRequestObject) (gen.DeleteContextResponseObject, error) {
	if err := h.requireThawed(); err != nil {
		return nil, err
	}
	if err := h.code.DeleteContext(ctx, request.ContextID); err != nil {
		return nil, err
	}
	return gen.DeleteContext200JSONResponse{}, nil
}

func (h *handlers) DeleteContexts(ctx context.Context, request gen.DeleteContextsRequestObject) (gen.DeleteContextsResponseObject, error) {
	if err := h.requireThawed(); err != nil {
		return nil, err
	}
	if err := h.code.DeleteContexts(ctx, request.Params.Language); err != nil {
		return nil, err
	}
	return gen.DeleteContexts200JSONResponse{}, nil
}

// codeStream is the answer with a cell's events.
type codeStream struct {
	logStream
	id string
}

// VisitRunCodeResponse implements the generated interface.
func (s codeStream) VisitRunCodeResponse(w http.ResponseWriter) error {
	w.Header().Set("X-Execution-ID", s.id)
	return s.serve(w)
}

// VisitStreamExecutionResponse implements the generated interface.
func (s codeStream) VisitStreamExecutionResponse(w http.ResponseWriter) error { return s.serve(w) }

// fromCodeRequest takes the language from the context or from the short form; both must not differ.
func fromCodeRequest(r gen.CodeRequest) (code.Spec, error) {
	spec := code.Spec{Code: r.Code, Language: value(r.Language)}
	if r.Context == nil {
		return spec, nil
	}
	spec.ContextID, spec.Default = value(r.Context.ID), value(r.Context.Default)
	if spec.Default && spec.ContextID != "" {
		return spec, serve.Invalid("body/context/default: must not be given with body/context/id")
	}
	if language := value(r.Context.Language); language != "" {
		if spec.Language != "" && !strings.EqualFold(spec.Language, language) {
			return spec, serve.Invalid("body/language: %q differs from body/context/language %q; one of them is enough", spec.Language, language)
		}
		spec.Language = language
	}
	return spec, nil
}

func toContext(c code.Context) gen.CodeContext {
	made := gen.CodeContext{ID: c.ID, Language: c.Language}
	if c.Default {
		made.Default = new(true)
	}
	return made
}

// appendCodeDetail appends what only events of cells have.
func appendCodeDetail(b []byte, e eventlog.Event) []byte {
	switch e.Type {
	case eventlog.TypeResult, eventlog.TypeDisplay:
		b = append(b, `,"results":`...)
		return append(b, e.Text...)
	case eventlog.TypeCount:
		b = append(b, `,"execution_count":`...)
		return append(b, e.Text...)
	}
	outcome, err := code.ParseOutcome(e.Text)
	b = append(b, `,"execution_time":`...)
	b = strconv.AppendInt(b, outcome.Duration.Milliseconds(), 10)
	b = append(b, `,"execution_count":`...)
	b = strconv.AppendInt(b, int64(outcome.Count), 10)
	if e.Type == eventlog.TypeComplete {
		return b
	}
	if outcome.OOMKilled {
		b = append(b, `,"reason":"`+oomKilled+`"`...)
	}
	failure := gen.StreamError{Traceback: []string{}}
	switch {
	case err != nil:
		failure.Evalue = err.Error() // the event itself still reports that it failed
	case outcome.Error != nil:
		failure.Ename, failure.Evalue = outcome.Error.Name, outcome.Error.Value
		failure.Traceback = append(failure.Traceback, outcome.Error.Traceback...)
	}
	encoded, err := json.Marshal(failure)
	if err != nil {
		panic(err) // strings can be encoded
	}
	b = append(b, `,"error":`...)
	return append(b, encoded...)
}
