package pool

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// view is a pool at one moment.
type view struct {
	podCounts
	updated  int            // of all: made from the present template
	idle     map[string]int // of the ready ones: by what they provide
	unwanted []*corev1.Pod
	old      []*corev1.Pod // not ready, and from an older template
	given    bool          // some batch has pods, or may have
	expires  time.Time     // when a pod that was made and not seen is given up; zero without such
}

// view counts the pods of a pool.
func (l *ledger) view(pool types.NamespacedName, revision string, now time.Time) view {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := view{idle: make(map[string]int)}
	defer l.index.tidy(pool)
	p := l.index.pool(pool)
	v.updated = p.revisions[revision]
	v.allocated = len(p.classes[classAllocated])
	v.recycling = len(p.classes[classRecycling])
	v.ready = len(p.classes[classIdle])
	v.starting = len(p.classes[classStarting])
	v.leaving = len(p.classes[classDeleting]) + len(p.classes[classUnwanted])
	for _, i := range p.classes[classUnwanted] {
		v.unwanted = append(v.unwanted, i.pod)
	}
	for _, i := range p.classes[classStarting] { // as many as start at once
		if i.revision != revision && !l.outdated(i.pod) {
			v.leaving++
			v.starting--
			v.old = append(v.old, i.pod)
		}
	}
	for provides, revisions := range p.idle {
		for of, list := range revisions {
			v.idle[provides] += len(list.pods())
			if of != revision {
				v.podCounts.stale += len(list.pods())
			}
		}
	}
	for key, until := range l.creating {
		if key.Namespace != pool.Namespace || !madeFor(key.Name, pool.Name) {
			continue
		}
		if !now.Before(until) {
			delete(l.creating, key)
			continue
		}
		v.starting++
		if v.expires.IsZero() || until.Before(v.expires) {
			v.expires = until
		}
	}
	for _, r := range p.waiting {
		v.want += r.shortfall()
	}
	v.given = len(p.holding) > 0
	return v
}

// surplus returns n pods of a pool that may be removed: those on their way, then the stale ones,
// then the others, young ones first.
func (l *ledger) surplus(pool types.NamespacedName, revision string, n int) []*corev1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.index.pools[pool]
	if p == nil {
		return nil
	}
	var starting, current []*indexed
	for _, i := range p.classes[classStarting] {
		if i.revision == revision || l.outdated(i.pod) {
			starting = append(starting, i)
		}
	}
	for _, revisions := range p.idle {
		list := revisions[revision].pods()
		current = append(current, list[max(len(list)-n, 0):]...)
	}
	youngest := func(a, b *indexed) int { return oldest(b, a) }
	slices.SortFunc(starting, youngest)
	slices.SortFunc(current, youngest)
	all := slices.Concat(starting, p.stale(revision), current)
	pods := make([]*corev1.Pod, 0, min(n, len(all)))
	for _, i := range all[:min(n, len(all))] {
		pods = append(pods, i.pod)
	}
	return pods
}

// staleOf returns n ready pods of a pool that are from an older template.
func (l *ledger) staleOf(pool types.NamespacedName, revision string, n int) []*corev1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.index.pools[pool]
	if p == nil {
		return nil
	}
	var pods []*corev1.Pod
	for _, i := range p.stale(revision) {
		if len(pods) == n {
			break
		}
		pods = append(pods, i.pod)
	}
	return pods
}

// stale returns the ready pods that are from older templates than the revision.
func (p *poolIndex) stale(revision string) (stale []*indexed) {
	for _, revisions := range p.idle {
		for of, list := range revisions {
			if of != revision {
				stale = append(stale, list.pods()...)
			}
		}
	}
	return stale
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
	p := l.index.pools[pool]
	if p == nil || all == 0 {
		return nil, 0
	}
	for _, r := range slices.SortedFunc(maps.Values(p.waiting), earlier) {
		if r.inFlight || r.missing <= 0 {
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
		if left := patience - now.Sub(r.since); ready < r.missing && left > 0 {
			again = left
			break
		}
		batches = append(batches, r.key)
		given := min(ready, r.missing)
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
	if p := l.index.pools[pool]; p != nil {
		for _, r := range p.waiting {
			keys = append(keys, r.key)
		}
	}
	return keys
}
