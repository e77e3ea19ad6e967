package pool

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// isAllocatable reports whether a pod can be given: ready, of no batch, not being deleted, and last
// read in a state that is not out of date.
func (l *ledger) isAllocatable(pod *corev1.Pod) bool {
	_, held := l.holders[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
	return !held && l.classify(pod) == classIdle && podReady(pod)
}

// class is what a pod of a pool is to it.
type class int

const (
	classIdle      class = iota
	classStarting        // on its way, or what is known of it is out of date
	classRecycling       // was used, and comes back
	classDeleting        // is being deleted
	classUnwanted        // must be deleted: used and of no batch, ended, or evicted
	classAllocated       // belongs to a batch
	classes              // how many there are
)

func (l *ledger) classify(pod *corev1.Pod) class {
	l.classified++
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if _, held := l.holders[key]; held {
		return classAllocated
	}
	return l.classifyFree(pod, key)
}

// classifyFree is classify for a pod as if it belonged to no batch.
func (l *ledger) classifyFree(pod *corev1.Pod, key types.NamespacedName) class {
	if pod.DeletionTimestamp != nil {
		return classDeleting
	}
	if again, gone := l.deleting[pod.UID]; gone {
		if again {
			return classUnwanted
		}
		return classDeleting
	}
	_, evicted := pod.Labels[v1alpha1.LabelEvict]
	switch {
	case l.orphans[key], evicted, pod.Status.Phase == corev1.PodFailed,
		pod.Status.Phase == corev1.PodSucceeded:
		return classUnwanted
	case l.outdated(pod):
		return classStarting
	case isRecycling(pod):
		return classRecycling
	case podReady(pod):
		return classIdle
	}
	return classStarting
}

// outdated reports whether the cache is behind what is known of the pod.
func (l *ledger) outdated(pod *corev1.Pod) bool {
	if version, ok := l.minVersions[pod.UID]; ok {
		return older(pod.ResourceVersion, version)
	}
	return l.listVersion != "" && !older(l.listVersion, pod.ResourceVersion)
}

// isRecyclable reports whether a pod is marked and its current state is known, and it belongs to no
// batch or is returned by the one that has it. It returns that batch.
func (l *ledger) isRecyclable(pod *corev1.Pod) (holder types.UID, batch types.NamespacedName, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	if uid, held := l.holders[key]; held {
		if !l.isReturned(key) {
			return "", types.NamespacedName{}, false
		}
		holder, batch = uid, l.batches[uid].key
	}
	return holder, batch, l.classifyFree(pod, key) == classRecycling
}

// isBeingDeleted reports whether a pod has been deleted, though the cache may not show that yet.
func (l *ledger) isBeingDeleted(pod *corev1.Pod) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	again, gone := l.deleting[pod.UID]
	return gone && !again
}

// isUnallocated reports whether a pod belongs to no batch and exists.
func (l *ledger) isUnallocated(pod *corev1.Pod) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.classify(pod)
	return c != classAllocated && c != classDeleting
}

// podDeleted removes a pod that is gone. The slot of a batch that had it stays.
func (l *ledger) podDeleted(pod *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	delete(l.deleting, pod.UID)
	delete(l.minVersions, pod.UID)
	delete(l.orphans, key)
	delete(l.creating, key)
	if i := l.index.pods[key]; i != nil && i.pod.UID == pod.UID {
		l.unindex(key)
	}
}

// deletionStarted records that a pod is about to be deleted, unless it belongs to another batch
// than the caller's.
func (l *ledger) deletionStarted(pod *corev1.Pod, owner types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holders[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] != owner {
		return false
	}
	l.deleting[pod.UID] = false
	l.touch(client.ObjectKeyFromObject(pod))
	return true
}

// deletionDone records the outcome of a deletion.
func (l *ledger) deletionDone(pod *corev1.Pod, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.deleting[pod.UID]; ok {
		l.deleting[pod.UID] = err != nil
		l.touch(client.ObjectKeyFromObject(pod))
	}
}

// noteVersion records the version that a write to a pod has made: older ones are out of date.
func (l *ledger) noteVersion(pod *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minVersions[pod.UID] = pod.ResourceVersion
	l.touch(client.ObjectKeyFromObject(pod))
}

// podCreating records that a pod is about to be made, until the watch delivers it.
func (l *ledger) podCreating(key types.NamespacedName, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.creating[key] = until
}

// podCreateFailed records that a pod was not made.
func (l *ledger) podCreateFailed(key types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.creating, key)
}
