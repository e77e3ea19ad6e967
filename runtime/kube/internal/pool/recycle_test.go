package pool_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

func restarting(p *v1alpha1.Pool) {
	withExecutor(p)
	p.Spec.RecycleStrategy = v1alpha1.RecycleRestart
}

// executor answers at the address of every pod's task-executor.
func executor(t *testing.T, answer http.HandlerFunc) *pool.Executor {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return &pool.Executor{HTTP: &http.Client{Timeout: wait.Patience(), Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != "127.0.0.1:5758" {
				return nil, fmt.Errorf("%s is not where a task-executor listens", address)
			}
			return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
		},
	}}}
}

// TestRestart: a pod that was used is given again, and not before its container is another one and
// ready.
func TestRestart(t *testing.T) {
	ns := namespace(t)
	var resets atomic.Int32
	start(t, ns, pool.Options{Reset: executor(t,
		func(w http.ResponseWriter, request *http.Request) {
			if request.Method != http.MethodPost || request.URL.Path != "/reset" {
				http.Error(w, "there is no such thing", http.StatusNotFound)
				return
			}
			resets.Add(1)
			fmt.Fprint(w, "{}")
		}), RecycleTimeout: time.Hour})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMin: 1, PoolMax: 1},
		restarting)
	settled(t, p, 1, 0, 1)
	first := makeBatch(t, ns, "first", 1)
	used := served(t, first, 1)
	allocation, err := first.Allocation()
	if err != nil {
		t.Fatal(err)
	}
	began := podsIn(t, ns)[used[0]].Status.ContainerStatuses[0].State.Running.StartedAt
	if since := allocation.Since; since == nil || !since.Equal(&began) {
		t.Errorf("the log is the first batch's since %v, and the container was started at %v", since, began)
	}
	remove(t, first)
	second := makeBatch(t, ns, "second", 1)
	eventually(t, func() string {
		if resets.Load() == 0 {
			return "the pod is not reset"
		}
		return ""
	})
	if names := podsOf(t, second); len(names) > 0 {
		t.Fatalf("%v was given before it was restarted", names)
	}
	pod := podsIn(t, ns)[used[0]]
	if pod == nil || pod.Annotations[pool.AnnotationRecycling] == "" {
		t.Fatalf("the used pod is not marked: %v", pod)
	}
	back := time.Now()
	if err := report(t.Context(), pod, 2); err != nil { // as the kubelet does
		t.Fatal(err)
	}
	if again := served(t, second, 1); again[0] != used[0] {
		t.Errorf("the batch has %s, and %s was restarted for it", again[0], used[0])
	}
	if after := time.Since(back); after < v1alpha1.ReusePause {
		t.Errorf("the pod was given %v after it was ready again", after)
	}
	if allocation, err = get(t, second).Allocation(); err != nil {
		t.Fatal(err)
	}
	// All of the second in which the container was started may have output of the first batch.
	if since := allocation.Since; since == nil || since.Time.Before(back) || time.Now().Before(since.Time) {
		t.Errorf("the log is the second batch's since %v, and the container was started at %v", since, back)
	}
	if _, marked := podsIn(t, ns)[used[0]].Annotations[pool.AnnotationRecycling]; marked {
		t.Error("an allocated pod is still marked")
	}
	if n := resets.Load(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// TestRestartOfAContainerThatEnded: a pod whose container is another one already, because it ended
// by itself, is given only after a reset as well: its tasks go on until then.
func TestRestartOfAContainerThatEnded(t *testing.T) {
	ns := namespace(t)
	asked, ended := make(chan struct{}, 1), make(chan struct{})
	var tries, resets atomic.Int32
	start(t, ns, pool.Options{Reset: executor(t, func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) == 1 {
			asked <- struct{}{}
			select {
			case <-ended:
			case <-r.Context().Done():
			}
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		resets.Add(1)
		fmt.Fprint(w, "{}")
	}), RecycleTimeout: time.Hour})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMin: 1, PoolMax: 1},
		restarting)
	settled(t, p, 1, 0, 1)
	first := makeBatch(t, ns, "first", 1)
	used := served(t, first, 1)
	remove(t, first)
	second := makeBatch(t, ns, "second", 1)
	select {
	case <-asked:
	case <-time.After(wait.Patience()):
		t.Fatal("the pod is not reset")
	}
	if err := report(t.Context(), podsIn(t, ns)[used[0]], 2); err != nil {
		t.Fatal(err)
	}
	close(ended)
	eventually(t, func() string {
		names := podsOf(t, second)
		switch {
		case resets.Load() > 0:
			return ""
		case len(names) > 0:
			t.Fatalf("%q was given, and not reset", names)
		}
		return "the pod is not reset"
	})
}

