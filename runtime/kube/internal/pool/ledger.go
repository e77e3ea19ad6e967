package pool

import (
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// ledger records which batch has which pods. It does no I/O. Its source are the annotations of the
// BatchSandboxes, to which it adds what was written and is not delivered by the watch yet, and what
// was written with an unknown outcome.
//
// Pods are known by name, which is never used twice, and their versions by UID.
type ledger struct {
	mu      sync.Mutex
	batches map[types.UID]*record
	holders map[types.NamespacedName]types.UID // of pods
	// pods that were a batch's, and belong to none now: they must not be given
	orphans map[types.NamespacedName]bool

	listVersion string               // the version of the list of pods with which the ledger began
	minVersions map[types.UID]string // of pods: an older version of the pod is out of date
	// pods that are being deleted; true when that has to be asked for again
	deleting map[types.UID]bool
	// pods that are being made and not delivered by the watch yet, and until when they are counted
	creating   map[types.NamespacedName]time.Time
	index      *index
	classified int                      // how often a pod was classified, for tests
	handovers  map[string]handoverEntry // by the annotation's name
}

// record is what the ledger has about one batch.
type record struct {
	key       types.NamespacedName
	uid       types.UID
	pool      string
	requires  string // what its pods must provide (AnnotationRequires); empty: anything
	created   time.Time
	version   string
	pods      []string // as written
	missing   int
	waiting   bool      // it was refused pods, and waits
	since     time.Time // when there was a pod for it that it has not fetched yet
	uncertain *uncertainWrite
	inFlight  bool
	returned  map[string]bool // pods that were deleted or marked, and are to be written off
}

// shortfall is how many pods the batch lacks beside those that are held for it.
func (r *record) shortfall() int {
	if r.uncertain != nil {
		return max(r.missing-len(r.uncertain.pods), 0)
	}
	return r.missing
}

func newLedger() *ledger {
	return &ledger{
		batches:     make(map[types.UID]*record),
		holders:     make(map[types.NamespacedName]types.UID),
		orphans:     make(map[types.NamespacedName]bool),
		minVersions: make(map[types.UID]string),
		deleting:    make(map[types.UID]bool),
		creating:    make(map[types.NamespacedName]time.Time),
		index:       newIndex(),
		handovers:   make(map[string]handoverEntry),
	}
}

// older reports whether version a is older than b. A version that is none is older than any.
func older(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return a == "" && b != ""
	}
	return n < 0
}

// observe records the state of a batch, whoever has read it. It reports whether that changes
// anything for its pool.
func (l *ledger) observe(batch *v1alpha1.BatchSandbox) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.noteBatch(batch)
}

func (l *ledger) noteBatch(batch *v1alpha1.BatchSandbox) bool {
	r := l.batches[batch.UID]
	if r == nil {
		r = l.add(batch)
	} else if !older(r.version, batch.ResourceVersion) {
		return false
	}
	r.version = batch.ResourceVersion
	r.requires = batch.Annotations[v1alpha1.AnnotationRequires]
	pods := podsOf(batch)
	changed, kept := false, setOf(pods)
	for _, name := range pods {
		key := types.NamespacedName{Namespace: r.key.Namespace, Name: name}
		if name != "" && l.acquires(r, key) {
			l.holders[key] = r.uid
			delete(l.orphans, key)
			l.touch(key)
			changed = true
		}
	}
	for _, name := range r.pods {
		if name != "" && !kept[name] {
			l.releasePod(r, name, !r.returned[name])
			delete(r.returned, name) // it may be given to the batch again
			l.touch(types.NamespacedName{Namespace: r.key.Namespace, Name: name})
			changed = true
		}
	}
	r.pods = pods
	if d := r.uncertain; d != nil && !r.inFlight && d.base != r.version {
		l.resolveWrite(r)
		changed = true
	}
	missing := missingPods(batch)
	if missing == 0 {
		r.waiting = false
	}
	changed = changed || missing != r.missing
	r.missing = missing
	l.account(r)
	return changed
}

// acquires reports whether a pod that a batch's annotation names becomes the batch's by that: no
// other batch has it, or only one for which it is held back (holdBack).
func (l *ledger) acquires(r *record, pod types.NamespacedName) bool {
	uid, held := l.holders[pod]
	if !held {
		return true
	}
	holder := l.batches[uid]
	return holder != nil && holder != r && holder.uncertain != nil && holder.uncertain.foreign &&
		!slices.Contains(holder.pods, pod.Name)
}

