package pool

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// index has the pods of pools, as the watch delivered them, by what each is to its pool. It is a
// part of the ledger, which keeps it up to date wherever what is known of a pod changes, so that
// neither giving a pod nor a look at a pool costs more where there are more pods. What is given is
// checked again.
type index struct {
	pods  map[types.NamespacedName]*indexed
	pools map[types.NamespacedName]*poolIndex
}

// indexed is a pod in the index.
type indexed struct {
	pod                *corev1.Pod // the cache's, which must not be changed
	pool               types.NamespacedName
	revision, provides string
	class              class
}

// poolIndex is what the index has of one pool.
type poolIndex struct {
	revisions map[string]int // how many pods there are, by revision
	classes   [classes]map[types.NamespacedName]*indexed
	// those that can be given, by what they provide and by revision, oldest first
	idle map[string]map[string]*queue

	waiting map[types.UID]*record // batches that asked and lack pods
	holding map[types.UID]*record // batches that have pods, or may have
	unsure  map[types.UID]*record // batches with an uncertain write
	batches map[types.UID]*record
}

func newIndex() *index {
	return &index{pods: make(map[types.NamespacedName]*indexed),
		pools: make(map[types.NamespacedName]*poolIndex)}
}

// pool returns what there is of a pool.
func (x *index) pool(key types.NamespacedName) *poolIndex {
	p := x.pools[key]
	if p == nil {
		p = &poolIndex{
			revisions: make(map[string]int), idle: make(map[string]map[string]*queue),
			waiting: make(map[types.UID]*record), holding: make(map[types.UID]*record),
			unsure: make(map[types.UID]*record), batches: make(map[types.UID]*record),
		}
		for i := range p.classes {
			p.classes[i] = make(map[types.NamespacedName]*indexed)
		}
		x.pools[key] = p
	}
	return p
}

// tidy forgets a pool of which there is nothing.
func (x *index) tidy(key types.NamespacedName) {
	if p := x.pools[key]; p != nil && len(p.revisions)+len(p.batches) == 0 {
		delete(x.pools, key)
	}
}

// see takes a version of a pod that the watch delivers, and returns the pool that it belongs to.
func (l *ledger) see(pod *corev1.Pod) (pool types.NamespacedName, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	l.unindex(key)
	name := pod.Labels[v1alpha1.LabelPool]
	if name == "" {
		return types.NamespacedName{}, false
	}
	delete(l.creating, key)
	i := &indexed{
		pod: pod, pool: types.NamespacedName{Namespace: pod.Namespace, Name: name},
		revision: pod.Labels[v1alpha1.LabelRevision], provides: pod.Labels[v1alpha1.LabelProvides],
		class: l.classifyForPool(pod),
	}
	l.index.pods[key] = i
	l.index.pool(i.pool).revisions[i.revision]++
	l.index.insert(key, i)
	return i.pool, true
}

// unindex removes a pod from the index.
func (l *ledger) unindex(key types.NamespacedName) {
	i := l.index.pods[key]
	if i == nil {
		return
	}
	delete(l.index.pods, key)
	l.index.remove(key, i)
	p := l.index.pool(i.pool)
	if p.revisions[i.revision]--; p.revisions[i.revision] == 0 {
		delete(p.revisions, i.revision)
	}
	l.index.tidy(i.pool)
}

// touch takes that what the ledger knows of a pod has changed.
func (l *ledger) touch(key types.NamespacedName) {
	i := l.index.pods[key]
	if i == nil {
		return
	}
	if now := l.classifyForPool(i.pod); now != i.class {
		l.index.remove(key, i)
		i.class = now
		l.index.insert(key, i)
	}
}

// touchAll is touch for every pod and every batch.
func (l *ledger) touchAll() {
	for key := range l.index.pods {
		l.touch(key)
	}
	for _, p := range l.index.pools {
		clear(p.waiting)
		clear(p.holding)
		clear(p.unsure)
		clear(p.batches)
	}
	for _, r := range l.batches {
		l.account(r)
	}
}

