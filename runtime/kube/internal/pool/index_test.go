package pool

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

// compare reports where the index differs from a look at every pod and batch.
func compare(t *rapid.T, l *ledger, pool types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counted := 0
	for i, class := range l.index.pool(pool).classes {
		for key, of := range class {
			counted++
			if want := l.classifyForPool(of.pod); int(want) != i || of.class != want || l.index.pods[key] != of {
				t.Fatalf("%s is in class %d of the index, and its class is %d", key.Name, i, want)
			}
		}
	}
	if counted != len(l.index.pods) {
		t.Fatalf("%d pods of %d have a class", counted, len(l.index.pods))
	}
	idle := 0
	for provides, revisions := range l.index.pool(pool).idle {
		for revision, queued := range revisions {
			list := queued.pods()
			for i, of := range list {
				if idle++; of.provides != provides || of.revision != revision || of.class != classIdle ||
					i > 0 && oldest(list[i-1], of) >= 0 {
					t.Fatalf("%s is at a wrong place among those that can be given", of.pod.Name)
				}
			}
		}
	}
	if n := len(l.index.pool(pool).classes[classIdle]); idle != n {
		t.Fatalf("%d pods of %d are in an order", idle, n)
	}
	p := l.index.pool(pool)
	waiting, holding, unsure := 0, 0, 0
	for uid, r := range l.batches {
		has := false
		for _, name := range r.pods {
			has = has || name != ""
		}
		if p.batches[uid] != r || (p.waiting[uid] == r) != r.waiting || (p.unsure[uid] == r) != (r.uncertain != nil) ||
			(p.holding[uid] == r) != (has || r.uncertain != nil) {
			t.Fatalf("the count of batch %s is wrong", r.key.Name)
		}
		waiting, holding, unsure = waiting+len1(r.waiting), holding+len1(has || r.uncertain != nil), unsure+len1(r.uncertain != nil)
	}
	if len(p.batches) != len(l.batches) || len(p.waiting) != waiting || len(p.holding) != holding || len(p.unsure) != unsure {
		t.Fatal("batches are counted that are not there")
	}
}

func len1(is bool) int {
	if is {
		return 1
	}
	return 0
}

// TestIndexFollows: after whatever happens to pods and batches the index has every pod and batch in
// its place, and a batch is given from it what it would be given of a list of all pods.
func TestIndexFollows(t *testing.T) {
	pool := types.NamespacedName{Namespace: "n", Name: "p"}
	rapid.Check(t, func(t *rapid.T) {
		l, version := newLedger(), 100
		next := func() string { version++; return strconv.Itoa(version) }
		pods := make(map[string]*corev1.Pod)
		batches := make(map[string]*v1alpha1.BatchSandbox)
		podName := rapid.Map(rapid.IntRange(0, 11), func(i int) string { return fmt.Sprintf("pod%02d", i) })
		batchName := rapid.Map(rapid.IntRange(0, 4), func(i int) string { return fmt.Sprintf("batch%d", i) })
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			name, of := podName.Draw(t, "pod"), batchName.Draw(t, "batch")
			pod, batch := pods[name], batches[of]
			switch rapid.IntRange(0, 11).Draw(t, "what") {
			case 0, 1, 2: // a pod is there, or changes
				pod = readyPod(name, next())
				pod.CreationTimestamp = metav1.Unix(int64(len(name)+version%3), 0)
				pod.Labels[v1alpha1.LabelRevision] = rapid.SampledFrom([]string{"old", "new"}).Draw(t, "revision")
				pod.Labels[v1alpha1.LabelProvides] = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "provides")
				if rapid.IntRange(0, 3).Draw(t, "ready") == 0 {
					pod.Status.Conditions = nil
				}
				pods[name] = pod
				l.see(pod)
			case 3:
				if pod != nil {
					l.podDeleted(pod)
					delete(pods, name)
				}
			case 4, 5: // a batch is there, or changes
				batch = batchOf(of, int64(of[len(of)-1]), int32(rapid.IntRange(1, 3).Draw(t, "replicas")))
				batch.ResourceVersion = next()
				if before := batches[of]; before != nil {
					batch.Annotations = before.Annotations
				}
				batches[of] = batch
				l.observe(batch)
			case 6:
				if batch == nil {
					break
				}
				list := append([]*corev1.Pod(nil), l.podsOf(pool)...)
				given, _, err := l.reserve(batch.DeepCopy(), "new", nil)
				if err != nil {
					t.Fatal(err)
				}
				if given != nil {
					if rapid.Bool().Draw(t, "written") {
						written := batch.DeepCopy()
						allocation, _ := written.Allocation()
						allocation.Pods = append(allocation.Pods, given.pods...)
						written.SetAllocation(allocation)
						written.ResourceVersion = next()
						batches[of] = written
						given.commit(written)
					} else {
						given.unknown()
						compare(t, l, pool)
						given.refuse()
						// What was given of the index is given of a list.
						again, _, _ := l.reserve(batch.DeepCopy(), "new", func() ([]*corev1.Pod, error) { return list, nil })
						if again == nil || len(again.pods) != len(given.pods) {
							t.Fatalf("given %v of the index, and %v of all pods", given, again)
						}
						again.refuse()
					}
				}
			case 7:
				if batch != nil {
					l.markWaiting(batch)
				}
			case 8:
				if batch != nil {
					l.skip(batch.UID)
				}
			case 9:
				if batch == nil {
					break
				}
				if allocation, _ := batch.Allocation(); len(allocation.Pods) > 0 {
					held := map[string]bool{allocation.Pods[0]: true}
					l.markReturned(batch.UID, held)
					if rapid.Bool().Draw(t, "written off") {
						written := batch.DeepCopy()
						written.SetAllocation(v1alpha1.Allocation{Pods: allocation.Pods[1:]})
						written.ResourceVersion = next()
						batches[of] = written
						l.observe(written)
					}
				}
			case 10:
				if batch != nil {
					l.batchDeleted(batch.UID)
					delete(batches, of)
				}
			case 11:
				if pod != nil && l.deletionStarted(pod, "") {
					var failed error
					if rapid.Bool().Draw(t, "fails") {
						failed = fmt.Errorf("no answer")
					}
					l.deletionDone(pod, failed)
				}
			}
			compare(t, l, pool)
		}
	})
}

