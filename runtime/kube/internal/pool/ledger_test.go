package pool

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestTwoFindOutTheSame: the pool and the batch find out at the same time that a write has not
// happened. The pods that the batch is then given stay its own when the second answer comes.
func TestTwoFindOutTheSame(t *testing.T) {
	l, pods := newLedger(), []*corev1.Pod{readyPod("a", "1")}
	batch := batchOf("first", 1, 1)
	if names, _ := reserve(l, batch, pods); len(names) != 1 {
		t.Fatalf("reserved %v", names)
	}
	l.markUncertain(batch.UID)
	base, inDoubt := l.uncertainBase(batch.UID)
	if !inDoubt {
		t.Fatal("a write without an answer is not in doubt")
	}
	bumped := batch.DeepCopy()
	bumped.ResourceVersion = "11"
	l.observe(bumped)
	l.writeRefused(batch.UID, base)
	if names, _ := reserve(l, bumped, pods); len(names) != 1 {
		t.Fatalf("reserved %v of what the refused write gave up", names)
	}
	l.writeRefused(batch.UID, base)
	if names, _ := reserve(l, batchOf("second", 2, 1), pods); len(names) != 0 {
		t.Errorf("%v is being written for one batch and reserved for another", names)
	}
}

// TestHeldBack: when a controller takes over, pods that an earlier leader may still give to one of
// several batches are given to no other batch before it is known of each that it gets them no more.
func TestHeldBack(t *testing.T) {
	pods := []*corev1.Pod{readyPod("x", "1"), readyPod("y", "1")}
	take := func() (*ledger, *v1alpha1.BatchSandbox, *v1alpha1.BatchSandbox) {
		l, a, b := newLedger(), batchOf("a", 1, 1), batchOf("b", 2, 1)
		l.noteBatch(a)
		l.noteBatch(b)
		l.holdBack([]types.UID{a.UID, b.UID}, []corev1.Pod{*pods[0], *pods[1]})
		return l, a, b
	}
	free := func(l *ledger, want string) {
		t.Helper()
		var names []string
		for _, pod := range pods {
			if l.isAllocatable(pod) {
				names = append(names, pod.Name)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q can be given, not %q", got, want)
		}
	}
	l, a, b := take()
	free(l, "")
	l.writeRefused(a.UID, a.ResourceVersion)
	free(l, "")
	l.writeRefused(b.UID, b.ResourceVersion)
	free(l, "x y")

	l, a, b = take()
	late := b.DeepCopy()
	late.ResourceVersion = "11"
	late.SetAllocation(v1alpha1.Allocation{Pods: []string{"x"}})
	l.observe(late)
	free(l, "")
	l.writeRefused(a.UID, a.ResourceVersion)
	free(l, "y")
}

func batchOf(name string, second int64, replicas int32) *v1alpha1.BatchSandbox {
	return &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name),
			ResourceVersion: "10", CreationTimestamp: metav1.Unix(second, 0)},
		Spec: v1alpha1.BatchSandboxSpec{PoolRef: "p", Replicas: replicas},
	}
}

// TestOlderBatchesComeFirst: a batch that waits is not overtaken by one that was created later.
func TestOlderBatchesComeFirst(t *testing.T) {
	l := newLedger()
	old, young := batchOf("old", 1, 3), batchOf("young", 2, 1)
	if names, _ := reserve(l, old, nil); len(names) != 0 {
		t.Fatalf("got %v of nothing", names)
	}
	pods := []*corev1.Pod{readyPod("a", "1"), readyPod("b", "2"), readyPod("c", "3")}
	if names, _ := reserve(l, young, pods); len(names) != 0 {
		t.Fatalf("the younger one got %v, which the older one waits for", names)
	}
	now := time.Now()
	pool := types.NamespacedName{Namespace: "n", Name: "p"}
	if due, _ := l.due(pool, map[string]int{"": 3}, now,
		time.Second); len(due) != 1 || due[0].Name != "old" {
		t.Fatalf("due: %v", due)
	}
	pods = append(pods, readyPod("d", "4"))
	if names, _ := reserve(l, young, pods); len(names) != 1 {
		t.Fatalf("the younger one got %v of what is left over", names)
	}
	if names, _ := reserve(l, old, pods); len(names) != 3 {
		t.Fatalf("the older one got %v", names)
	}
}

