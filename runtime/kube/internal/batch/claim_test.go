package batch_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// claimPool makes a Pool whose pods wait for a sandbox.
func (p *place) claimPool() {
	p.Helper()
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Name: "warm", Namespace: p.namespace}}
	pool.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "main", Image: "x",
			Command: []string{"/opt/sandbox/execd-init", "await"}}},
	}}
	p.must(p.Create(p.Context(), pool))
}

// claiming returns a batch whose sandbox is claimed from the pool.
func (p *place) claiming(name string) *v1alpha1.BatchSandbox {
	b := p.batch(name, 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "warm"
	b.Spec.Claim = &v1alpha1.Claim{Container: "main", Entrypoint: []string{"sleep"},
		Token: v1alpha1.SecretKeySelector{Name: "tokens", Key: "execd"}}
	return b
}

// TestClaim: a pod of a Pool that is ready is no sandbox before it was claimed; it is claimed until
// it is one, and not again; and what cannot be claimed fails, and goes.
func TestClaim(t *testing.T) {
	p := newPlace(t)
	pools := new(heap)
	p.control(pools, nil)
	p.claimPool()
	for _, name := range []string{"good", "bad"} {
		pools.stock(p, name, 1)
		key := types.NamespacedName{Namespace: p.namespace, Name: name}
		p.must(p.Create(t.Context(), p.claiming(name)))
		p.has(name, "being claimed", func(b *v1alpha1.BatchSandbox) bool {
			return b.Status.Allocated == 1 && b.Status.Ready == 0 && p.claims.pod(key) == "warm-"+name+"-0"
		})
		p.claims.answer(key, batch.ClaimState{Message: "not yet"})
		p.has(name, "explained", func(b *v1alpha1.BatchSandbox) bool {
			return b.Status.Phase == v1alpha1.PhasePending && b.Status.Message == "not yet" &&
				b.Status.Reason == v1alpha1.ReasonContainerStarting
		})
	}
	good := types.NamespacedName{Namespace: p.namespace, Name: "good"}
	p.claims.answer(good, batch.ClaimState{Done: true})
	p.has("good", "running", running(1))
	p.claims.answer(good, batch.ClaimState{Failed: true, Reason: "CONTAINER_ERROR", Message: "no"})
	p.eventually(func() error {
		if pod := p.claims.pod(good); pod != "" {
			return fmt.Errorf("%s is claimed for a sandbox that runs", pod)
		}
		return nil
	})
	p.has("good", "still running", running(1))

	p.claims.answer(types.NamespacedName{Namespace: p.namespace, Name: "bad"},
		batch.ClaimState{Failed: true, Reason: v1alpha1.ReasonContainerError, Message: "another's"})
	b := p.reaches("bad", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonContainerError || b.Status.Message != "another's" {
		t.Errorf("the batch has failed with %s: %s", b.Status.Reason, b.Status.Message)
	}
	p.eventually(func() error {
		if err := p.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: "warm-bad-0"},
			new(corev1.Pod)); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is there (%v)", err)
		}
		return nil
	})
}

// TestClaimEndsBeforeItsPod: no claim is sent to a pod that is given back.
func TestClaimEndsBeforeItsPod(t *testing.T) {
	p := newPlace(t)
	wrong := make(chan string, 10)
	pools := &heap{releasing: func(b *v1alpha1.BatchSandbox, _ []int) {
		if pod := p.claims.pod(client.ObjectKeyFromObject(b)); pod != "" {
			wrong <- pod
		}
	}}
	p.control(pools, nil)
	p.claimPool()
	for name, end := range map[string]func(*v1alpha1.BatchSandbox){
		"deleted": func(b *v1alpha1.BatchSandbox) { p.must(p.Delete(t.Context(), b)) },
		"stopped": func(b *v1alpha1.BatchSandbox) {
			p.change(b.Name, func(b *v1alpha1.BatchSandbox) {
				b.Annotations[v1alpha1.AnnotationStop] = v1alpha1.ReasonUserDelete
			})
		},
	} {
		pools.stock(p, name, 1)
		b := p.claiming(name)
		p.must(p.Create(t.Context(), b))
		p.has(name, "being claimed", func(b *v1alpha1.BatchSandbox) bool {
			return p.claims.pod(client.ObjectKeyFromObject(b)) != ""
		})
		end(b)
		p.losesWarmPod(name)
	}
	p.stop()
	close(wrong)
	for pod := range wrong {
		t.Errorf("pod %s was given back while it was being claimed", pod)
	}
}

// TestClaimRules: the API server refuses what no controller could claim.
func TestClaimRules(t *testing.T) {
	p := newPlace(t)
	for name, change := range map[string]func(*v1alpha1.BatchSandbox){
		"replicas": func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 },
		"poolRef": func(b *v1alpha1.BatchSandbox) {
			b.Spec.Template, b.Spec.PoolRef = p.batch("x", 1).Spec.Template, ""
		},
		"taskTemplate": func(b *v1alpha1.BatchSandbox) {
			b.Spec.TaskTemplate = &v1alpha1.TaskTemplate{Command: []string{"true"}}
		},
		"entrypoint": func(b *v1alpha1.BatchSandbox) { b.Spec.Claim.Entrypoint = nil },
	} {
		b := p.claiming("refused")
		change(b)
		if err := p.Create(t.Context(), b); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := p.claiming("taken")
	p.must(p.Create(t.Context(), b))
	b.Spec.Claim.Entrypoint = []string{"other"}
	if err := p.Update(t.Context(), b); !apierrors.IsInvalid(err) {
		t.Errorf("another entrypoint: %v", err)
	}
}