// fill makes a ledger with n pods, of which a tenth waits and the others are those of batches.
func fill(n int) (*ledger, []*v1alpha1.BatchSandbox) {
	l := newLedger()
	var batches []*v1alpha1.BatchSandbox
	for i := range n {
		pod := readyPod(fmt.Sprintf("pod%05d", i), strconv.Itoa(i+1))
		pod.CreationTimestamp = metav1.Unix(int64(i), 0)
		pod.Labels[v1alpha1.LabelRevision] = "r"
		l.see(pod)
		if i%10 == 0 {
			continue
		}
		batch := batchOf(fmt.Sprintf("batch%05d", i), int64(i), 1)
		batch.SetAllocation(v1alpha1.Allocation{Pods: []string{pod.Name}})
		l.observe(batch)
		batches = append(batches, batch)
	}
	return l, batches
}

// work gives a pod to a batch and takes it back, and looks at the pool: what an allocation costs
// beside requests to the API server.
func work(l *ledger, number int) {
	batch := batchOf(fmt.Sprintf("new%d", number), 1_000_000, 1)
	given, _, err := l.reserve(batch, "r", nil)
	if err != nil || given == nil || len(given.pods) != 1 {
		panic(fmt.Sprintf("given %v, %v", given, err))
	}
	given.refuse()
	l.batchDeleted(batch.UID)
	pool := types.NamespacedName{Namespace: "n", Name: "p"}
	v := l.view(pool, "r", time.Unix(0, 0))
	l.due(pool, v.idle, time.Unix(0, 0), wait.Patience())
	l.batchesOf(pool, false)
}

// TestLargePoolsAreAsFast: to give a pod and to look at a pool takes as many looks at pods, moves
// of them and allocations with 10 000 pods as with 100. How long these take is for the benchmark.
func TestLargePoolsAreAsFast(t *testing.T) {
	type cost struct {
		looked, moved int
		allocations   float64
	}
	of := func(n int) cost {
		l, _ := fill(n)
		moved := func() (all int) {
			for _, revisions := range l.index.pool(types.NamespacedName{Namespace: "n", Name: "p"}).idle {
				for _, queued := range revisions {
					all += queued.moved
				}
			}
			return all
		}
		const rounds = 100
		number := 0
		once := func() {
			work(l, number)
			number++
		}
		once() // the first one makes room before the oldest pod
		looks, moves := l.classified, moved()
		for range rounds {
			once()
		}
		return cost{(l.classified - looks) / rounds, (moved() - moves) / rounds, testing.AllocsPerRun(rounds, once)}
	}
	small, large := of(100), of(10_000)
	if small != large || large.looked > 10 || large.moved > 10 {
		t.Errorf("the cost with 100 pods is %+v, with 10 000 %+v", small, large)
	}
}

// TestQueueMovesFew: pods that are taken as the oldest and added as the youngest move about one
// other each, however many there are.
func TestQueueMovesFew(t *testing.T) {
	const pods, rounds = 10_000, 50_000
	var q queue
	at := func(n int) *indexed {
		pod := readyPod(fmt.Sprintf("pod%05d", n), "1")
		pod.CreationTimestamp = metav1.Unix(int64(n), 0)
		return &indexed{pod: pod}
	}
	for n := range pods {
		q.insert(at(n))
	}
	for n := range rounds {
		oldest := q.pods()[0]
		q.remove(oldest)
		if n%3 == 0 { // it was refused
			q.insert(oldest)
			q.remove(oldest)
		}
		q.insert(at(pods + n))
	}
	if q.moved > 2*rounds || len(q.pods()) != pods || cap(q.room) > 4*pods {
		t.Errorf("%d pods moved in %d rounds; there are %d, and room for %d", q.moved, rounds, len(q.pods()), cap(q.room))
	}
}

func BenchmarkAllocation(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			l, _ := fill(n)
			for number := 0; b.Loop(); number++ {
				work(l, number)
			}
		})
	}
}
