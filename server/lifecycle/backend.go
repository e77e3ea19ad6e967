package lifecycle

import (
	"context"
	"io"
	"time"
)

// Backend keeps sandboxes: on one machine (server/host) or on a cluster.
//
// Errors that a client may see are of type *[Error]; any other error is internal.
type Backend interface {
	// Create accepts a sandbox. When it returns, the record is durable and provisioning goes on
	// behind. It returns KindInvalid for a spec that breaks a rule and KindConflict for an
	// idempotency key used with another spec.
	Create(ctx context.Context, spec Spec, options CreateOptions) (Sandbox, error)

	// Get returns a sandbox. Recent changes of another replica of the service may be missing: Get
	// serves to find a sandbox and its owner. It returns KindNotFound.
	Get(ctx context.Context, id string) (Sandbox, error)

	// Read is Get with every change that any replica has answered. It asks where the records are,
	// as Get need not.
	Read(ctx context.Context, id string) (Sandbox, error)

	// List returns a page of the sandboxes that match, newest first, ties by id, with every change
	// that any replica has answered.
	List(ctx context.Context, filter Filter, page Page) (Listing, error)

	// Delete ends a sandbox; it returns as soon as the sandbox is Stopping and the rest goes on
	// behind. Deleting a sandbox that is Stopping succeeds. It returns KindNotFound, and
	// KindConflict for one that has ended.
	Delete(ctx context.Context, id string) error

	// Pause freezes a Running sandbox, Resume thaws a Paused one. Both wait up to a second for the
	// engine to act; a slower one completes afterwards. They return KindNotFound and, in any other
	// state, KindConflict.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error

	// Renew moves the expiry and returns the new one. It returns KindNotFound, KindInvalid for a
	// time that breaks [CheckRenewal], and KindConflict for a sandbox that is ending or has ended.
	Renew(ctx context.Context, id string, expiresAt time.Time) (time.Time, error)

	// UpdateMetadata applies a JSON merge patch ([MergeMetadata]) to the metadata and returns all
	// of it. It returns KindNotFound, KindInvalid for a result that breaks a rule of metadata, and
	// KindConflict for a sandbox that has ended.
	UpdateMetadata(ctx context.Context, id string, patch map[string]*string) (map[string]string, error)

	// AwaitStable waits until the service is not at work to change the sandbox's state
	// ([State.Transient]), the sandbox is forgotten, the time is up or ctx ends, whatever comes
	// first, and returns the sandbox as it was last seen. It returns KindNotFound.
	AwaitStable(ctx context.Context, id string, atMost time.Duration) (Sandbox, error)

	// Events returns a feed of what happens. It returns KindNotFound when one sandbox is asked for
	// and does not exist.
	Events(ctx context.Context, selection EventSelection) (EventFeed, error)

	// Logs writes what the sandbox's entrypoint printed, standard output and error combined, to
	// what open returns. It calls open once, as soon as it is certain that there is a log, empty or
	// not; a failure before that is a refusal, one afterwards is a log cut short. An ended sandbox
	// has the end of its log. It returns KindNotFound, and KindConflict for an ended sandbox whose
	// log was lost.
	Logs(ctx context.Context, id string, options LogOptions, open func() io.Writer) error

	// NetworkPolicy returns what the sandbox may reach, ChangeNetworkPolicy changes it and returns
	// what it is then: it holds when the call returns, for connections that are open already too.
	// ProposeNetworkPolicy returns the smallest allow-list for what was seen. They return
	// KindNotFound, KindInvalid for a change that breaks a rule, KindConflict for a sandbox without
	// an egress sidecar and for one that is neither Running nor Paused, and KindUnavailable while
	// the sidecar does not answer.
	NetworkPolicy(ctx context.Context, id string) (NetworkPolicy, error)
	ChangeNetworkPolicy(ctx context.Context, id string, change PolicyChange) (NetworkPolicy, error)
	ProposeNetworkPolicy(ctx context.Context, id string) (NetworkPolicy, error)

	// NetworkDecisions returns what the sandbox reached and was refused, as its sidecar writes it
	// (openapi/egress.yaml, listDecisions). The caller closes it; ctx bounds the reading. Errors
	// are as for NetworkPolicy.
	NetworkDecisions(ctx context.Context, id string, request DecisionsRequest) (io.ReadCloser, error)

	// Locate returns where a port of the sandbox is. While the sandbox is Pending it waits, at most
	// 30 s, until it is usable: clients use the endpoint at once and do not try twice. It returns
	// KindNotFound, KindInvalid for a port outside 1..65535, and KindConflict for a sandbox that
	// has no endpoint (yet).
	Locate(ctx context.Context, id string, port int) (Location, error)
}

// CreateOptions is what accompanies a spec.
type CreateOptions struct {
	Owner string // name of the API key that asks
	Role  Role   // of that key; what is not an administrator's is decided as a user's
	// MaxSandboxes is how many sandboxes that have not ended the owner may have; 0 is no limit.
	MaxSandboxes int
	// Bounds are what the owner may ask for.
	Bounds Bounds
	// IdempotencyKey makes a repeated request return the sandbox of the first one, for 24 hours,
	// per owner. Empty means none.
	IdempotencyKey string
	// Took, if not nil, is called with how long the steps of the creation took: validate, durable.
	Took func(step string, took time.Duration)
}

// Filter selects sandboxes. Conditions are combined with AND; the zero value matches every sandbox.
type Filter struct {
	States   []State           // any of them
	Metadata map[string]string // all of them
	Owner    *string           // nil means any owner
}

// Match reports whether the sandbox passes the filter.
func (f Filter) Match(s *Sandbox) bool {
	if f.Owner != nil && s.Owner != *f.Owner {
		return false
	}
	for key, value := range f.Metadata {
		if got, ok := s.Metadata[key]; !ok || got != value {
			return false
		}
	}
	if len(f.States) == 0 {
		return true
	}
	for _, state := range f.States {
		if s.Status.State == state {
			return true
		}
	}
	return false
}

// Page selects a part of a listing.
type Page struct {
	Number int // from 1
	Size   int // 1..MaxPageSize
}

// MaxPageSize is the most sandboxes that one page holds.
const MaxPageSize = 1000

// Listing is one page of sandboxes and how many there are in all.
type Listing struct {
	Items []Sandbox
	Total int
}

// Location is where a port of a sandbox is.
type Location struct {
	// Endpoint is how clients reach the port.
	Endpoint Endpoint
	// Daemon is the host and port of the sandbox's execd, as the service itself reaches it. Execd
	// forwards what is asked for below /proxy/{port} to the port. It is empty for the egress
	// sidecar's port: a token sent through execd would pass through the sandbox.
	Daemon string
	// Token is what execd demands in the header X-EXECD-ACCESS-TOKEN. It is empty for the egress
	// sidecar's port.
	Token string
	// Stopped is why the port is nowhere before the sandbox runs again, whose processes are not in
	// memory; nil where it is somewhere. Daemon is empty then, and the Endpoint is one of the service.
	Stopped error
}

// Endpoint is how clients reach a port of a sandbox.
type Endpoint struct {
	Host    string            // empty means the host that the client reached the service on
	Port    int               // of that host; 0 means the service itself, host and port, as the client reached it
	Path    string            // begins with a slash, or is empty
	Headers map[string]string // to send with every request
}