func (l *ledger) add(batch *v1alpha1.BatchSandbox) *record {
	r := &record{
		key:     types.NamespacedName{Namespace: batch.Namespace, Name: batch.Name},
		uid:     batch.UID,
		pool:    batch.Spec.PoolRef,
		created: batch.CreationTimestamp.Time,
	}
	l.batches[batch.UID] = r
	return r
}

// releasePod takes a pod from a batch. used means that it must not be given again.
func (l *ledger) releasePod(r *record, name string, used bool) {
	key := types.NamespacedName{Namespace: r.key.Namespace, Name: name}
	if l.holders[key] != r.uid {
		return
	}
	delete(l.holders, key)
	if used {
		l.orphans[key] = true
	}
	l.touch(key)
}

// batchDeleted records that a batch is gone for good. Pods that it has not given back belong to no
// batch.
func (l *ledger) batchDeleted(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.batches[uid]
	if r == nil {
		return
	}
	for _, name := range r.pods {
		l.releasePod(r, name, true)
	}
	if r.uncertain != nil {
		for _, name := range r.uncertain.pods {
			l.releasePod(r, name, true)
		}
	}
	delete(l.batches, uid)
	l.account(r)
}

// skip permits younger batches of the pool to be served before one which cannot be given pods
// as it is.
func (l *ledger) skip(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.batches[uid]; r != nil {
		r.waiting = false
		l.account(r)
	}
}

// markWaiting records that a batch waits for a pool, also for one that does not exist yet.
func (l *ledger) markWaiting(batch *v1alpha1.BatchSandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteBatch(batch)
	if r := l.batches[batch.UID]; r.missing > 0 {
		r.waiting = true
		l.account(r)
	}
}

// owns reports whether the batch has the pod that its annotation names. current is false when the
// batch is not the latest.
func (l *ledger) owns(batch *v1alpha1.BatchSandbox, name string) (owns, current bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteBatch(batch)
	key := types.NamespacedName{Namespace: batch.Namespace, Name: name}
	return l.holders[key] == batch.UID, l.batches[batch.UID].version == batch.ResourceVersion
}

// holds reports whether the pod belongs to the batch.
func (l *ledger) holds(uid types.UID, key types.NamespacedName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holders[key] == uid
}

// markReturned records which pods of a batch were deleted or marked.
func (l *ledger) markReturned(uid types.UID, names map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.batches[uid]
	if r == nil {
		return
	}
	if r.returned == nil {
		r.returned = make(map[string]bool)
	}
	maps.Copy(r.returned, names)
	for name := range names {
		l.touch(types.NamespacedName{Namespace: r.key.Namespace, Name: name})
	}
}

// isReturned reports whether a pod is to be written off by the batch that has it. The ledger is
// locked.
func (l *ledger) isReturned(key types.NamespacedName) bool {
	r := l.batches[l.holders[key]]
	return r != nil && r.returned[key.Name]
}

// batchesOf returns the batches of a pool: all of them, or those with an uncertain write.
func (l *ledger) batchesOf(pool types.NamespacedName, all bool) map[types.UID]types.NamespacedName {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := make(map[types.UID]types.NamespacedName)
	p := l.index.pools[pool]
	if p == nil {
		return keys
	}
	records := p.unsure
	if all {
		records = p.batches
	}
	for uid, r := range records {
		keys[uid] = r.key
	}
	return keys
}

// names finds everything in a text that could be the name of a pod.
var names = regexp.MustCompile(`[a-z0-9]([-a-z0-9.]*[a-z0-9])?`)

// podsOf are the pods of a batch. Of an annotation that cannot be read, everything that could be a
// pod's name is one: better a pod too many that no batch gets than one that two get.
func podsOf(batch *v1alpha1.BatchSandbox) []string {
	allocation, err := batch.Allocation()
	if err != nil {
		return names.FindAllString(batch.Annotations[v1alpha1.AnnotationAllocation], -1)
	}
	return allocation.Pods
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// missingPods is how many pods a batch may still get.
func missingPods(batch *v1alpha1.BatchSandbox) int {
	allocation, err := batch.Allocation()
	if err != nil || batch.Annotations[v1alpha1.AnnotationStop] != "" ||
		batch.DeletionTimestamp != nil ||
		batch.Status.Phase == v1alpha1.PhaseStopping || batch.Status.Phase.Finished() {
		return 0
	}
	n := 0
	for number := range int(batch.Spec.Replicas) {
		if batch.Lacks(allocation.Pods, number) {
			n++
		}
	}
	return n
}
