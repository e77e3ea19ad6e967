package pool_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

var (
	access *rest.Config // an administrator's
	scheme = runtime.NewScheme()
	admin  client.Client
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Mode: cluster.API})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := c.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err := prepare(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if left := cluster.Goroutines(); left != "" {
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
			return 1
		}
	}
	return code
}

func prepare(ctx context.Context, c *cluster.Cluster) error {
	if err := c.Define(ctx, "../../config/crd"); err != nil {
		return err
	}
	var err error
	if access, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	access.QPS = -1
	if err := errors.Join(clientgoscheme.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	admin, err = client.New(access, client.Options{Scheme: scheme})
	return err
}

// instance is a controller that runs.
type instance struct {
	*wire
	*keeper
	cancel  context.CancelFunc
	started <-chan struct{}
	ended   chan struct{}
}

// kill ends a controller as SIGKILL would: nothing that it does from now on reaches the API server.
// What is on its way stays so. It waits until the controller has started: a manager that is
// cancelled before may never end (controller-runtime v0.25.2 then waits in a busy loop for watches
// that have ended).
func (i *instance) kill() {
	select {
	case <-i.started:
	case <-i.ended:
	}
	i.wire.mu.Lock()
	i.closed = true
	i.wire.mu.Unlock()
	i.cancel()
	<-i.ended
}

// start runs a controller of pools, with a batch controller that does nothing but allocate and
// release, and not even that for the batches that it is to ignore.
func start(t *testing.T, namespace string, options pool.Options, ignored ...string) *instance {
	t.Helper()
	return startOver(t, new(wire), namespace, options, ignored...)
}

// startOver is start with a wire of the caller's.
func startOver(t *testing.T, over *wire, namespace string, options pool.Options,
	ignored ...string) *instance {
	t.Helper()
	i := &instance{wire: over, ended: make(chan struct{})}
	own := rest.CopyConfig(access)
	own.Wrap(func(next http.RoundTripper) http.RoundTripper {
		i.next = next
		return i.wire
	})
	none := time.Duration(0)
	unchecked := true
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		GracefulShutdownTimeout: &none,
		Controller:              config.Controller{SkipNameValidation: &unchecked},
	})
	if err != nil {
		t.Fatal(err)
	}
	batches := &keeper{ignored: ignored, asked: make(map[string]bool)}
	i.keeper = batches
	options.Enqueue = batches.enqueue
	options.Metrics = prometheus.NewRegistry()
	options.Namespace = namespace
	if batches.pools, err = pool.Setup(mgr, options); err != nil {
		t.Fatal(err)
	}
	batches.Client = mgr.GetClient()
	if err := batches.setup(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	i.cancel, i.started = cancel, mgr.Elected()
	go func() {
		defer close(i.ended)
		if err := mgr.Start(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("the manager: %v", err)
		}
	}()
	t.Cleanup(i.kill)
	return i
}

// namespace makes one for the test, whose pods a kubelet of the test's own makes ready.
func namespace(t *testing.T) string {
	t.Helper()
	name := "test-" + utilrand.String(8)
	if err := admin.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		kubelet(ctx, name)
	}()
	t.Cleanup(func() { cancel(); wait.For(t, "the end of the kubelet", ended) })
	return name
}

// eventually waits until a condition holds; it returns what is missing, or "".
func eventually(t *testing.T, condition func() string) {
	t.Helper()
	wait.Succeeds(t, "nothing is missing", func() error {
		if missing := condition(); missing != "" {
			return errors.New(missing)
		}
		return nil
	})
}

func template() *corev1.PodTemplateSpec {
	none := int64(0)
	return &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers:                    []corev1.Container{{Name: "main", Image: "main:1"}},
		TerminationGracePeriodSeconds: &none,
	}}
}

func makePool(t *testing.T, namespace string, c v1alpha1.CapacitySpec,
	change ...func(*v1alpha1.Pool)) *v1alpha1.Pool {
	t.Helper()
	p := &v1alpha1.Pool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"},
		Spec:       v1alpha1.PoolSpec{Template: template(), CapacitySpec: c},
	}
	for _, f := range change {
		f(p)
	}
	if err := admin.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p
}

func makeBatch(t *testing.T, namespace, name string, replicas int32,
	finalizers ...string) *v1alpha1.BatchSandbox {
	t.Helper()
	b := &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: finalizers},
		Spec:       v1alpha1.BatchSandboxSpec{Replicas: replicas, PoolRef: "p"},
	}
	if err := admin.Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return b
}

func get[T client.Object](t *testing.T, object T) T {
	t.Helper()
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// change changes an object, whatever else is written to it meanwhile.
func change[T client.Object](t *testing.T, object T, how func()) {
	t.Helper()
	base := get(t, object).DeepCopyObject().(T)
	how()
	if err := admin.Patch(t.Context(), object, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, object client.Object) bool {
	t.Helper()
	err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return !apierrors.IsNotFound(err)
}

func remove(t *testing.T, object client.Object) {
	t.Helper()
	if err := admin.Delete(t.Context(), object); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

func podsIn(t *testing.T, namespace string) map[string]*corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := admin.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	pods := make(map[string]*corev1.Pod)
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods
}

// podsOf are the names that a batch has, without the empty ones.
func podsOf(t *testing.T, batch *v1alpha1.BatchSandbox) []string {
	t.Helper()
	allocation, err := get(t, batch).Allocation()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range allocation.Pods {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// served waits until a batch has so many pods, and returns them.
func served(t *testing.T, batch *v1alpha1.BatchSandbox, n int) []string {
	t.Helper()
	var names []string
	eventually(t, func() string {
		if names = podsOf(t, batch); len(names) != n {
			return fmt.Sprintf("batch %s has %d pods, not %d", batch.Name, len(names), n)
		}
		return ""
	})
	return names
}

// settled waits until the pool's status says so.
func settled(t *testing.T, p *v1alpha1.Pool, total, allocated, available int32) {
	t.Helper()
	eventually(t, func() string {
		s := get(t, p).Status
		if s.Total != total || s.Allocated != allocated || s.Available != available {
			return fmt.Sprintf("pool has total %d allocated %d available %d, not %d %d %d", s.Total,
				s.Allocated, s.Available, total, allocated, available)
		}
		return ""
	})
}

// awaitEvent waits for an event with the reason in the namespace, and returns its message.
func awaitEvent(t *testing.T, namespace, reason string) string {
	t.Helper()
	var said string
	eventually(t, func() string {
		var list corev1.EventList
		if err := admin.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		var others bytes.Buffer
		for _, e := range list.Items {
			if e.Reason == reason {
				said = e.Message
				return ""
			}
			fmt.Fprintf(&others, "\n%s: %s", e.Reason, e.Message)
		}
		return "no event " + reason + " among" + others.String()
	})
	return said
}
