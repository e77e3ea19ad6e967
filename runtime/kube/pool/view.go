package pool

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// view is a pool at one moment.
type view struct {
	podCounts
	updated  int            // of all: made from the present template
	idle     map[string]int // of the ready ones: by what they provide
	unwanted []*corev1.Pod
	old      []*corev1.Pod // not ready, and from an older template
	surplus  []*corev1.Pod // what may be removed, in that order
	stale    []*corev1.Pod // ready, and from an older template
	given    bool          // some batch has pods, or may have
	expires  time.Time     // when a pod that was made and not seen is given up; zero without such
}

// view counts the pods of a pool.
func (l *ledger) view(pool types.NamespacedName, revision string, pods []*corev1.Pod,
	now time.Time) view {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := view{idle: make(map[string]int)}
	var starting, ready []*corev1.Pod
	for _, pod := range pods {
		delete(l.made, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		current := pod.Labels[v1alpha1.LabelRevision] == revision
		if current {
			v.updated++
		}
		class := l.classify(pod)
		if key := client.ObjectKeyFromObject(pod); class == classAllocated && l.isReturned(key) {
			// Its batch waits for the end of what runs in it. To the pool it is as if it had been
			// written off.
			if class = l.classifyFree(pod, key); class != classRecycling {
				class = classDeleting
			}
		}
		switch class {
		case classAllocated:
			v.allocated++
		case classDeleting:
			v.leaving++
		case classUnwanted:
			v.leaving++
			v.unwanted = append(v.unwanted, pod)
		case classRecycling:
			v.recycling++
		case classStarting:
			if !current && !l.outdated(pod) {
				v.leaving++
				v.old = append(v.old, pod)
				continue
			}
			v.starting++
			starting = append(starting, pod)
		case classIdle:
			v.ready++
			v.idle[pod.Labels[v1alpha1.LabelProvides]]++
			if !current {
				v.podCounts.stale++
				v.stale = append(v.stale, pod)
			} else {
				ready = append(ready, pod)
			}
		}
	}
	for key, until := range l.made {
		if key.Namespace != pool.Namespace || !madeFor(key.Name, pool.Name) {
			continue
		}
		if !now.Before(until) {
			delete(l.made, key)
			continue
		}
		v.starting++
		if v.expires.IsZero() || until.Before(v.expires) {
			v.expires = until
		}
	}
	youngest := func(a, b *corev1.Pod) int {
		return b.CreationTimestamp.Compare(
			a.CreationTimestamp.Time)
	}
	slices.SortStableFunc(starting, youngest)
	slices.SortStableFunc(ready, youngest)
	v.surplus = slices.Concat(starting, v.stale, ready)
	for _, r := range l.batches {
		if r.pool != pool.Name || r.key.Namespace != pool.Namespace {
			continue
		}
		if r.asked {
			v.want += r.shortfall()
		}
		if r.uncertain != nil ||
			slices.ContainsFunc(r.pods, func(name string) bool { return name != "" }) {
			v.given = true
		}
	}
	return v
}

// due returns the batches for which there are pods now, in the order of their creation, and how
// long until there is one more. A batch that lacks more than there are waits a little longer, so
// that its pods do not come in a write each. idle is how many pods are ready, by what they
// provide.
func (l *ledger) due(pool types.NamespacedName, idle map[string]int, now time.Time,
	patience time.Duration) (batches []types.NamespacedName, again time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle = maps.Clone(idle)
	all := 0
	for _, n := range idle {
		all += n
	}
	for _, r := range slices.SortedFunc(maps.Values(l.batches), earlier) {
		if !r.asked || r.inFlight || r.lacks <= 0 || r.pool != pool.Name ||
			r.key.Namespace != pool.Namespace {
			continue
		}
		if all <= 0 {
			break
		}
		ready := all
		if r.requires != "" {
			ready = min(all, idle[r.requires])
		}
		if ready <= 0 {
			continue
		}
		if r.since.IsZero() {
			r.since = now
		}
		if left := patience - now.Sub(r.since); ready < r.lacks && left > 0 {
			again = left
			break
		}
		batches = append(batches, r.key)
		given := min(ready, r.lacks)
		all -= given
		idle[r.requires] -= given
	}
	return batches, again
}

// waiters returns the batches that wait for a pool.
func (l *ledger) waiters(pool types.NamespacedName) []types.NamespacedName {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []types.NamespacedName
	for _, r := range l.batches {
		if r.asked && r.pool == pool.Name && r.key.Namespace == pool.Namespace {
			keys = append(keys, r.key)
		}
	}
	return keys
}
