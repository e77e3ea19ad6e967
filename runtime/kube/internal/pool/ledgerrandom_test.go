package pool

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestLedgerGivesNoPodTwice: batches ask, writes succeed, fail, arrive late or have an unknown
// outcome, which two goroutines find out at the same time, the watch is late, the controller
// crashes at any moment and begins again with a list, and cannot change some batches. No pod is
// ever given to two batches, and in the end every batch has what it asked for.
func TestLedgerGivesNoPodTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &server{batches: make(map[string]*v1alpha1.BatchSandbox),
			owners: make(map[string]types.UID)}
		var pods []*corev1.Pod
		for i := range 30 {
			pods = append(pods, readyPod(fmt.Sprintf("pod%02d", i), s.next()))
		}
		names := make([]string, 6)
		for i := range names {
			names[i] = fmt.Sprintf("batch%d", i)
			s.batches[names[i]] = &v1alpha1.BatchSandbox{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "n", Name: names[i], UID: types.UID(names[i]),
					ResourceVersion:   s.next(),
					CreationTimestamp: metav1.Unix(int64(i), 0),
				},
				Spec: v1alpha1.BatchSandboxSpec{PoolRef: "p",
					Replicas: int32(rapid.IntRange(1, 5).Draw(t, "replicas"))},
			}
		}
		fixed := make(map[string]bool) // batches that the controller cannot change
		start := func() *ledger {
			l := newLedger()
			var unfenced []types.UID
			for _, name := range names {
				batch := s.batches[name].DeepCopy()
				fixed[name] = rapid.IntRange(0, 3).Draw(t, "fixed") == 0
				switch {
				case missingPods(batch) == 0:
				case fixed[name]:
					unfenced = append(unfenced, batch.UID)
				default:
					batch = s.bump(name)
				}
				l.noteBatch(batch)
			}
			var listed []corev1.Pod
			for _, pod := range pods {
				listed = append(listed, *pod)
			}
			l.holdBack(unfenced, listed)
			return l
		}
		// begin is the part of resolveUncertainWrite that asks the API server; the ledger gets the
		// answer later.
		begin := func(l *ledger, name string) (end func()) {
			base, ok := l.uncertainBase(types.UID(name))
			if !ok {
				return func() {}
			}
			live := s.batches[name].DeepCopy()
			if live.ResourceVersion == base {
				if fixed[name] {
					return func() {}
				}
				live = s.bump(name)
			}
			return func() {
				l.observe(live)
				l.writeRefused(types.UID(name), base)
			}
		}
		resolve := func(l *ledger, name string) { begin(l, name)() }
		ask := func(l *ledger, name string, cached *v1alpha1.BatchSandbox, outcome int) {
			resolve(l, name)
			if _, open := l.uncertainBase(types.UID(name)); open || missingPods(cached) == 0 {
				return
			}
			given, current := reserve(l, cached.DeepCopy(), pods)
			if !current || len(given) == 0 {
				return
			}
			w := write{batch: name, base: cached.ResourceVersion, pods: given}
			switch outcome {
			case 0: // answered
				if written, ok := s.apply(t, w); ok {
					l.writeSucceeded(written)
				} else {
					l.markUncertain(types.UID(name))
					resolve(l, name)
				}
			case 1: // done, and the answer is lost
				s.apply(t, w)
				l.markUncertain(types.UID(name))
			case 2: // on its way
				s.late = append(s.late, w)
				l.markUncertain(types.UID(name))
			case 3: // lost
				l.markUncertain(types.UID(name))
			}
		}
		l := start()
		var audits []func()
		for range rapid.IntRange(10, 80).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "batch")
			switch rapid.IntRange(0, 8).Draw(t, "what") {
			case 0, 1, 2:
				cached := s.batches[name]
				if rapid.Bool().Draw(t, "stale") {
					cached = cached.DeepCopy()
					cached.ResourceVersion = "1"
				}
				ask(l, name, cached, rapid.IntRange(0, 3).Draw(t, "outcome"))
			case 3:
				l.observe(s.batches[name].DeepCopy())
			case 4:
				if len(s.late) > 0 {
					w := s.late[0]
					s.late = s.late[1:]
					s.apply(t, w)
				}
			case 5:
				resolve(l, name)
			case 6:
				l, audits = start(), nil
			case 7:
				audits = append(audits, begin(l, name))
			case 8:
				if len(audits) > 0 {
					audits[0]()
					audits = audits[1:]
				}
			}
		}
		clear(fixed)
		for range 2 { // what was late comes, and every batch asks in turn
			for _, w := range s.late {
				s.apply(t, w)
			}
			s.late = nil
			for _, name := range names {
				resolve(l, name)
				l.observe(s.batches[name].DeepCopy())
				ask(l, name, s.batches[name], 0)
			}
		}
		for _, name := range names {
			if n := missingPods(s.batches[name]); n > 0 {
				t.Fatalf("%s still lacks %d pods", name, n)
			}
		}
	})
}
