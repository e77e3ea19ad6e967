package host

import (
	"context"
	"io"

	"sandbox.internal/server/lifecycle"
)

// Sidecars is a client of egress sidecars (openapi/egress.yaml). Errors that a client may see are
// of type *lifecycle.Error.
type Sidecars interface {
	// Health returns how often the egress daemon was restarted. An error means that the policy may
	// not be enforced.
	Health(ctx context.Context, at lifecycle.Sidecar) (restarts int, err error)
	Policy(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Change(ctx context.Context, at lifecycle.Sidecar,
		change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error)
	Propose(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Decisions(ctx context.Context, at lifecycle.Sidecar,
		request lifecycle.DecisionsRequest) (io.ReadCloser, error)
}
