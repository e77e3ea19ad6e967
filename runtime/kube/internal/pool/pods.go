package pool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

const (
	suffixLength = 10               // of a pod's name: long enough that no name is ever used twice
	seenLimit    = 10 * time.Second // how long a pod that was made, or may have been, is waited for
)

// podReady reports whether a pod runs and all its containers say that they are ready.
func podReady(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// cleanSince returns from when on what some of the pods write into their logs is not of the batches
// that had them before, nil when that is unknown. A reset ends all tasks before it ends the
// container that is then started again, and the runtime of the node gives both that start and the
// lines of a log their times. A container that was never started again was never reset.
func cleanSince(pods []*corev1.Pod, names []string) *metav1.Time {
	given := setOf(names)
	since := new(metav1.Time)
	for _, pod := range pods {
		if !given[pod.Name] {
			continue
		}
		started := false
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == v1alpha1.ContainerTaskExecutor {
				continue
			}
			if c.State.Running == nil || c.State.Running.StartedAt.IsZero() {
				return nil
			}
			at := metav1.NewTime(c.State.Running.StartedAt.Truncate(time.Second))
			if c.RestartCount > 0 { // the kubelet reports whole seconds, rounded down
				at.Time = at.Add(time.Second)
			}
			since, started = later(since, &at), true
		}
		if !started {
			return nil
		}
	}
	return since
}

// later returns the later one of two times, nil if one is unknown.
func later(a, b *metav1.Time) *metav1.Time {
	if a == nil || b != nil && b.Before(a) {
		return a
	}
	return b
}

// podsVersion stands for what newPod and Options.Equip add to a template: a controller that adds
// something else replaces the pods that wait.
const podsVersion = 5

// revisionOf is the hash of a pool's template, and of how pods are made from it.
func revisionOf(pool *v1alpha1.Pool) string {
	text, err := json.Marshal(pool.Spec.Template)
	if err != nil {
		panic(err) // it came as JSON
	}
	sum := sha256.Sum256(fmt.Appendf(text, "\n%d", podsVersion))
	return hex.EncodeToString(sum[:5])
}

// generation is what a Pool's revision was at a generation of its spec.
type generation struct {
	uid        types.UID
	generation int64
	revision   string
}

// revision is revisionOf, from memory if the spec is the same as the last time.
func (p *Pools) revision(pool *v1alpha1.Pool) string {
	key := client.ObjectKeyFromObject(pool)
	p.mu.Lock()
	known := p.revisions[key]
	p.mu.Unlock()
	if known.uid == pool.UID && known.generation == pool.Generation && pool.Generation != 0 {
		return known.revision
	}
	known = generation{pool.UID, pool.Generation, revisionOf(pool)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revisions[key] = known
	return known.revision
}

// checkTemplate returns an error that names the rule that a pool's template breaks.
func checkTemplate(pool *v1alpha1.Pool) error {
	template := pool.Spec.Template
	if template == nil || len(template.Spec.Containers) == 0 {
		return errors.New("spec.template.spec.containers must have one at least")
	}
	if pool.Spec.UnknownField != "" {
		return errors.New("spec." + pool.Spec.UnknownField)
	}
	if v1alpha1.UsesTasks(template) {
		if err := v1alpha1.CheckTaskPod(template); err != nil {
			return fmt.Errorf("spec.%w", err)
		}
	}
	if v1alpha1.WaitingContainer(&template.Spec) != nil {
		if err := v1alpha1.CheckClaimPod(template); err != nil {
			return fmt.Errorf("spec.%w", err)
		}
		if pool.Spec.RecycleStrategy == v1alpha1.RecycleRestart {
			return errors.New("spec.recycleStrategy must be Delete for pods that wait for a sandbox: no pod is one twice")
		}
	}
	if r := template.Spec.RestartPolicy; pool.Spec.RecycleStrategy == v1alpha1.RecycleRestart &&
		r != "" && r != corev1.RestartPolicyAlways {
		return errors.New(
			"spec.template.spec.restartPolicy must be Always with the recycleStrategy Restart")
	}
	return nil
}

// newPod returns a pod from the pool's template.
func newPod(pool *v1alpha1.Pool, revision string) *corev1.Pod {
	template := pool.Spec.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   pool.Namespace,
			Name:        pool.Name + "-" + utilrand.String(suffixLength),
			Labels:      maps.Clone(template.Labels),
			Annotations: template.Annotations,
			Finalizers:  template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("Pool")),
			},
		},
		Spec: template.Spec,
	}
	if pod.Labels == nil {
		pod.Labels = make(map[string]string)
	}
	pod.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ManagedBy
	pod.Labels[v1alpha1.LabelPool] = pool.Name
	pod.Labels[v1alpha1.LabelRevision] = revision
	pod.Labels[v1alpha1.LabelProvides] = v1alpha1.Provides(pool.Spec.Template)
	v1alpha1.Confine(&pod.Spec)
	if c := v1alpha1.WaitingContainer(&pod.Spec); c != nil && c.TerminationMessagePolicy == "" {
		// the last lines of its log say how the sandbox ended
		c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}
	return pod
}

// madeFor reports whether newPod makes such names for the pool.
func madeFor(pod, pool string) bool {
	rest, ok := strings.CutPrefix(pod, pool+"-")
	return ok && len(rest) == suffixLength && !strings.Contains(rest, "-")
}

// makePods creates n pods and returns how many there are certainly.
func (p *Pools) makePods(ctx context.Context, pool *v1alpha1.Pool, revision string,
	n int) (int, error) {
	done := make([]bool, n)
	var group errgroup.Group
	group.SetLimit(parallel)
	for i := range n {
		group.Go(func() error {
			if !p.options.Lease.Held() {
				return ErrNotLeading
			}
			ctx, cancel := context.WithTimeout(ctx, writeLimit)
			defer cancel()
			pod := newPod(pool, revision)
			if err := p.options.Equip(ctx, pod); err != nil {
				return err
			}
			key := client.ObjectKeyFromObject(pod)
			p.ledger.podCreating(key, time.Now().Add(seenLimit))
			err := p.client.Create(ctx, pod)
			if refusal(err) {
				p.ledger.podCreateFailed(key) // otherwise the pod may be there
			}
			done[i] = err == nil
			return err
		})
	}
	err := group.Wait()
	made := 0
	for _, ok := range done {
		if ok {
			made++
		}
	}
	return made, err
}

// refusal reports whether the API server has said that a pod cannot be made: a rule or a quota.
func refusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err)
}

// removePods deletes pods of no batch, and returns how many.
func (p *Pools) removePods(ctx context.Context, pods []*corev1.Pod) (int, error) {
	done := make([]bool, len(pods))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, pod := range pods {
		group.Go(func() error {
			if !p.options.Lease.Held() {
				return ErrNotLeading
			}
			if !p.ledger.deletionStarted(pod, types.UID("")) {
				return nil // it was given meanwhile
			}
			done[i] = true
			return p.delete(ctx, pod)
		})
	}
	err := group.Wait()
	removed := 0
	for _, ok := range done {
		if ok {
			removed++
		}
	}
	return removed, err
}
