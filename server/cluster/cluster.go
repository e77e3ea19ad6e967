// Package cluster keeps sandboxes on a Kubernetes cluster: each is a BatchSandbox of one replica, which the sandbox-controller makes real.
//
// It is thin and keeps nothing: the resources are the only record. Any number of replicas of the service may work on the same ones, and
// any of them may die at any time. What a replica shows comes from its watch, and what it has written itself it shows at once.
package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

const (
	// settleTimeout is how long Pause and Resume wait for the controller, endpointTimeout how long Endpoint waits for a Pending sandbox.
	settleTimeout   = time.Second
	endpointTimeout = 30 * time.Second
	// callTimeout bounds a call of the API server.
	callTimeout = 15 * time.Second
	// startTimeout is how long the API server has to answer at the start.
	startTimeout = 30 * time.Second
)

// Requests to the API server are limited by the server itself (API priority and fairness); these bounds of the client are out of the way.
const (
	queriesPerSecond = 1000
	burst            = 2000
)

// Guard asks the egress sidecar of one sandbox: what the service knows of openapi/egress.yaml. Errors that a client may be told are of
// type *lifecycle.Error.
type Guard interface {
	// Environment returns the variables that start a sidecar with the policy; whole is false when they cannot hold it.
	Environment(at lifecycle.Sidecar, policy *lifecycle.NetworkPolicy) (env map[string]string, whole bool, err error)
	Policy(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Change(ctx context.Context, at lifecycle.Sidecar, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error)
	Propose(ctx context.Context, at lifecycle.Sidecar) (lifecycle.NetworkPolicy, error)
	Decisions(ctx context.Context, at lifecycle.Sidecar, request lifecycle.DecisionsRequest) (io.ReadCloser, error)
}

// Observer is told what happens to sandboxes, for measurements. Its methods must be quick. Every replica of the service tells of every
// sandbox of the cluster.
type Observer interface {
	StateChanged(to lifecycle.State, reason lifecycle.Reason)
	StageDone(stage lifecycle.Stage, took time.Duration)
	Provisioned(took time.Duration)
}

// Options configures a Cluster.
type Options struct {
	// Kubeconfig is the path of the file that says how the API server is reached; empty means from inside the cluster, as a pod's service
	// account.
	Kubeconfig string
	// Namespace is where sandboxes live; empty means that of the kubeconfig's context, or that of the service's own pod.
	Namespace  string
	ExecdImage string
	// EgressImage is the image of the sidecars; empty means that there are none. EgressUpstream are the name servers that they ask, with
	// commas between; empty means the pod's own.
	EgressImage, EgressUpstream string
	// NewGuard returns a client of the sidecar at an address.
	NewGuard  func(host string) Guard
	Security  Security
	Placement Placement
	// NoHostVolumes refuses every volume from a node. AllowedHostPaths are the folders of nodes that volumes may come from; empty means any,
	// for administrators.
	NoHostVolumes    bool
	AllowedHostPaths []string
	// TerminatedRetention is how long the record of an ended sandbox stays readable.
	TerminatedRetention time.Duration
	// PendingFailureTTL is the same for a sandbox that failed while it was Pending.
	PendingFailureTTL time.Duration
	// ProvisionTimeout is how long a sandbox may be Pending: then it has failed, for instance because no node has room for it.
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
	AppArmorProfile  string // a profile that is loaded on every node; empty means the runtime's default
}

// Cluster is a lifecycle.Backend over the BatchSandboxes of a namespace.
type Cluster struct {
	Options
	api   client.WithWatch
	pods  kubernetes.Interface
	table *table
	feeds *journal

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	close  func()
}

var _ lifecycle.Backend = (*Cluster)(nil)

// Start connects to the cluster, reads the sandboxes that there are, and follows them until Close. It returns an error when the API
// server does not answer, does not know the resources, or does not let the service read them.
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	c, err := connect(options)
	if err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	follower := &follower{api: c.api, namespace: c.Namespace, logger: c.Logger, sink: c}
	version, err := follower.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the BatchSandboxes of namespace %s: %w", c.Namespace, err)
	}
	c.tasks.Go(func() { follower.follow(c.ctx, version) })
	c.tasks.Go(c.sweep)
	return c, nil
}