// TestRestartSurvivesACrash: the controller exits after the pod was marked; the next one resets it,
// and gives it to no batch before.
func TestRestartSurvivesACrash(t *testing.T) {
	ns := namespace(t)
	asked := make(chan struct{}, 100)
	dying := start(t, ns,
		pool.Options{Reset: executor(t, func(w http.ResponseWriter, request *http.Request) {
			asked <- struct{}{}
			<-request.Context().Done() // no answer
		}), RecycleTimeout: time.Hour})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMin: 1, PoolMax: 1},
		restarting)
	settled(t, p, 1, 0, 1)
	first := makeBatch(t, ns, "first", 1)
	used := served(t, first, 1)
	remove(t, first)
	select {
	case <-asked:
	case <-time.After(wait.Patience()):
		t.Fatal("the pod is not reset")
	}
	eventually(t, func() string {
		if exists(t, first) {
			return "the batch is not released"
		}
		return ""
	})
	dying.kill()

	second := makeBatch(t, ns, "second", 1)
	start(t, ns, pool.Options{Reset: executor(t, func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		fmt.Fprint(w, "{}")
	}), RecycleTimeout: time.Hour})
	select {
	case <-asked:
	case <-time.After(wait.Patience()):
		t.Fatal("the pod is not reset after the crash")
	}
	if names := podsOf(t, second); len(names) > 0 {
		t.Fatalf("%v was given before it was restarted", names)
	}
	if err := report(t.Context(), podsIn(t, ns)[used[0]], 2); err != nil {
		t.Fatal(err)
	}
	if again := served(t, second, 1); again[0] != used[0] {
		t.Errorf("the batch has %s, and %s was restarted for it", again[0], used[0])
	}
}

// TestRestartFails: a pod that does not come back is deleted, and an event says why.
func TestRestartFails(t *testing.T) {
	ns := namespace(t)
	refuses := executor(t,
		func(w http.ResponseWriter,
			_ *http.Request) {
			http.Error(w, "I am busy", http.StatusConflict)
		})
	start(t, ns, pool.Options{Reset: refuses, RecycleTimeout: time.Second})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 1}, restarting)
	settled(t, p, 1, 0, 1)
	first := makeBatch(t, ns, "first", 1)
	used := served(t, first, 1)
	remove(t, first)
	eventually(t, func() string {
		if podsIn(t, ns)[used[0]] != nil {
			return "the pod is still there"
		}
		return ""
	})
	awaitEvent(t, ns, "RecycleFailed")
	settled(t, p, 1, 0, 1)
}

// TestRestartWithoutExecutor: a pod that cannot be reset is deleted at once.
func TestRestartWithoutExecutor(t *testing.T) {
	ns := namespace(t)
	start(t, ns, pool.Options{Reset: never{}})
	p := makePool(t, ns, v1alpha1.CapacitySpec{BufferMin: 1, BufferMax: 1, PoolMax: 1},
		func(p *v1alpha1.Pool) {
			p.Spec.RecycleStrategy = v1alpha1.RecycleRestart
		})
	settled(t, p, 1, 0, 1)
	first := makeBatch(t, ns, "first", 1)
	used := types.NamespacedName{Namespace: ns, Name: served(t, first, 1)[0]}
	remove(t, first)
	eventually(t, func() string {
		if podsIn(t, ns)[used.Name] != nil {
			return "the pod is still there"
		}
		return ""
	})
	awaitEvent(t, ns, "NotRestarted")
}

// never is a Resetter that must not be called.
type never struct{}

func (never) Reset(_ context.Context, pod *corev1.Pod) error {
	return errors.New("no resetter for " + pod.Name)
}
