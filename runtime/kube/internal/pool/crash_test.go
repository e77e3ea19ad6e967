package pool_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// owners follows every version of every batch of a namespace, and records every batch that a pod
// ever belonged to.
type owners struct {
	mu    sync.Mutex
	of    map[string]string
	twice []string
}

func follow(t *testing.T, namespace string) *owners {
	t.Helper()
	watching, err := client.NewWithWatch(access, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watch, err := watching.Watch(ctx, &v1alpha1.BatchSandboxList{}, client.InNamespace(namespace))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	o := &owners{of: make(map[string]string)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watch.ResultChan() {
			if batch, ok := event.Object.(*v1alpha1.BatchSandbox); ok {
				o.see(batch)
			}
		}
	}()
	t.Cleanup(func() {
		watch.Stop()
		cancel()
		wait.For(t, "the end of the watch", ended)
	})
	return o
}

func (o *owners) see(batch *v1alpha1.BatchSandbox) {
	allocation, err := batch.Allocation()
	if err != nil {
		panic(err) // no other goroutine writes it
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pod := range allocation.Pods {
		if owner := o.of[pod]; pod != "" && owner != "" && owner != batch.Name {
			o.twice = append(o.twice,
				fmt.Sprintf("%s was %s's and is %s's", pod, owner, batch.Name))
		}
		o.of[pod] = batch.Name
	}
}

func (o *owners) check(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, text := range o.twice {
		t.Error(text)
	}
}

// copyOf returns a request that remains valid after its sender has returned.
func copyOf(request *http.Request) *http.Request {
	late := request.Clone(context.Background())
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			panic(err) // it is in memory
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		late.Body = io.NopCloser(bytes.NewReader(body))
	}
	return late
}

// trouble is a wire that drops requests and answers, and delays requests.
func trouble(
	late *sync.WaitGroup, numbers *rand.Rand) func(*http.Request, func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	return func(request *http.Request, send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
		discard := func(request *http.Request) {
			if response, err := send(request); err == nil {
				response.Body.Close()
			}
		}
		switch numbers.IntN(12) {
		case 0: // it never arrives
			return nil, errCut
		case 1: // the answer never arrives
			discard(copyOf(request))
			return nil, errCut
		case 2: // it arrives when its sender waits no longer
			again, pause := copyOf(request), time.Duration(numbers.IntN(500))*time.Millisecond
			late.Add(1)
			time.AfterFunc(pause, func() {
				defer late.Done()
				discard(again)
			})
			return nil, errCut
		}
		return send(request)
	}
}

// TestCrashes: many batches come and go, requests and answers get lost or arrive late, and the
// controller is killed again and again. No pod is ever in two allocations, also not one after the
// other, none is orphaned, and every batch is served.
func TestCrashes(t *testing.T) {
	numbers := random.New(t)
	ns := namespace(t)
	seen := follow(t, ns)
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 5, BufferMax: 10, PoolMax: 40})
	var late sync.WaitGroup
	t.Cleanup(late.Wait)

	const batches = 200
	ended := make(chan struct{})
	lasting := make(map[string]int32)
	go func() { // creations and deletions go on, whatever the controller does
		defer close(ended)
		running := 0
		for i := range batches {
			batch := &v1alpha1.BatchSandbox{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("b%03d", i)},
				Spec:       v1alpha1.BatchSandboxSpec{PoolRef: "p", Replicas: 1 + numbers.Int32N(4)},
			}
			if i%2 == 0 { // as the lifecycle service does; other users may not
				batch.Finalizers = []string{v1alpha1.Finalizer}
			}
			if err := admin.Create(context.Background(), batch); err != nil {
				t.Error(err)
				return
			}
			if i >= batches-8 {
				lasting[batch.Name] = batch.Spec.Replicas
				continue
			}
			if running++; running >= 8 {
				victim := &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
					Name: fmt.Sprintf("b%03d", i-7)}}
				deadline := wait.Deadline()
				for numbers.IntN(4) > 0 { // most have been served when they go, some have not
					if err := admin.Get(context.Background(), client.ObjectKeyFromObject(victim),
						victim); err != nil {
						t.Error(err)
						return
					}
					if a, err := victim.Allocation(); err == nil &&
						len(a.Pods) == int(victim.Spec.Replicas) {
						break
					}
					if time.Now().After(deadline) {
						t.Errorf("batch %s is not served", victim.Name)
						return
					}
					<-time.After(20 * time.Millisecond)
				}
				if err := admin.Delete(context.Background(), victim); err != nil {
					t.Error(err)
					return
				}
			}
		}
		for i := batches - 8 - 7; i < batches-8; i++ {
			if err := admin.Delete(context.Background(),
				&v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
					Name: fmt.Sprintf("b%03d", i)}}); err != nil {
				t.Error(err)
			}
		}
	}()
	kills := 0
	for done := false; !done; kills++ {
		c := start(t, ns, pool.Options{})
		c.set(trouble(&late, numbers))
		for life := numbers.IntN(60); !done && c.total() <= life; {
			// it has come to do something, however slow the machine is
			select {
			case <-ended:
				done = true
			case <-time.After(10 * time.Millisecond):
			}
		}
		c.kill()
	}
	t.Logf("%d batches, %d controllers", batches, kills)
	start(t, ns, pool.Options{})
	for name, replicas := range lasting {
		served(t, &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}},
			int(replicas))
	}
	late.Wait()
	eventually(t, func() string {
		var list v1alpha1.BatchSandboxList
		if err := admin.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != len(lasting) {
			return fmt.Sprintf("there are %d batches, not %d", len(list.Items), len(lasting))
		}
		pods := podsIn(t, ns)
		allocated := make(map[string]bool)
		for i := range list.Items {
			for _, name := range podsOf(t, &list.Items[i]) {
				if allocated[name] {
					t.Errorf("pod %s is in two allocations", name)
				}
				allocated[name] = true
			}
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		var orphans []string
		for name := range pods {
			if owner := seen.of[name]; owner != "" && !allocated[name] {
				orphans = append(orphans, name+" of "+owner)
			}
		}
		if len(orphans) > 0 {
			return "pods of batches that are gone: " + strings.Join(orphans, ", ")
		}
		s := get(t, p).Status
		if waiting := len(pods) - len(allocated); waiting < 5 || waiting > 10 ||
			int(s.Total) != len(pods) {
			return fmt.Sprintf("%d pods wait, of %d; the status is %+v", waiting, len(pods), s)
		}
		return ""
	})
	seen.check(t)
}