// connect makes a Cluster that follows nothing yet.
func connect(options Options) (*Cluster, error) {
	if err := options.Placement.check(); err != nil {
		return nil, fmt.Errorf("kubernetes.ephemeral_storage: %w", err)
	}
	config, namespace, err := connection(options.Kubeconfig)
	if err != nil {
		return nil, err
	}
	if options.Namespace == "" {
		options.Namespace = namespace
	}
	if options.Observer == nil {
		options.Observer = blind{}
	}
	c := &Cluster{Options: options, table: newTable(), feeds: newJournal()}
	if c.api, c.pods, c.close, err = clients(config); err != nil {
		return nil, err
	}
	return c, nil
}

// Close stops following. Sandboxes go on.
func (c *Cluster) Close() {
	c.cancel()
	c.tasks.Wait()
	c.close()
}

// connection reads how the API server is reached, and the namespace that goes with it.
func connection(kubeconfig string) (*rest.Config, string, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{})
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, "", fmt.Errorf("kubernetes.kubeconfig_path is not set, and the service does not run in a cluster: %w", err)
		}
		namespace, _, err := loader.Namespace()
		return config, namespace, err
	}
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubernetes.kubeconfig_path: %w", err)
	}
	namespace, _, err := loader.Namespace()
	return config, namespace, err
}

// clients makes clients of the API server, and returns what closes their connections.
func clients(config *rest.Config) (api client.WithWatch, pods kubernetes.Interface, close func(), err error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = queriesPerSecond, burst
	config.UserAgent = "sandbox-server"
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, nil, err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reach the API server: %w", err)
	}
	if api, err = client.NewWithWatch(config, client.Options{Scheme: scheme, HTTPClient: httpClient}); err != nil {
		return nil, nil, nil, fmt.Errorf("reach the API server: %w", err)
	}
	if pods, err = kubernetes.NewForConfigAndClient(config, httpClient); err != nil {
		return nil, nil, nil, fmt.Errorf("reach the API server: %w", err)
	}
	return api, pods, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) }, nil
}

// Count returns how many sandboxes there are in each state that any is in.
func (c *Cluster) Count() map[lifecycle.State]int {
	count := make(map[lifecycle.State]int)
	for _, e := range c.table.all() {
		count[e.sandbox.Status.State]++
	}
	return count
}

// explain turns an error of the API server into what a client may be told, where it may be told anything.
func explain(err error) error {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	switch {
	case err == nil:
		return nil
	case apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err),
		apierrors.IsInternalError(err), errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && !errors.As(err, &certificate):
		known := &lifecycle.Error{Kind: lifecycle.KindUnavailable, Message: "the cluster's API server does not answer", RetryAfter: 1}
		return &silence{known, err}
	}
	return fmt.Errorf("the cluster's API server: %w", err)
}

// silence is an Error of KindUnavailable with its cause, which is for the log.
type silence struct {
	known *lifecycle.Error
	why   error
}

func (s *silence) Error() string   { return s.known.Message + ": " + s.why.Error() }
func (s *silence) Unwrap() []error { return []error{s.known, s.why} }

// stopping is the answer to those who wait while the service stops.
func stopping() error {
	return &lifecycle.Error{Kind: lifecycle.KindUnavailable, Message: "the service is stopping", RetryAfter: 1}
}

// blind observes nothing.
type blind struct{}

func (blind) StateChanged(lifecycle.State, lifecycle.Reason) {}
func (blind) StageDone(lifecycle.Stage, time.Duration)       {}
func (blind) Provisioned(time.Duration)                      {}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
