package batch_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// execd answers like the freezing part of one.
type execd struct {
	mu     sync.Mutex
	frozen bool
	fails  int
	phase  func() v1alpha1.Phase // that is on record
	phases map[string]bool       // requests, and the phases in which they came
}

// serve answers at an address until the test ends.
func (e *execd) serve(p *place, address string) {
	p.Helper()
	serveExecd(p, address, e)
}

// serveExecd has a handler answer on execd's port of an address until the test ends.
func serveExecd(p *place, address string, handler http.Handler) {
	p.Helper()
	listener, err := new(net.ListenConfig).Listen(p.Context(), "tcp",
		fmt.Sprintf("%s:%d", address, v1alpha1.PortExecd))
	p.must(err)
	server := &http.Server{Handler: handler}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	p.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
}

func (e *execd) isFrozen() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.frozen
}

func (e *execd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != nil {
		e.phases[fmt.Sprintf("%s in %s", r.URL.Path, e.phase())] = true
	}
	switch {
	case r.Header.Get(v1alpha1.HeaderExecdToken) != "secret":
		http.Error(w, "no token", http.StatusUnauthorized)
	case e.fails > 0:
		e.fails--
		http.Error(w, `{"code": "RUNTIME_ERROR", "message": "not now\u001b[31m"}`,
			http.StatusInternalServerError)
	default:
		e.frozen = r.URL.Path == "/freeze"
	}
}

func TestPause(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const address = "127.99.44.7" // an address of this test alone
	daemon := &execd{fails: 1, phases: make(map[string]bool), phase: func() v1alpha1.Phase {
		b := new(v1alpha1.BatchSandbox)
		_ = p.Get(context.Background(), client.ObjectKey{Namespace: p.namespace, Name: "b"}, b)
		return b.Status.Phase
	}}
	daemon.serve(p, address)

	b := p.batch("b", 1)
	b.Spec.Template.Annotations["address"] = address
	b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
		Value: "secret"}}
	b.Spec.Pause = true // from the beginning: it is paused once it runs
	p.must(p.Create(t.Context(), b))
	b = p.reaches("b", v1alpha1.PhasePaused)
	if want := "Pending Running Pausing Paused"; history(b) != want || !daemon.frozen {
		t.Errorf("history %q, frozen %v", history(b), daemon.frozen)
	}
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = false })
	b = p.reaches("b", v1alpha1.PhaseRunning)
	if want := "Pending Running Pausing Paused Resuming Running"; history(b) != want ||
		daemon.frozen || b.Status.Reason != v1alpha1.ReasonContainerRunning {
		t.Errorf("history %q, frozen %v, reason %s", history(b), daemon.frozen, b.Status.Reason)
	}
	// What is done to the processes is on record before.
	if want := map[string]bool{"/freeze in Pausing": true, "/thaw in Resuming": true}; !maps.Equal(
		daemon.phases, want) {
		t.Errorf("asked for were %v, want %v", daemon.phases, want)
	}
}

// TestPauseRefused: a sandbox has failed whose execd answers for long that it does not freeze. One
// whose execd does not answer is waited for.
func TestPauseRefused(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const refusing, freezing, silent = "127.99.44.9", "127.99.44.10", "127.99.44.11"
	frozen := new(execd)
	frozen.serve(p, freezing)
	(&execd{fails: 1 << 30}).serve(p, refusing)
	for name, addresses := range map[string][]string{
		"one": {refusing}, "two": {refusing, freezing}, "none": {silent},
	} {
		b := p.batch(name, int32(len(addresses)))
		for _, address := range addresses {
			b.Spec.ShardPatches = append(b.Spec.ShardPatches, runtime.RawExtension{Raw: fmt.Appendf(
				nil, `{"metadata":{"annotations":{"address":%q}}}`, address)})
		}
		b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
			Value: "secret"}}
		b.Spec.Pause = true
		p.must(p.Create(t.Context(), b))
	}
	for name, answer := range map[string]string{
		"one": "500 Internal Server Error: not now", "two": "not now", "none": "does not answer",
	} {
		p.has(name, "pausing", func(b *v1alpha1.BatchSandbox) bool {
			return b.Status.Phase == v1alpha1.PhasePausing &&
				strings.Contains(b.Status.Message, answer)
		})
	}
	p.later(time.Minute, "none", "one", "two")
	b := p.reaches("one", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonContainerError ||
		!strings.Contains(b.Status.Message, "not now?[31m") || len(p.pods("one")) > 0 {
		t.Errorf("%+v, pods %q", b.Status, p.pods("one"))
	}
	b = p.reaches("two", v1alpha1.PhasePaused)
	if b.Status.Outcomes != "F" || !frozen.isFrozen() {
		t.Errorf("frozen %v, %+v", frozen.isFrozen(), b.Status)
	}
	b = p.has("none", "there", func(*v1alpha1.BatchSandbox) bool { return true })
	if b.Status.Phase != v1alpha1.PhasePausing || b.Status.Outcomes != "" {
		t.Errorf("without an answer it is %+v", b.Status)
	}
}