// TestRaceForFewPods: many batches, one pod. Each gets one in its turn, in the order of creation.
func TestRaceForFewPods(t *testing.T) {
	ns := namespace(t)
	seen := follow(t, ns)
	c := start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{PoolMax: 2})
	first := makeBatch(t, ns, "first", 2)
	served(t, first, 2)
	var waiting []*v1alpha1.BatchSandbox
	for i := range 10 {
		waiting = append(waiting, makeBatch(t, ns, fmt.Sprintf("w%d", i), 1))
	}
	settled(t, p, 2, 2, 0)
	eventually(t, func() string {
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		if len(c.asked) < 1+len(waiting) {
			return fmt.Sprintf("only %d batches have asked", len(c.asked))
		}
		return ""
	})
	remove(t, first)
	for len(waiting) > 0 { // the two oldest are served; when both go, the next two are
		n := min(len(waiting), 2)
		for _, batch := range waiting[:n] {
			served(t, batch, 1)
		}
		for _, batch := range waiting[n:] {
			if names := podsOf(t, batch); len(names) > 0 {
				t.Fatalf("%s has %v before its turn", batch.Name, names)
			}
		}
		for _, batch := range waiting[:n] {
			remove(t, batch)
		}
		waiting = waiting[n:]
	}
	seen.check(t)
}

