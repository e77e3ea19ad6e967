package cluster_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/lifecycle"
)

// node plays the kubelet with the log of every pod, and a watch that brings nothing after the list.
type node struct {
	asked atomic.Pointer[http.Request] // the last request for a log
	log   func(w io.Writer, r *http.Request)
	stale bool
}

func (n *node) replica(t *testing.T, s *space) *cluster.Cluster {
	t.Helper()
	return s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/log"):
			n.asked.Store(r)
			w.WriteHeader(http.StatusOK)
			n.log(flushing{w}, r)
		case n.stale && r.URL.Query().Has("watch"):
			<-r.Context().Done()
		default:
			pass.ServeHTTP(w, r)
		}
	}))
}

type flushing struct{ http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// fromPool creates a sandbox that has a pod of a Pool.
func (s *space) fromPool(t *testing.T, c *cluster.Cluster, since *metav1.Time) string {
	t.Helper()
	share := true
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "warm"}}
	pool.Spec.CapacitySpec.PoolMax = 1
	pool.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{ShareProcessNamespace: &share, Containers: []corev1.Container{
		{Name: "task-executor", Image: "x", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE"}}}},
		{Name: "main", Image: "registry.example/team/tool:1"},
	}}}
	must(t, s.api.Create(t.Context(), pool))
	spec := sampleSpec()
	spec.Resources, spec.Extensions = nil, []byte(`{"poolRef": "warm"}`)
	id := create(t, c, spec).ID
	s.allocate(t, id, v1alpha1.Allocation{Pods: []string{"warm-1"}, Since: since})
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	return id
}

// allocate writes which pod a sandbox has, as the controller does.
func (s *space) allocate(t *testing.T, id string, allocation v1alpha1.Allocation) {
	t.Helper()
	b := s.batch(t, id)
	b.SetAllocation(allocation)
	must(t, s.api.Update(t.Context(), b))
}

// TestLogOfAPoolBegins: a pod that was restarted for another sandbox has the log of the first one still, of which the second shows nothing.
func TestLogOfAPoolBegins(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	n := &node{log: func(w io.Writer, _ *http.Request) { _, _ = io.WriteString(w, "mine\n") }}
	c := n.replica(t, s)
	since := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	id := s.fromPool(t, c, &metav1.Time{Time: since})
	awaitState(t, c, id, lifecycle.StateRunning)
	for name, tc := range map[string]struct{ asked, want time.Time }{
		"no time":        {time.Time{}, since},
		"before the pod": {since.Add(-time.Minute), since},
		"later":          {since.Add(time.Minute), since.Add(time.Minute)},
	} {
		var out bytes.Buffer
		must(t, c.Logs(t.Context(), id, lifecycle.LogOptions{Since: tc.asked}, func() io.Writer { return &out }))
		query := n.asked.Load().URL.Query()
		if got := query.Get("sinceTime"); got != tc.want.Format(time.RFC3339) || query.Get("container") != "task-executor" || out.String() != "mine\n" {
			t.Errorf("%s: asked for the log of %q since %q, want %v; it is %q", name, query.Get("container"), got, tc.want, &out)
		}
	}
	s.allocate(t, id, v1alpha1.Allocation{Pods: []string{"warm-1"}}) // of an earlier version
	refuses(t, c.Logs(t.Context(), id, lifecycle.LogOptions{}, nil), lifecycle.KindConflict, "log", "record")
}

// TestLogOfAPoolEnds: what a pod prints after it was taken from a sandbox is not shown to those who follow the sandbox's log, also where the
// view is behind.
func TestLogOfAPoolEnds(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	released := make(chan struct{})
	n := &node{stale: true, log: func(w io.Writer, r *http.Request) {
		_, _ = io.WriteString(w, "mine\n")
		select {
		case <-released:
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, "my last words\n")
		select {
		case <-time.After(v1alpha1.ReusePause + time.Second):
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, "another's\n")
		<-r.Context().Done()
	}}
	first := s.replica(t)
	since := metav1.Now()
	id := s.fromPool(t, first, &since)
	awaitState(t, first, id, lifecycle.StateRunning)
	c := n.replica(t, s)
	out := new(written)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Logs(t.Context(), id, lifecycle.LogOptions{Follow: true}, func() io.Writer { return out })
	}()
	// Idle, the log stays open for longer than one answer is good for.
	time.Sleep(v1alpha1.ReusePause + time.Second)
	eventually(t, "the log is followed", func() bool { return out.String() == "mine\n" })
	close(released)
	s.allocate(t, id, v1alpha1.Allocation{Pods: []string{""}, Since: &since})
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(patience):
		t.Errorf("the log goes on")
	}
	if out.String() != "mine\nmy last words\n" {
		t.Errorf("the log has %q", out)
	}
	refuses(t, c.Logs(t.Context(), id, lifecycle.LogOptions{}, nil), lifecycle.KindConflict, "lost")
}

// written is a buffer that is written to while it is read.
type written struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
