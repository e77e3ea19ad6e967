package pool

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

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
func (r *reservation) refuse() { r.ledger.writeRefused(r.batch, r.base) }

// unknown records that the outcome of the write is not known. The pods stay reserved until
// [Pools.resolveUncertainWrite] finds it out, or the watch delivers it.
func (r *reservation) unknown() { r.ledger.markUncertain(r.batch) }

// reserve picks pods for a batch that asks for them, and holds them; nil means none. It picks none
// while an older batch lacks what there is. Those of the revision come first. current is false when
// the batch is not the latest.
//
// list returns the pods; nil stands for those of the index. They are listed while the ledger is
// locked. It forgets a pod when the watch delivers its deletion, which the cache has seen before: a
// list from before that could still have the pod, which by then looks as if it were of no batch.
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

// olderDemand is how many of the pods that a batch could have are missing to batches that wait
// longer. idle is how many pods can be given, by what they provide.
func (l *ledger) olderDemand(r *record, idle map[string]int) int {
	missingOf := make(map[string]int) // by what they require
	for _, other := range l.index.pool(types.NamespacedName{Namespace: r.key.Namespace, Name: r.pool}).waiting {
		if other != r && earlier(other, r) < 0 {
			missingOf[other.requires] += other.shortfall()
		}
	}
	if r.requires != "" {
		return missingOf[""] + missingOf[r.requires]
	}
	n := 0
	for requires, missing := range missingOf {
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

// uncertainWrite is a write that gives pods and whose outcome is not known (yet).
type uncertainWrite struct {
	base string // the version that it replaces; with any other it can no longer succeed
	pods []string
	// it is an earlier leader's, and may give any of the pods, or of those of other such writes to
	// batches of the same pool
	foreign bool
}

// writeSucceeded records a batch as a successful write has made it.
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

// writeRefused records that a write that would replace the version base certainly has not happened
// and never will. Another goroutine may have come to the same result before, and the batch been
// given pods again: that write has another base, and keeps its pods.
func (l *ledger) writeRefused(uid types.UID, base string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.batches[uid]; r != nil && r.uncertain != nil && r.uncertain.base == base {
		r.inFlight = false
		l.resolveWrite(r)
	}
}

// resolveWrite ends an uncertain write whose outcome is known: pods that the batch did not get are
// free, unless another batch may still get them.
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

// pendingForeignWrite returns a batch of the same pool to which an earlier leader may still give
// pods, nil if there is none.
func (l *ledger) pendingForeignWrite(r *record) *record {
	for _, other := range l.batches {
		if other.uncertain != nil && other.uncertain.foreign && other.pool == r.pool &&
			other.key.Namespace == r.key.Namespace {
			return other
		}
	}
	return nil
}

// holdBack holds pods back when a controller takes over: all that an earlier leader may still give
// to the batches, which could not be changed. These are among the listed ones, because pods that
// are made later are no earlier leader's to give. The ledger is locked, and has all batches.
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
