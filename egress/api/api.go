// Package api serves the contract of the egress sidecar (openapi/egress.yaml) over HTTP. A handler
// converts in, calls the enforcer once and converts out; errors are returned, and one table maps
// them.
package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/egress/enforcer"
	"sandbox.internal/egress/policy"
	gen "sandbox.internal/gen/egress"
	contracts "sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
)

// tokenHeader carries the token. It has a name of its own, so that no client sends the sandbox's
// daemon the sidecar's token.
const tokenHeader = "X-EGRESS-ACCESS-TOKEN"

// Options configures the API.
type Options struct {
	Enforcer *enforcer.Enforcer
	// Token is what requests must carry; empty admits every request.
	Token string
	// Started is when this egress daemon started, and Restarts how often it had to be started again
	// before.
	Started  time.Time
	Restarts int
	Logger   zerolog.Logger
}

// New returns the HTTP server of the sidecar.
func New(options Options) (*serve.Server, error) {
	server, err := serve.New(serve.Options{
		Rules:        contracts.Egress(),
		Logger:       options.Logger,
		Authenticate: serve.HeaderSecret(tokenHeader, options.Token),
		Problem:      problem,
		Quiet:        []string{"getHealth"},
	})
	if err != nil {
		return nil, err
	}
	gen.RegisterHandlersWithOptions(server.Echo(), gen.NewStrictHandler(&handlers{options}, nil), gen.RegisterHandlersOptions{
		OperationMiddlewares: server.OperationMiddlewares(),
	})
	return server, nil
}

func problem(err error) (serve.Problem, bool) {
	if errors.Is(err, policy.ErrInvalid) {
		return serve.Problem{Status: http.StatusBadRequest, Code: "INVALID_REQUEST_BODY", Message: err.Error()}, true
	}
	return serve.Problem{}, false
}

type handlers struct{ options Options }

func (h *handlers) GetHealth(context.Context, gen.GetHealthRequestObject) (gen.GetHealthResponseObject, error) {
	return gen.GetHealth200JSONResponse{
		Status: gen.HealthStatusOk, StartedAt: h.options.Started.UTC(), Restarts: h.options.Restarts,
	}, nil
}

func (h *handlers) GetPolicy(context.Context, gen.GetPolicyRequestObject) (gen.GetPolicyResponseObject, error) {
	return gen.GetPolicy200JSONResponse{PolicyJSONResponse: answer(h.options.Enforcer.Policy())}, nil
}

func (h *handlers) ReplacePolicy(_ context.Context, request gen.ReplacePolicyRequestObject) (gen.ReplacePolicyResponseObject, error) {
	p, err := h.options.Enforcer.Replace(fromAPI(*request.Body))
	if err != nil {
		return nil, err
	}
	return gen.ReplacePolicy200JSONResponse{PolicyJSONResponse: answer(p)}, nil
}

func (h *handlers) MergePolicyRules(_ context.Context, request gen.MergePolicyRulesRequestObject) (gen.MergePolicyRulesResponseObject, error) {
	p, err := h.options.Enforcer.Merge(rules(*request.Body))
	if err != nil {
		return nil, err
	}
	return gen.MergePolicyRules200JSONResponse{PolicyJSONResponse: answer(p)}, nil
}

func (h *handlers) DeletePolicyRules(_ context.Context, request gen.DeletePolicyRulesRequestObject) (gen.DeletePolicyRulesResponseObject, error) {
	p, err := h.options.Enforcer.Remove(*request.Body)
	if err != nil {
		return nil, err
	}
	return gen.DeletePolicyRules200JSONResponse{PolicyJSONResponse: answer(p)}, nil
}

func (h *handlers) ProposePolicy(context.Context, gen.ProposePolicyRequestObject) (gen.ProposePolicyResponseObject, error) {
	return gen.ProposePolicy200JSONResponse{PolicyJSONResponse: answer(h.options.Enforcer.Proposal())}, nil
}

func fromAPI(p gen.Policy) policy.Policy {
	out := policy.Policy{}
	if p.DefaultAction != nil {
		out.DefaultAction = policy.Action(*p.DefaultAction)
	}
	if p.Egress != nil {
		out.Egress = rules(*p.Egress)
	}
	if p.DryRun != nil {
		out.DryRun = *p.DryRun
	}
	return out
}

func rules(all []gen.EgressRule) []policy.Rule {
	out := make([]policy.Rule, len(all))
	for i, rule := range all {
		out[i] = policy.Rule{Action: policy.Action(rule.Action), Target: rule.Target}
	}
	return out
}

func answer(p policy.Policy) gen.PolicyJSONResponse {
	action := gen.NetworkAction(p.DefaultAction)
	egress := make(gen.EgressRules, len(p.Egress))
	for i, rule := range p.Egress {
		egress[i] = gen.EgressRule{Action: gen.NetworkAction(rule.Action), Target: rule.Target}
	}
	return gen.PolicyJSONResponse{DefaultAction: &action, Egress: &egress, DryRun: &p.DryRun}
}