// TestRequiredPods: a batch gets none but the pods that provide what it requires, and one that
// there is nothing for holds up no younger ones that other pods suit.
func TestRequiredPods(t *testing.T) {
	providing := func(name, provides string) *corev1.Pod {
		pod := readyPod(name, "1")
		pod.Labels[v1alpha1.LabelProvides] = provides
		return pod
	}
	requiring := func(name string, second int64, requires string) *v1alpha1.BatchSandbox {
		b := batchOf(name, second, 1)
		b.Annotations = map[string]string{v1alpha1.AnnotationRequires: requires}
		return b
	}
	l := newLedger()
	pods := []*corev1.Pod{readyPod("of an earlier controller", "1"), providing("old", "a"),
		providing("new", "b")}
	for _, test := range []struct {
		batch *v1alpha1.BatchSandbox
		want  string
	}{
		{requiring("none", 1, "c"), ""},
		{requiring("two", 2, "b"), "new"},
		{requiring("three", 3, "b"), ""},
		{requiring("four", 4, "a"), "old"},
		{requiring("any", 5, ""), "of an earlier controller"},
	} {
		names, _ := reserve(l, test.batch, pods)
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("batch %s got %q, not %q", test.batch.Name, got, test.want)
		}
	}
	due, _ := l.due(types.NamespacedName{Namespace: "n", Name: "p"},
		map[string]int{"a": 5, "b": 1}, time.Now(), time.Second)
	if len(due) != 1 || due[0].Name != "three" {
		t.Errorf("due: %v", due)
	}
}

// TestPartsWait: a batch that could have a part of what it lacks is woken a little later, and one
// that could have all at once.
func TestPartsWait(t *testing.T) {
	l := newLedger()
	l.markWaiting(batchOf("b", 1, 3))
	now := time.Now()
	pool := types.NamespacedName{Namespace: "n", Name: "p"}
	if due, again := l.due(pool, map[string]int{"": 2}, now,
		time.Second); len(due) != 0 || again != time.Second {
		t.Fatalf("due %v, again after %s", due, again)
	}
	if due, _ := l.due(pool, map[string]int{"": 3}, now, time.Second); len(due) != 1 {
		t.Fatal("all are there, and it is not woken")
	}
	if due, _ := l.due(pool, map[string]int{"": 2}, now.Add(time.Second), time.Second); len(due) != 1 {
		t.Fatal("the pool waits for ever")
	}
}

// TestOutdatedPodsAreNotGiven: what a cache shows that is behind the list with which the ledger
// began, or behind an own write, is not believed.
func TestOutdatedPodsAreNotGiven(t *testing.T) {
	l := newLedger()
	l.listVersion = "100"
	l.minVersions["listed"] = "90"
	for name, version := range map[string]string{"listed": "89", "gone before the list": "99"} {
		if names, _ := reserve(l, batchOf(name, 1, 1),
			[]*corev1.Pod{readyPod(name, version)}); len(names) != 0 {
			t.Errorf("%s at version %s was given", name, version)
		}
	}
	for name, version := range map[string]string{"listed": "90", "made after the list": "101"} {
		if names, _ := reserve(l, batchOf("for "+name, 1, 1),
			[]*corev1.Pod{readyPod(name, version)}); len(names) != 1 {
			t.Errorf("%s at version %s was not given", name, version)
		}
		l.batchDeleted(types.UID("for " + name))
	}
}

// TestDamagedAnnotation: what cannot be read still keeps every pod that it names from being given
// to another.
func TestDamagedAnnotation(t *testing.T) {
	l := newLedger()
	damaged := batchOf("damaged", 1, 2)
	damaged.Annotations = map[string]string{v1alpha1.AnnotationAllocation: `{"pods":["p-a","p-b"`}
	l.observe(damaged)
	if names, _ := reserve(l, batchOf("other", 2, 3),
		[]*corev1.Pod{readyPod("p-a", "1"), readyPod("p-b", "1"),
			readyPod("p-c", "1")}); len(names) != 1 || names[0] != "p-c" {
		t.Fatalf("given: %v", names)
	}
}

// TestLack: which numbers of a batch lack a pod, and are given one.
func TestLack(t *testing.T) {
	for name, test := range map[string]struct {
		pods      []string // of the allocation
		outcomes  string
		addresses []string
		phase     v1alpha1.Phase
		stop      string // the annotation, which is there
		want      string // the numbers' pods then; those that are given are new
	}{
		"none yet":              {want: "new new new new"},
		"a part":                {pods: []string{"a", "b"}, want: "a b new new"},
		"wanted again":          {pods: []string{"a", "", "c"}, want: "a new c new"},
		"one is given back":     {pods: []string{"a", "", "c", "d"}, outcomes: "-R-R", want: "a  c d"},
		"some have ended":       {pods: []string{"", "b"}, outcomes: "S-F", want: " b  new"},
		"a task has ended":      {pods: []string{"a"}, outcomes: "--sf", want: "a new"},
		"one was in the record": {addresses: []string{"", "10.1.2.3"}, want: "new  new new"},
		"stops":                 {pods: []string{"a"}, phase: v1alpha1.PhaseStopping, want: "a"},
		"has ended":             {pods: []string{"a"}, phase: v1alpha1.PhaseFailed, want: "a"},
		"is to stop":            {pods: []string{"a"}, stop: v1alpha1.ReasonUserDelete, want: "a"},
	} {
		b := batchOf("b", 1, 4)
		b.SetAllocation(v1alpha1.Allocation{Pods: test.pods})
		b.Annotations[v1alpha1.AnnotationStop] = test.stop // empty, it stops nothing
		b.Status.Outcomes, b.Status.Addresses = test.outcomes, test.addresses
		b.Status.Phase = test.phase
		n := missingPods(b)
		got := assign(b, test.pods, slices.Repeat([]string{"new"}, n))
		if text := strings.Join(got, " "); text != test.want || strings.Count(text, "new") != n {
			t.Errorf("%s: lacks %d, and has %q then, not %q", name, n, text, test.want)
		}
	}
}

