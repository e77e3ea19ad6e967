package manager

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/internal/claim"
	"sandbox.internal/runtime/kube/internal/executor"
	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/internal/task"
)

// signer makes proofs only while this controller certainly leads (pool.ErrNotLeading). One that was
// suspended, and has not read yet that another one leads, must not reset a pod that the other one
// has given to a batch, nor send a task there: the proofs that it has do not open an executor that
// was reset since.
func signer(keys *executor.Keys, lease *pool.Lease) task.Sign {
	return func(namespace string,
		pod types.UID) func(ctx context.Context, challenge string) (string, error) {
		sign := keys.Signer(namespace, pod)
		return func(ctx context.Context, challenge string) (string, error) {
			if !lease.Held() {
				return "", pool.ErrNotLeading
			}
			return sign(ctx, challenge)
		}
	}
}

// pools adds the controllers of Pools.
func (m *Manager) pools(options Options, lease *pool.Lease, enqueuer *batch.Enqueuer,
	keys *executor.Keys) (batch.Pools, error) {
	return pool.Setup(m.Manager, pool.Options{
		Enqueue: enqueuer.Enqueue, Namespace: options.Namespace, Lease: lease, Metrics: m.metrics,
		Equip: keys.Equip, Reset: &pool.Executor{Sign: signer(keys, lease)},
	})
}

// tasks makes the part that runs tasks, which ends with the manager.
func (m *Manager) tasks(lease *pool.Lease, enqueuer *batch.Enqueuer,
	keys *executor.Keys) (batch.Tasks, error) {
	t := task.New(enqueuer.Enqueue, signer(keys, lease), m.GetAPIReader())
	return t, m.Add(t)
}

// leading are keys that are of use only while this controller certainly leads.
type leading struct {
	*executor.Keys
	lease *pool.Lease
}

// SignClaim implements claim.Keys.
func (l leading) SignClaim(ctx context.Context, namespace string, pod types.UID, token,
	digest string) (string, error) {
	if !l.lease.Held() {
		return "", pool.ErrNotLeading
	}
	return l.Keys.SignClaim(ctx, namespace, pod, token, digest)
}

// claims makes the part that claims pods, which ends with the manager. It signs only while this
// controller certainly leads.
func (m *Manager) claims(lease *pool.Lease, enqueuer *batch.Enqueuer,
	keys *executor.Keys) (batch.Claims, error) {
	c := claim.New(enqueuer.Enqueue, leading{keys, lease}, m.GetAPIReader(),
		m.GetClient().SubResource("resize"))
	return c, m.Add(c)
}

// podNamespace is the file with the namespace of the pod that the controller runs in.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// newLease is the lock of the election, in a namespace; before is where earlier versions had it,
// which may be the same. limit is how long after a renewal this controller takes itself for the
// leader.
func newLease(config *rest.Config, namespace, before string, limit time.Duration) (*pool.Lease,
	error) {
	if namespace == "" {
		text, err := os.ReadFile(podNamespace)
		if err != nil {
			return nil,
				errors.New(
					"--leader-elect-namespace: is needed outside of a cluster, with --leader-elect and without --namespace")
		}
		namespace = string(text)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	identity := host + "_" + uuid.NewString()
	config = leaseConfig(config, limit)
	lock, err := lockIn(namespace, config, identity)
	if err != nil {
		return nil, err
	}
	if before != "" && before != namespace {
		earlier, err := lockIn(before, config, identity)
		if err != nil {
			return nil, err
		}
		lock = &movedLock{Interface: lock, before: earlier, now: time.Now}
	}
	return pool.NewLease(lock, limit), nil
}

// leaseConfig is for the client of the lease alone. It has connections of its own: on one that it
// shared with everything else, a renewal would wait for what the controller has sent before.
func leaseConfig(config *rest.Config, limit time.Duration) *rest.Config {
	config = rest.AddUserAgent(config, "leader-election")
	config.Timeout = max(limit/2, time.Second) // one slow answer must not cost the lease
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: config.Timeout, KeepAlive: 30 * time.Second}).DialContext
	}
	// The library shares the transport of configurations that are the same; functions never are.
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dial(ctx, network, address)
	}
	return config
}

func lockIn(namespace string, config *rest.Config, identity string) (resourcelock.Interface, error) {
	core, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	coordination, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return resourcelock.New(resourcelock.LeasesResourceLock, namespace, leaderElectionID,
		core, coordination, resourcelock.ResourceLockConfig{Identity: identity})
}
