package pool

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

	floor   string               // the version of the list of pods with which the ledger began
	atLeast map[types.UID]string // of pods: versions older than this say nothing
	// pods that are being deleted; true when that has to be asked for again
	gone      map[types.UID]bool
	made      map[types.NamespacedName]time.Time
	index     *index
	looked    int                      // how often a pod was looked at
	handovers map[string]handoverEntry // by the annotation's name
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

// uncertainWrite is a write that gives pods and whose outcome is not known (yet).
type uncertainWrite struct {
	base string // the version that it replaces; with any other it can no longer succeed
	pods []string
	// it is an earlier leader's, and may give any of the pods, or of those of other such writes to
	// batches of the same pool
	foreign bool
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
		batches:   make(map[types.UID]*record),
		holders:   make(map[types.NamespacedName]types.UID),
		orphans:   make(map[types.NamespacedName]bool),
		atLeast:   make(map[types.UID]string),
		gone:      make(map[types.UID]bool),
		made:      make(map[types.NamespacedName]time.Time),
		index:     newIndex(),
		handovers: make(map[string]handoverEntry),
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

// observe takes news of a batch, from wherever they come. It reports whether they change anything
// for its pool.
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
	lacks := missingPods(batch)
	if lacks == 0 {
		r.waiting = false
	}
	changed = changed || lacks != r.missing
	r.missing = lacks
	l.account(r)
	return changed
}

// acquires reports whether a pod that a batch's annotation names becomes the batch's by that: no other
// has it, or one for which it is only held back (holdBack).
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

// resolveWrite takes the known outcome of a write that was uncertain: pods that the batch did not
// get are free, unless another one may still get them.
func (l *ledger) resolveWrite(r *record) {
	write, pods := r.uncertain, setOf(r.pods)
	r.uncertain = nil
	defer l.account(r)
	var next *record
	if write.foreign {
		next = l.pendingForeignWrite(r)
	}
	for _, name := range write.pods {
		key := types.NamespacedName{Namespace: r.key.Namespace, Name: name}
		switch {
		case l.holders[key] != r.uid || pods[name]:
		case next != nil:
			l.holders[key] = next.uid
			next.uncertain.pods = append(next.uncertain.pods, name)
			l.touch(key)
		default:
			l.releasePod(r, name, false)
		}
	}
}

// pendingForeignWrite returns a batch of the same pool to which an earlier leader may still give pods, nil if
// there is none.
func (l *ledger) pendingForeignWrite(r *record) *record {
	for _, other := range l.batches {
		if other.uncertain != nil && other.uncertain.foreign && other.pool == r.pool &&
			other.key.Namespace == r.key.Namespace {
			return other
		}
	}
	return nil
}

