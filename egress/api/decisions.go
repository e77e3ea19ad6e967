package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"sandbox.internal/egress/enforcer"
	gen "sandbox.internal/gen/egress"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

// gather is how long changes gather before they are sent: a decision that is made a thousand times
// a second is sent ten times.
const gather = 100 * time.Millisecond

func (h *handlers) ListDecisions(ctx context.Context, request gen.ListDecisionsRequestObject) (gen.ListDecisionsResponseObject, error) {
	log := h.options.Enforcer.Decisions()
	if !serve.Accepts(serve.Request(ctx), respond.MIMEEventStream) {
		all, _ := log.After(0)
		items := make([]gen.Decision, len(all))
		for i, d := range all {
			items[i] = toAPI(d)
		}
		return gen.ListDecisions200JSONResponse{Items: items}, nil
	}
	after, err := serve.LastEventID(request.Params.LastEventID)
	if err != nil {
		return nil, err
	}
	return decisionStream{ctx: ctx, log: log, after: after}, nil
}

// decisionStream is the answer that follows the decisions until the client leaves.
type decisionStream struct {
	ctx   context.Context
	log   *enforcer.DecisionLog
	after int64
}

// VisitListDecisionsResponse implements the generated interface.
func (s decisionStream) VisitListDecisionsResponse(w http.ResponseWriter) error {
	out := respond.NewEventStream(s.ctx, w, respond.EventStreamOptions{})
	timer := time.NewTimer(respond.PingInterval)
	defer timer.Stop()
	for {
		changed, more := s.log.After(s.after)
		for _, d := range changed {
			data, err := json.Marshal(toAPI(d))
			if err != nil {
				return err
			}
			out.Event(d.ID, data)
			s.after = d.ID
		}
		if out.Flush() != nil {
			return nil // the client has left
		}
		timer.Reset(respond.PingInterval)
		select {
		case <-more:
			if !s.pause() {
				return nil
			}
		case <-timer.C:
			out.Ping()
		case <-listen.Draining(s.ctx):
			return nil
		case <-s.ctx.Done():
			return nil
		}
	}
}

// pause lets changes gather, and reports whether the stream goes on.
func (s decisionStream) pause() bool {
	timer := time.NewTimer(gather)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-listen.Draining(s.ctx):
	case <-s.ctx.Done():
	}
	return false
}

func toAPI(d enforcer.Decision) gen.Decision {
	out := gen.Decision{
		Kind: gen.DecisionKind(d.Kind), Target: d.Target, Action: gen.NetworkAction(d.Action), Reason: gen.DecisionReason(d.Reason),
		Names: d.Names, Count: d.Count, FirstSeen: d.First.UTC(), LastSeen: d.Last.UTC(),
	}
	if d.Rule != "" {
		out.Rule = &d.Rule
	}
	if d.DryRun {
		out.DryRun = &d.DryRun
	}
	if d.Kind == enforcer.KindAddress {
		out.Protocol = &d.Protocol
		if d.Port != 0 {
			port := int(d.Port)
			out.Port = &port
		}
	}
	return out
}