// TestCheckRoom: the names of many pods alone may be more than the API server takes.
func TestCheckRoom(t *testing.T) {
	b := &v1alpha1.BatchSandbox{Spec: v1alpha1.BatchSandboxSpec{Replicas: 10000, PoolRef: "p"}}
	if err := checkRoom(b); err != nil {
		t.Errorf("10000 short names: %v", err)
	}
	b.Spec.PoolRef = strings.Repeat("p", 63)
	if err := checkRoom(b); !errors.Is(err, v1alpha1.ErrTooLarge) ||
		!strings.Contains(err.Error(), "10000 pods") {
		t.Errorf("10000 long names: %v", err)
	}
}

// reserve reserves among the given pods.
func reserve(l *ledger, batch *v1alpha1.BatchSandbox, pods []*corev1.Pod) ([]string, bool) {
	reserved, current, err := l.reserve(batch, "", func() ([]*corev1.Pod, error) { return pods, nil })
	if err != nil {
		panic(err) // the list has none
	}
	if reserved == nil {
		return nil, current
	}
	return reserved.pods, current
}

// TestPodsAreListedWhileTheLedgerIsLocked: between the list and the choice the watch could deliver
// the deletion of a pod of another batch, after which that pod cannot be distinguished from a
// waiting one.
func TestPodsAreListedWhileTheLedgerIsLocked(t *testing.T) {
	l := newLedger()
	_, _, err := l.reserve(batchOf("b", 1, 1), "", func() ([]*corev1.Pod, error) {
		if l.mu.TryLock() {
			l.mu.Unlock()
			t.Error("the watch can change the ledger while pods are listed")
		}
		return nil, errors.New("no list")
	})
	if err == nil {
		t.Error("the error of the list is lost")
	}
}

// TestHandovers: a handover is kept until no deletion that has not seen the finalizer can be under
// way, and longer while its batch is gone and its pods are not.
func TestHandovers(t *testing.T) {
	now := time.Now()
	key := types.NamespacedName{Namespace: "n", Name: "p"}
	poolWith := func(annotations map[string]string) []v1alpha1.Pool {
		return []v1alpha1.Pool{{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p",
			Annotations: annotations}}}
	}
	used, held := readyPod("p-used", "1"), readyPod("p-held", "1")
	marked := readyPod("p-marked", "1")
	marked.Annotations = map[string]string{AnnotationRecycling: "since"}
	l := newLedger()
	l.noteBatch(&v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b", UID: "there", ResourceVersion: "2",
			Annotations: map[string]string{v1alpha1.AnnotationAllocation: `{"pods":["p-held"]}`}},
		Spec: v1alpha1.BatchSandboxSpec{PoolRef: "p", Replicas: 1},
	})
	l.takeOver(poolWith(map[string]string{
		"other/annotation":                  "p-other",
		v1alpha1.AnnotationHandover + "a":   `{"batch":"gone","pods":["p-used","p-held","p-marked"]}`,
		v1alpha1.AnnotationHandover + "b":   `{"batch":"there","pods":["p-free","p-held"]}`,
		v1alpha1.AnnotationHandover + "bad": `{"batch":"there","pods":"p-edited"}`,
	}), []corev1.Pod{*used, *held, *marked}, now)
	if got := l.classify(marked); got != classRecycling {
		t.Errorf("a pod that was given back and marked is %v, not recycled", got)
	}
	for name, want := range map[string]bool{"p-used": false, "p-held": false, "p-free": true,
		"p-edited": false, "p-other": true} {
		if got := l.isAllocatable(readyPod(name, "1")); got != want {
			t.Errorf("pod %s can be given: %t", name, got)
		}
	}
	if !l.handingOver("gone") || !l.handingOver("there") || l.handingOver("another") {
		t.Error("the ledger does not know the handovers")
	}
	pods := []*corev1.Pod{used, held}
	if over := l.takeHandovers(key, pods, now.Add(handoverFor-time.Second)); len(over) > 0 {
		t.Errorf("too early: %v", over)
	}
	over := l.takeHandovers(key, pods, now.Add(handoverFor))
	if len(over) != 2 || over[v1alpha1.AnnotationHandover+"a"].Batch != "" {
		t.Errorf("while the pod is there: %v", over)
	}
	l.podDeleted(used)
	if over := l.takeHandovers(key, pods[1:], now.Add(handoverFor)); len(over) != 1 {
		t.Errorf("after the pod is gone: %v", over)
	}
}