// TestLateWriteOfAnEarlierLeader: a controller exits while its allocation is under way. The next
// one gives the same pods to another batch. When the old write arrives at last, it is refused.
func TestLateWriteOfAnEarlierLeader(t *testing.T) {
	ns := namespace(t)
	seen := follow(t, ns)
	old := start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{PoolMin: 2, BufferMax: 2, PoolMax: 2})
	settled(t, p, 2, 0, 2)
	held := make(chan func() int, 1)
	old.set(
		func(request *http.Request,
			send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
			if !strings.Contains(request.URL.Path, "/batchsandboxes/") {
				return send(request)
			}
			late := copyOf(request)
			select {
			case held <- func() int {
				response, err := send(late)
				if err != nil {
					return 0
				}
				response.Body.Close()
				return response.StatusCode
			}:
			default:
			}
			<-request.Context().Done()
			return nil, request.Context().Err()
		})
	loser := makeBatch(t, ns, "loser", 2)
	var arrive func() int
	select {
	case arrive = <-held:
	case <-time.After(wait.Patience()):
		t.Fatal("no allocation was written")
	}
	old.kill()
	winner := makeBatch(t, ns, "winner", 2)
	start(t, ns, pool.Options{}, loser.Name) // no controller reconciles the loser
	served(t, winner, 2)
	if code := arrive(); code != http.StatusConflict {
		t.Errorf("the late write was answered with %d, not %d", code, http.StatusConflict)
	}
	seen.check(t)
}

// TestTakeoverOfABatchThatCannotBeChanged: a controller takes over, and the API server refuses
// every change of one batch that lacks pods. Others are served, also of its Pool, but not with pods
// that an earlier leader may still give to that batch.
func TestTakeoverOfABatchThatCannotBeChanged(t *testing.T) {
	ns := namespace(t)
	seen := follow(t, ns)
	first := start(t, ns, pool.Options{})
	p := makePool(t, ns, v1alpha1.CapacitySpec{PoolMin: 3, BufferMax: 3, PoolMax: 6})
	settled(t, p, 3, 0, 3)
	first.kill()
	old := podsIn(t, ns)
	stuck := makeBatch(t, ns, "stuck", 2) // which may get any of them
	makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 2},
		func(p *v1alpha1.Pool) { p.Name = "q" })
	elsewhere := &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "elsewhere"},
		Spec:       v1alpha1.BatchSandboxSpec{Replicas: 1, PoolRef: "q"},
	}
	if err := admin.Create(t.Context(), elsewhere); err != nil {
		t.Fatal(err)
	}

	refusing := new(wire)
	refusing.set(func(request *http.Request,
		send func(*http.Request) (*http.Response, error)) (*http.Response, error) {
		if !strings.HasSuffix(request.URL.Path, "/batchsandboxes/stuck") {
			return send(request)
		}
		status := `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":500}`
		return &http.Response{StatusCode: http.StatusInternalServerError, Request: request,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   io.NopCloser(strings.NewReader(status))}, nil
	})
	startOver(t, refusing, ns, pool.Options{})
	served(t, elsewhere, 1)
	young := makeBatch(t, ns, "young", 1)
	if name := served(t, young, 1)[0]; old[name] != nil {
		t.Errorf("the pod %s was given", name)
	}
	refusing.set(nil)
	served(t, stuck, 2)
	eventually(t, func() string { // what was held back is free
		if s := get(t, p).Status; s.Allocated != 3 || s.Total != s.Allocated+s.Available {
			return fmt.Sprintf("the pool has the status %+v", s)
		}
		return ""
	})
	seen.check(t)
}

// lock is a resourcelock whose answers a test decides.
type lock struct {
	resourcelock.Interface
	err error
}

func (l *lock) Identity() string { return "me" }
func (l *lock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	return l.err
}
func (l *lock) Create(context.Context, resourcelock.LeaderElectionRecord) error { return l.err }

// TestLease: a process takes itself for the leader as long as its last renewal that was answered
// allows.
func TestLease(t *testing.T) {
	ctx := t.Context()
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
	answers := &lock{err: errCut}
	lease := pool.NewLease(answers, time.Hour)
	if lease.Held() {
		t.Error("held before anything was asked for")
	}
	if lease.Create(ctx, mine) == nil || lease.Held() {
		t.Error("held after a refusal")
	}
	answers.err = nil
	if lease.Create(ctx, mine) != nil || !lease.Held() {
		t.Error("not held after it was made")
	}
	answers.err = errCut
	if lease.Update(ctx, mine) == nil || !lease.Held() {
		t.Error("not held any more, long before its end")
	}
	if lease.Update(ctx, resourcelock.LeaderElectionRecord{}) == nil || lease.Held() {
		t.Error("held after it was given up")
	}
	answers.err = nil
	short := pool.NewLease(answers, 0)
	if short.Update(ctx, mine) != nil || short.Held() {
		t.Error("held after its end")
	}
	if !(*pool.Lease)(nil).Held() {
		t.Error("without an election another controller leads")
	}
}
