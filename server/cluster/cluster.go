// Package cluster keeps sandboxes on a Kubernetes cluster: each is a BatchSandbox of one replica,
// whose pod the sandbox-controller makes.
//
// The resources are the only record. Any number of replicas of the service may work on the same
// ones, and any of them may die at any time. The responses of a replica come from its read model
// (package view); this package makes the resources and changes them.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// actTimeout is how long Pause and Resume wait for the controller, locateTimeout how long Locate
// waits for a Pending sandbox.
const (
	actTimeout    = time.Second
	locateTimeout = 30 * time.Second
)

// shortenInterval is the pause between attempts to shorten the retention of a record.
const shortenInterval = time.Second

// SidecarClient asks the egress sidecar of one sandbox: what the service uses of
// openapi/egress.yaml. Errors that a client may read are of type *lifecycle.Error.
type SidecarClient interface {
	// Environment returns the variables that start a sidecar with the policy; whole is false when
	// they cannot hold it.
	Environment(at lifecycle.Sidecar, policy *lifecycle.NetworkPolicy) (env map[string]string, whole bool, err error)
	Policy(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Change(ctx context.Context, at lifecycle.Sidecar, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error)
	Propose(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Decisions(ctx context.Context, at lifecycle.Sidecar, request lifecycle.DecisionsRequest) (io.ReadCloser, error)
}

// Observer measures what happens to sandboxes. The methods must be quick. Every replica of the
// service calls them for every sandbox of the cluster.
type Observer interface {
	StateChanged(to lifecycle.State, reason lifecycle.Reason)
	StageDone(stage lifecycle.Stage, took time.Duration)
	Provisioned(took time.Duration)
}

// Options configures a Cluster.
type Options struct {
	// Kubeconfig is the path of the file that says how the API server is reached; empty means from
	// inside the cluster, as a pod's service account.
	Kubeconfig string
	// Namespace is where sandboxes live; empty means that of the kubeconfig's context, or that of
	// the service's own pod.
	Namespace  string
	ExecdImage string
	// MaxSandboxes is how many sandboxes that have not ended there may be; 0 is no limit. Replicas
	// that create at the same moment may go beyond it.
	MaxSandboxes int
	// EgressImage is the image of the sidecars; empty means that there are none. EgressUpstream are
	// the name servers that they ask, with commas between; empty means the pod's own.
	EgressImage, EgressUpstream string
	// NewSidecarClient returns a client of the sidecar at an address.
	NewSidecarClient func(host string) SidecarClient
	Security         Security
	Placement        Placement
	// RuntimeClasses are those that a spec may name; their handlers are names of the cluster's
	// RuntimeClasses.
	RuntimeClasses lifecycle.RuntimeClasses
	// NoHostVolumes refuses every volume from a node. AllowedHostPaths are the directories of nodes
	// that volumes may come from; empty means any, for administrators.
	NoHostVolumes    bool
	AllowedHostPaths []string
	// TerminatedRetention is how long the record of an ended sandbox stays readable.
	TerminatedRetention time.Duration
	// EndedBudget is what their records may take together, in bytes; over it the oldest of the
	// owner that has the most are forgotten before their time. 0 means 256 MiB.
	EndedBudget int
	// PendingFailureTTL is the same for a sandbox that failed while it was Pending.
	PendingFailureTTL time.Duration
	// ProvisionTimeout is how long a sandbox may be Pending: then it has failed, for instance
	// because no node has room for it.
	ProvisionTimeout time.Duration
	Observer         Observer // nil observes nothing
	Clock            func() time.Time
	Logger           zerolog.Logger
}

// Security is how a sandbox's container is confined.
type Security struct {
	DropCapabilities []string // names without CAP_, or ALL
	NoNewPrivileges  bool
	Unconfined       bool   // no seccomp filter; otherwise the runtime's default
	AppArmorProfile  string // a profile that is loaded on every node, or "unconfined"; empty means the runtime's default
}

// Cluster is a lifecycle.Backend over the BatchSandboxes of a namespace. It reads from its view and
// writes to the API server.
type Cluster struct {
	Options
	quota      lifecycle.Quota
	ended      *lifecycle.Ended[string] // by id
	view       *view.View
	announcer  announcer
	connection *view.Connection
	api        client.Client
	pods       kubernetes.Interface
	daemons    *http.Client
	canResize  atomic.Bool // it was found that the cluster resizes pods in place

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

var _ lifecycle.Backend = (*Cluster)(nil)

// Start connects to the cluster, reads the sandboxes that there are, and follows them until Close.
// It returns an error when the API server does not answer, does not have the resources, or does not
// let the service read them.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	c, err := connect(options)
	if err != nil {
		return nil, err
	}
	if err := c.view.Start(ctx); err != nil {
		c.Close()
		return nil, err
	}
	c.tasks.Go(c.sweep)
	return c, nil
}

// connect makes a Cluster whose view is empty.
func connect(options Options) (*Cluster, error) {
	if err := options.Placement.check(); err != nil {
		return nil, err
	}
	connection, err := view.Connect(options.Kubeconfig, options.Namespace)
	if err != nil {
		return nil, err
	}
	pods, err := kubernetes.NewForConfigAndClient(connection.Config, connection.HTTP)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	options.Namespace = connection.Namespace
	if options.Observer == nil {
		options.Observer = noObserver{}
	}
	c := &Cluster{
		Options: options, quota: lifecycle.Quota{Total: options.MaxSandboxes},
		ended:      lifecycle.NewEnded[string](cmp.Or(options.EndedBudget, endedBudget)),
		connection: connection, api: connection.API, pods: pods, daemons: newDaemons(), announcer: announcer{replica: uuid.NewString()},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.view = view.New(view.Options{
		API: connection.API, Namespace: c.Namespace, Changed: c.changed, Clock: c.Clock, Logger: c.Logger,
	})
	return c, nil
}

// Close stops following. Sandboxes go on.
func (c *Cluster) Close() {
	c.cancel()
	c.view.Close() // it starts tasks
	c.tasks.Wait()
	c.connection.Close()
}

// changed measures what the view shows, and does what is due for a sandbox.
func (c *Cluster) changed(e *view.Entry, events []lifecycle.Event, deleted bool) {
	if deleted {
		c.ended.Remove(e.Sandbox.ID)
	} else {
		if tooLong(e.Batch, c.retention) {
			c.shorten(e.Sandbox.ID, c.retention)
		}
		c.makeRoom(e)
	}
	for _, event := range events {
		if event.Type != lifecycle.EventState {
			continue
		}
		c.Observer.StateChanged(event.To, event.Reason)
		if event.To == lifecycle.StateRunning && event.From == lifecycle.StatePending {
			c.Observer.Provisioned(event.Time.Sub(e.Sandbox.CreatedAt))
		}
	}
}

// What records of ended sandboxes take of the controller's memory, which holds whole resources, and
// a half of that of etcd. The controller is given 1 GiB by the chart.
const (
	endedBudget = 256 << 20
	endedBytes  = 16 << 10 // of a resource without its texts
)

// makeRoom has records of ended sandboxes forgotten before their time that there is no room for.
// Every replica comes to the same ones.
func (c *Cluster) makeRoom(e *view.Entry) {
	if !e.Batch.Status.Phase.Finished() || e.Batch.DeletionTimestamp != nil {
		return
	}
	for _, id := range c.ended.Add(e.Sandbox.ID, e.Record.Owner, endedBytes+2*e.Size()) {
		c.shorten(id, func(*v1alpha1.BatchSandbox) *int32 { return new(int32) })
	}
}

// shorten makes the record of an ended sandbox be forgotten when want says, as the resource is
// created with the longest retention of all ends. Every replica may do it, and one does. It is
// never made longer, or two replicas with different configurations would never be done.
func (c *Cluster) shorten(id string, want func(*v1alpha1.BatchSandbox) *int32) {
	c.tasks.Go(func() {
		for c.ctx.Err() == nil {
			_, err := c.change(c.ctx, id, func(_ *view.Entry, b *v1alpha1.BatchSandbox) (bool, error) {
				if !tooLong(b, want) {
					return false, nil
				}
				b.Spec.TTLSecondsAfterFinished = want(b)
				return true, nil
			})
			var known *lifecycle.Error
			if err == nil || c.ctx.Err() != nil || errors.As(err, &known) && known.Kind == lifecycle.KindNotFound {
				return
			}
			c.Logger.Warn().Err(err).Str("sandbox_id", id).Msg("cannot shorten the retention of an ended sandbox's record; retrying")
			clock.Sleep(c.ctx, shortenInterval)
		}
	})
}

// tooLong reports whether a sandbox has ended and its record stays for longer than wanted.
func tooLong(b *v1alpha1.BatchSandbox, want func(*v1alpha1.BatchSandbox) *int32) bool {
	return b.Status.Phase.Finished() && b.DeletionTimestamp == nil &&
		(b.Spec.TTLSecondsAfterFinished == nil || *b.Spec.TTLSecondsAfterFinished > *want(b))
}

// retention is for how many seconds the record of an ended sandbox stays.
func (c *Cluster) retention(b *v1alpha1.BatchSandbox) *int32 {
	ttl := c.TerminatedRetention
	if failedPending(b) {
		ttl = c.PendingFailureTTL
	}
	return ptr.To(int32(ttl / time.Second))
}

// failedPending reports whether a sandbox has failed without ever having been Running.
func failedPending(b *v1alpha1.BatchSandbox) bool {
	return b.Status.Phase == v1alpha1.PhaseFailed &&
		!slices.ContainsFunc(b.Status.History, func(change v1alpha1.PhaseChange) bool { return change.Phase == v1alpha1.PhaseRunning })
}

// Count returns how many sandboxes there are in each state that any is in.
func (c *Cluster) Count() map[lifecycle.State]int { return c.view.Count() }

// noObserver measures nothing.
type noObserver struct{}

func (noObserver) StateChanged(lifecycle.State, lifecycle.Reason) {}
func (noObserver) StageDone(lifecycle.Stage, time.Duration)       {}
func (noObserver) Provisioned(time.Duration)                      {}