// holdBack holds pods back when a controller takes over: all that an earlier leader may still give to
// the batches, which could not be changed. These are among the listed ones, because pods that are
// made later are no earlier leader's to give. The ledger is locked, and has all batches.
func (l *ledger) holdBack(batches []types.UID, pods []corev1.Pod) {
	for _, uid := range batches {
		r := l.batches[uid]
		write := &uncertainWrite{base: r.version, foreign: true}
		for i := range pods {
			pod := &pods[i]
			if pod.Namespace != r.key.Namespace || pod.Labels[v1alpha1.LabelPool] != r.pool {
				continue
			}
			if c := l.classify(pod); c == classIdle || c == classStarting {
				l.holders[client.ObjectKeyFromObject(pod)] = uid
				write.pods = append(write.pods, pod.Name)
				l.touch(client.ObjectKeyFromObject(pod))
			}
		}
		r.uncertain = write
		l.account(r)
	}
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

// removed records that a batch is gone for good. Pods that it has not given back belong to no
// batch.
func (l *ledger) removed(uid types.UID) {
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

// reservation holds pods for a batch from the moment they are picked until the outcome of the write
// that gives them is known. One of its methods is called, once.
type reservation struct {
	ledger *ledger
	batch  types.UID
	base   string   // the version of the batch that the write replaces
	pods   []string // their names
}

// commit records that the write succeeded, with the batch as it was written.
func (r *reservation) commit(written *v1alpha1.BatchSandbox) { r.ledger.writeSucceeded(written) }

// refuse records that the write certainly has not happened and never will: the pods are free again.
func (r *reservation) refuse() { r.ledger.refused(r.batch, r.base) }

// unknown records that the outcome of the write is not known. The pods stay reserved until
// [Pools.resolveUncertainWrite] finds it out, or the watch delivers it.
func (r *reservation) unknown() { r.ledger.markUncertain(r.batch) }

// reserve picks pods for a batch that asks for them, and holds them; nil means none. It picks none
// while an older batch lacks what there is. Those of the revision come first. current is false when
// the batch is not the latest.
//
// list returns the pods; nil stands for those of the index. They are listed while the ledger is locked. It forgets a pod when the watch delivers its
// deletion, which the cache has seen before: a list from before that could still have the pod, which
// by then looks as if it were of no batch.
func (l *ledger) reserve(batch *v1alpha1.BatchSandbox, revision string,
	list func() ([]*corev1.Pod, error)) (reserved *reservation, current bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.batches[batch.UID]; r != nil && older(batch.ResourceVersion, r.version) {
		return nil, false, nil
	}
	l.noteBatch(batch)
	r := l.batches[batch.UID]
	if r.uncertain != nil {
		return nil, false, nil
	}
	defer l.account(r)
	pods := l.candidates(r, revision)
	if list != nil {
		if pods, err = list(); err != nil {
			return nil, true, err
		}
	}
	var suitable []*corev1.Pod
	idle := make(map[string]int) // by what they provide
	for _, pod := range pods {
		if !l.isAllocatable(pod) {
			continue
		}
		provides := pod.Labels[v1alpha1.LabelProvides]
		idle[provides]++
		if r.requires == "" || r.requires == provides {
			suitable = append(suitable, pod)
		}
	}
	n := min(r.missing, len(suitable)-l.olderDemand(r, idle))
	r.waiting = r.missing > 0
	if n <= 0 {
		return nil, true, nil
	}
	slices.SortStableFunc(suitable, preferred(revision))
	reserved = &reservation{ledger: l, batch: batch.UID, base: batch.ResourceVersion}
	for _, pod := range suitable[:n] {
		l.holders[client.ObjectKeyFromObject(pod)] = r.uid
		l.touch(client.ObjectKeyFromObject(pod))
		reserved.pods = append(reserved.pods, pod.Name)
	}
	r.uncertain = &uncertainWrite{base: reserved.base, pods: reserved.pods}
	r.inFlight = true
	return reserved, true, nil
}

// preferred orders pods: those of the revision first, and older ones before younger.
func preferred(revision string) func(a, b *corev1.Pod) int {
	return func(a, b *corev1.Pod) int {
		if x, y := a.Labels[v1alpha1.LabelRevision] == revision,
			b.Labels[v1alpha1.LabelRevision] == revision; x != y {
			if x {
				return -1
			}
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	}
}

// olderDemand is how many of the pods that a batch could have are lacked by those that wait longer. idle
// is how many pods can be given, by what they provide.
func (l *ledger) olderDemand(r *record, idle map[string]int) int {
	lacked := make(map[string]int)
	for _, other := range l.index.pool(types.NamespacedName{Namespace: r.key.Namespace, Name: r.pool}).waiting {
		if other != r && earlier(other, r) < 0 {
			lacked[other.requires] += other.shortfall()
		}
	}
	if r.requires != "" {
		return lacked[""] + lacked[r.requires]
	}
	n := 0
	for requires, missing := range lacked {
		if requires != "" { // there may be none that those can have
			missing = min(missing, idle[requires])
		}
		n += missing
	}
	return n
}

// earlier orders batches by their creation, and those of the same second by name.
func earlier(a, b *record) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.key.Name, b.key.Name))
}

// writeSucceeded takes the answer to a successful write to a batch.
func (l *ledger) writeSucceeded(batch *v1alpha1.BatchSandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.batches[batch.UID]; r != nil {
		r.inFlight = false
		r.since = time.Time{}
		l.noteBatch(batch)
		if r.uncertain != nil {
			l.resolveWrite(r)
		}
	}
}

// markUncertain records that the outcome of a write is unknown.
func (l *ledger) markUncertain(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.batches[uid]; r != nil {
		r.inFlight = false
	}
}

// uncertainBase returns the version that an uncertain write would replace.
func (l *ledger) uncertainBase(uid types.UID) (base string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.batches[uid]; r != nil && r.uncertain != nil && !r.inFlight {
		return r.uncertain.base, true
	}
	return "", false
}

// refused takes the news that a write that would replace the version base certainly has not happened
// and never will. Meanwhile another goroutine may have come to the same result and the batch been
// given pods again: that write has another base, and keeps its pods.
func (l *ledger) refused(uid types.UID, base string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.batches[uid]; r != nil && r.uncertain != nil && r.uncertain.base == base {
		r.inFlight = false
		l.resolveWrite(r)
	}
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

// markWaiting notes that a batch waits for a pool, also for one that does not exist yet.
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

// markReturned notes which pods of a batch were deleted or marked.
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

// known returns the batches of a pool: all of them, or those with an uncertain write.
func (l *ledger) known(pool types.NamespacedName, all bool) map[types.UID]types.NamespacedName {
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