// TestResumeWithMore: pods that come with a resume have not been frozen, and are not waited for.
func TestResumeWithMore(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const address = "127.99.44.12"
	daemon := new(execd)
	daemon.serve(p, address)
	b := p.batch("b", 1)
	b.Spec.Template.Annotations["address"] = address
	b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
		Value: "secret"}}
	b.Spec.Pause = true
	p.must(p.Create(t.Context(), b))
	p.reaches("b", v1alpha1.PhasePaused)
	p.change("b", func(b *v1alpha1.BatchSandbox) {
		b.Spec.Pause, b.Spec.Replicas = false, 2
		b.Spec.ShardPatches = []runtime.RawExtension{{Raw: []byte(`{}`)},
			{Raw: []byte(`{"metadata":{"annotations":{"play":"none"}}}`)}}
	})
	b = p.reaches("b", v1alpha1.PhaseRunning)
	if b.Status.Ready != 1 || daemon.isFrozen() {
		t.Errorf("frozen %v, %+v", daemon.isFrozen(), b.Status)
	}
}

// TestPauseWaitsForPods: a batch is not Paused while one of its sandboxes is still to get a pod,
// which would run.
func TestPauseWaitsForPods(t *testing.T) {
	p := newPlace(t)
	pools := new(heap)
	p.control(pools, nil)
	daemons := []*execd{{}, {}}
	give := func(number int) {
		address := fmt.Sprintf("127.99.45.%d", number+1)
		daemons[number].serve(p, address)
		pod := warmPod(p.namespace, fmt.Sprintf("warm-%d", number))
		pod.Annotations = map[string]string{"address": address}
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
			Value: "secret"}}
		p.must(p.Create(t.Context(), pod))
		pools.give(p, "b", pod.Name)
	}
	b := p.batch("b", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "warm"
	p.must(p.Create(t.Context(), b))
	give(0)
	p.has("b", "running", running(1))
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 })
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = true })
	p.has("b", "waiting for a pod", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Phase == v1alpha1.PhasePausing &&
			b.Status.Message == "sandbox 1 has no pod yet"
	})
	give(1)
	p.reaches("b", v1alpha1.PhasePaused)
	for number, daemon := range daemons {
		if !daemon.isFrozen() {
			t.Errorf("the batch is Paused and sandbox %d runs", number)
		}
	}
}

// TestPauseWithoutAnAnswer: execds that hold their requests hold up no worker of the controller.
func TestPauseWithoutAnAnswer(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const address, batches, workers = "127.99.44.8", 80, 64
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp",
		fmt.Sprintf("%s:%d", address, v1alpha1.PortExecd))
	p.must(err)
	var held atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		held.Add(1)
		<-r.Context().Done()
		held.Add(-1)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Close()
	for i := range batches {
		b := p.batch(fmt.Sprintf("b%d", i), 1)
		b.Spec.Template.Annotations["address"] = address
		p.must(p.Create(t.Context(), b))
	}
	for i := range batches {
		p.has(fmt.Sprintf("b%d", i), "running", running(1))
	}
	for i := range batches {
		p.change(fmt.Sprintf("b%d", i), func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = true })
	}
	p.eventually(func() error {
		if n := held.Load(); n <= workers { // each asks again a second after its time was up
			return fmt.Errorf("%d execds hold a request at once, want more than there are workers",
				n)
		}
		return nil
	})
	// The other way while that goes on: a freeze is not overtaken.
	p.change("b0", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = false })
	p.has("b0", "resuming",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Phase == v1alpha1.PhaseResuming })
	p.must(p.Delete(t.Context(),
		p.has("b1", "there", func(*v1alpha1.BatchSandbox) bool { return true })))
	p.isGone("b1")
}
