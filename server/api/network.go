package api

import (
	"context"
	"errors"
	"io"
	"net/http"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/server/lifecycle"
)

func (h *handlers) GetNetworkPolicy(
	ctx context.Context, request gen.GetNetworkPolicyRequestObject,
) (gen.GetNetworkPolicyResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead); err != nil {
		return nil, err
	}
	policy, err := h.backend.NetworkPolicy(ctx, request.SandboxID)
	return policyAnswer{toNetworkPolicyAnswer(policy)}, err
}

func (h *handlers) ReplaceNetworkPolicy(
	ctx context.Context, request gen.ReplaceNetworkPolicyRequestObject,
) (gen.ReplaceNetworkPolicyResponseObject, error) {
	return h.changePolicy(ctx, request.SandboxID,
		lifecycle.PolicyChange{Replace: fromNetworkPolicy(request.Body)})
}

func (h *handlers) MergeNetworkPolicyRules(
	ctx context.Context, request gen.MergeNetworkPolicyRulesRequestObject,
) (gen.MergeNetworkPolicyRulesResponseObject, error) {
	return h.changePolicy(ctx, request.SandboxID,
		lifecycle.PolicyChange{Merge: fromEgressRules(*request.Body)})
}

func (h *handlers) DeleteNetworkPolicyRules(
	ctx context.Context, request gen.DeleteNetworkPolicyRulesRequestObject,
) (gen.DeleteNetworkPolicyRulesResponseObject, error) {
	return h.changePolicy(ctx, request.SandboxID, lifecycle.PolicyChange{Remove: *request.Body})
}

func (h *handlers) changePolicy(
	ctx context.Context, id string, change lifecycle.PolicyChange,
) (policyAnswer, error) {
	if _, err := h.authorized(ctx, id, lifecycle.Principal.CanUse); err != nil {
		return policyAnswer{}, err
	}
	policy, err := h.backend.ChangeNetworkPolicy(ctx, id, change)
	return policyAnswer{toNetworkPolicyAnswer(policy)}, err
}

func (h *handlers) ProposeNetworkPolicy(
	ctx context.Context, request gen.ProposeNetworkPolicyRequestObject,
) (gen.ProposeNetworkPolicyResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead); err != nil {
		return nil, err
	}
	policy, err := h.backend.ProposeNetworkPolicy(ctx, request.SandboxID)
	return policyAnswer{toNetworkPolicyAnswer(policy)}, err
}

func (h *handlers) ListNetworkDecisions(
	ctx context.Context, request gen.ListNetworkDecisionsRequestObject,
) (gen.ListNetworkDecisionsResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead); err != nil {
		return nil, err
	}
	follow := serve.Accepts(serve.Request(ctx), respond.MIMEEventStream)
	ctx, cancel := listen.UntilDraining(ctx)
	decisions, err := h.backend.NetworkDecisions(ctx, request.SandboxID,
		lifecycle.DecisionsRequest{Follow: follow, LastEventID: value(request.Params.LastEventID)})
	if err != nil {
		cancel()
		return nil, err
	}
	return decisionsAnswer{ctx, cancel, decisions, follow}, nil
}

// policyAnswer is the response with a policy, the same for each operation.
type policyAnswer struct{ gen.NetworkPolicyJSONResponse }

// VisitGetNetworkPolicyResponse implements the generated interface.
func (a policyAnswer) VisitGetNetworkPolicyResponse(w http.ResponseWriter) error {
	return gen.GetNetworkPolicy200JSONResponse{
		NetworkPolicyJSONResponse: a.NetworkPolicyJSONResponse,
	}.VisitGetNetworkPolicyResponse(w)
}

// VisitReplaceNetworkPolicyResponse implements the generated interface.
func (a policyAnswer) VisitReplaceNetworkPolicyResponse(w http.ResponseWriter) error {
	return a.VisitGetNetworkPolicyResponse(w)
}

// VisitMergeNetworkPolicyRulesResponse implements the generated interface.
func (a policyAnswer) VisitMergeNetworkPolicyRulesResponse(w http.ResponseWriter) error {
	return a.VisitGetNetworkPolicyResponse(w)
}

// VisitDeleteNetworkPolicyRulesResponse implements the generated interface.
func (a policyAnswer) VisitDeleteNetworkPolicyRulesResponse(w http.ResponseWriter) error {
	return a.VisitGetNetworkPolicyResponse(w)
}

// VisitProposeNetworkPolicyResponse implements the generated interface.
func (a policyAnswer) VisitProposeNetworkPolicyResponse(w http.ResponseWriter) error {
	return a.VisitGetNetworkPolicyResponse(w)
}

// decisionsAnswer copies the sidecar's response, flushing every write.
type decisionsAnswer struct {
	ctx       context.Context
	cancel    context.CancelFunc
	decisions io.ReadCloser
	follow    bool
}

// VisitListNetworkDecisionsResponse implements the generated interface.
func (a decisionsAnswer) VisitListNetworkDecisionsResponse(w http.ResponseWriter) error {
	defer a.cancel()
	defer func() { _ = a.decisions.Close() }()
	kind := "application/json"
	if a.follow {
		kind = respond.MIMEEventStream
		w.Header().Set("Cache-Control", "no-cache")
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := flushingWriter{respond.BoundedWriter(w, 0), http.NewResponseController(w)}
	_ = out.controller.Flush() // a disconnected client causes an error at the first write
	_, err := io.Copy(out, a.decisions)
	if a.follow && (a.ctx.Err() != nil || errors.Is(err, io.ErrUnexpectedEOF)) {
		// the client has disconnected, the service stops or the sidecar ended; a client resumes
		// with Last-Event-ID
		return nil
	}
	return err
}

func toNetworkPolicyAnswer(p lifecycle.NetworkPolicy) gen.NetworkPolicyJSONResponse {
	return gen.NetworkPolicyJSONResponse{Body: toNetworkPolicy(p)}
}

func toNetworkPolicy(p lifecycle.NetworkPolicy) gen.NetworkPolicy {
	policy := gen.NetworkPolicy{DryRun: &p.DryRun}
	if p.DefaultAction != "" {
		action := gen.NetworkAction(p.DefaultAction)
		policy.DefaultAction = &action
	}
	for _, rule := range p.Egress {
		policy.Egress = append(policy.Egress,
			gen.EgressRule{Action: gen.NetworkAction(rule.Action), Target: rule.Target})
	}
	return policy
}

func fromNetworkPolicy(p *gen.NetworkPolicy) *lifecycle.NetworkPolicy {
	if p == nil {
		return nil
	}
	return &lifecycle.NetworkPolicy{
		DefaultAction: string(value(p.DefaultAction)),
		Egress:        fromEgressRules(p.Egress),
		DryRun:        value(p.DryRun),
	}
}

func fromEgressRules(rules []gen.EgressRule) []lifecycle.EgressRule {
	var out []lifecycle.EgressRule
	for _, rule := range rules {
		out = append(out, lifecycle.EgressRule{Action: string(rule.Action), Target: rule.Target})
	}
	return out
}