// classifyForPool is classify, but that a pod whose batch waits for the end of what runs in it is
// to the pool as if it had been written off.
func (l *ledger) classifyForPool(pod *corev1.Pod) class {
	c := l.classify(pod)
	key := client.ObjectKeyFromObject(pod)
	if c != classAllocated || !l.isReturned(key) {
		return c
	}
	if c = l.classifyFree(pod, key); c != classRecycling {
		c = classDeleting
	}
	return c
}

func (x *index) insert(key types.NamespacedName, i *indexed) {
	p := x.pool(i.pool)
	p.classes[i.class][key] = i
	if i.class != classIdle {
		return
	}
	revisions := p.idle[i.provides]
	if revisions == nil {
		revisions = make(map[string]*queue)
		p.idle[i.provides] = revisions
	}
	if revisions[i.revision] == nil {
		revisions[i.revision] = new(queue)
	}
	revisions[i.revision].insert(i)
}

func (x *index) remove(key types.NamespacedName, i *indexed) {
	p := x.pool(i.pool)
	delete(p.classes[i.class], key)
	if i.class != classIdle {
		return
	}
	revisions := p.idle[i.provides]
	if list := revisions[i.revision]; list != nil {
		if list.remove(i); len(list.pods()) == 0 {
			delete(revisions, i.revision)
		}
	}
	if len(revisions) == 0 {
		delete(p.idle, i.provides)
	}
}

// oldest orders pods by their creation, and those of the same second by name.
func oldest(a, b *indexed) int {
	return cmp.Or(a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time),
		cmp.Compare(a.pod.Name, b.pod.Name))
}

// account takes that a record has changed.
func (l *ledger) account(r *record) {
	key := types.NamespacedName{Namespace: r.key.Namespace, Name: r.pool}
	p := l.index.pool(key)
	set := func(records map[types.UID]*record, in bool) {
		if in {
			records[r.uid] = r
		} else {
			delete(records, r.uid)
		}
	}
	there := l.batches[r.uid] == r
	has := slices.ContainsFunc(r.pods, func(name string) bool { return name != "" })
	set(p.batches, there)
	set(p.waiting, there && r.waiting)
	set(p.holding, there && (r.uncertain != nil || has))
	set(p.unsure, there && r.uncertain != nil)
	l.index.tidy(key)
}

// candidates returns pods that a batch may be given, those of the revision and old ones first:
// enough of each kind that no more would change what it is given. The ledger is locked.
func (l *ledger) candidates(r *record, revision string) []*corev1.Pod {
	p := l.index.pools[types.NamespacedName{Namespace: r.key.Namespace, Name: r.pool}]
	if p == nil {
		return nil
	}
	enough := r.missing
	for _, other := range p.waiting {
		if other != r && earlier(other, r) < 0 {
			enough += other.shortfall()
		}
	}
	var pods []*corev1.Pod
	for _, revisions := range p.idle {
		for of, queued := range revisions {
			if of != revision && len(revisions[revision].pods()) >= enough {
				continue
			}
			list := queued.pods()
			for _, i := range list[:min(len(list), enough)] {
				pods = append(pods, i.pod)
			}
		}
	}
	return pods
}

// podsNamed returns those of the names that are pods.
func (l *ledger) podsNamed(namespace string, names []string) (pods []*corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if i := l.index.pods[types.NamespacedName{Namespace: namespace, Name: name}]; i != nil {
			pods = append(pods, i.pod)
		}
	}
	return pods
}

// podsOf returns the pods of a pool.
func (l *ledger) podsOf(pool types.NamespacedName) (pods []*corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.index.pools[pool]; p != nil {
		for _, class := range p.classes {
			for _, i := range class {
				pods = append(pods, i.pod)
			}
		}
	}
	return pods
}
