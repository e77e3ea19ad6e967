// Package claim makes the waiting pods of a Pool the sandboxes of batches: it hands over what the
// sandbox is, by one signed request to the execd of the pod (openapi/execd.yaml, claim), and proves
// that the pod is the sandbox then.
package claim

import (
	"context"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/wire/sandboxhttp"
)

const (
	// answerTime is how long an answer of an execd or the API server may take.
	answerTime = 10 * time.Second
	// resizeInterval is the pause before the API server is asked again whether a pod has its new
	// size; nodes take a second or two.
	resizeInterval = 100 * time.Millisecond
	// maxAnswer bounds what is read of an answer, in bytes: it may be the sandbox's own.
	maxAnswer = 4096
)

// Keys are what the controller proves itself to pods with.
type Keys interface {
	// SignClaim signs a claim of the pod with this UID (claims.Prove).
	SignClaim(ctx context.Context, namespace string, pod types.UID, token, digest string) (string, error)
	// SidecarToken returns the token of the egress sidecar in a pod.
	SidecarToken(ctx context.Context, namespace, pod string) (string, error)
}

// Claims follows the claims of pods. It keeps nothing that a pod does not show: after a restart of
// the controller each execd is asked whether it is the sandbox's already.
type Claims struct {
	enqueue func(namespace, name string)
	keys    Keys
	live    client.Reader
	pods    client.SubResourceClient // resizes pods
	http    *http.Client
	port    int

	ctx    context.Context // ends all followers
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu        sync.Mutex
	followers map[types.NamespacedName]*follower
}

// New returns Claims that call enqueue, which must not block, when the claim of a batch has
// changed. They read pods and the Secrets that claims name with live, which must not be a cache,
// and resize pods with resize, which is the client of that subresource. The end of Start ends them.
func New(enqueue func(namespace, name string), keys Keys, live client.Reader,
	resize client.SubResourceClient) *Claims {
	c := &Claims{
		enqueue: enqueue, keys: keys, live: live, pods: resize, port: v1alpha1.PortExecd,
		http:      sandboxhttp.NewClient(sandboxhttp.Options{Timeout: answerTime, MaxAnswer: maxAnswer}),
		followers: make(map[types.NamespacedName]*follower),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Start waits for the end of the context and then ends everything that goes on. It makes Claims a
// part of a manager.
func (c *Claims) Start(ctx context.Context) error {
	<-ctx.Done()
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	c.done.Wait()
	c.http.CloseIdleConnections()
	return nil
}

// Sync claims the pod for the batch, if that was not begun, and returns what is known of it. It
// never waits for an execd.
func (c *Claims) Sync(b *v1alpha1.BatchSandbox, pod *corev1.Pod) batch.ClaimState {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	f := c.followers[key]
	if f != nil && (f.batch != b.UID || f.pod != pod.UID || f.address != pod.Status.PodIP) {
		f.cancel()
		f = nil
	}
	if f == nil {
		if pod.Status.PodIP == "" || c.ctx.Err() != nil {
			return batch.ClaimState{Message: "waits for the address of its pod"}
		}
		f = c.follow(key, b, pod)
		c.followers[key] = f
	}
	return f.get()
}

// Forget ends the claim of a batch: from then on no request for it is sent.
func (c *Claims) Forget(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if f := c.followers[key]; f != nil {
		f.cancel()
		delete(c.followers, key)
	}
}

// follower claims one pod for one batch.
type follower struct {
	batch, pod types.UID
	address    string // of the pod when this began
	cancel     context.CancelFunc

	mu    sync.Mutex
	state batch.ClaimState
}

func (f *follower) get() batch.ClaimState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// set reports whether the state is another one than before.
func (f *follower) set(state batch.ClaimState) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.state
	f.state = state
	return before != state
}

// follow begins a claim. The caller holds c.mu.
func (c *Claims) follow(key types.NamespacedName, b *v1alpha1.BatchSandbox, pod *corev1.Pod) *follower {
	ctx, cancel := context.WithCancel(c.ctx)
	f := &follower{batch: b.UID, pod: pod.UID, address: pod.Status.PodIP, cancel: cancel,
		state: batch.ClaimState{Message: "its pod is being claimed"}}
	a := &attempt{Claims: c, namespace: b.Namespace, claim: b.Spec.Claim.DeepCopy(), name: pod.Name,
		pod: pod.UID, address: pod.Status.PodIP}
	c.done.Go(func() {
		defer cancel()
		began := time.Now()
		for ctx.Err() == nil {
			state := a.advance(ctx)
			if ctx.Err() != nil {
				return
			}
			if f.set(state) {
				c.enqueue(key.Namespace, key.Name)
			}
			if state.Done || state.Failed {
				return
			}
			if a.taken && a.since.IsZero() {
				a.since = time.Now()
			}
			pause := pauseAfter(time.Since(began))
			switch {
			case a.taken:
				pause = pauseAfter(time.Since(a.since))
			case !a.resized:
				pause = max(pause, resizeInterval)
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return f
}

// pauseAfter is the pause before an execd is asked again that has not answered as wanted for so
// long: a tenth of that, so that no answer is late by more, and no busy node is kept busy by it.
func pauseAfter(waited time.Duration) time.Duration {
	return min(max(2*time.Millisecond, waited/10), time.Second)
}
