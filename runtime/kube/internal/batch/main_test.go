package batch_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

// theCluster is an API server with our resources, and nothing that plays with them.
var theCluster *cluster.Cluster

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	if namespace := os.Getenv(envNamespace); namespace != "" {
		os.Exit(beController(namespace))
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var err error
	if theCluster, err = cluster.Start(ctx, cluster.Options{Mode: cluster.API}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := theCluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err := theCluster.Define(ctx, "../../config/crd"); err != nil {
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

// place is a namespace of a test, with a simulated kubelet.
type place struct {
	*testing.T
	client.Client
	config    *rest.Config
	scheme    *runtime.Scheme
	namespace string
	stop      func() // ends the controller that runs
	writes    atomic.Int64
	lists     atomic.Int64 // of the pods of a batch
	ahead     atomic.Int64 // the controller's clock, by so many nanoseconds
	looks     atomic.Int64 // at that clock, some of them in each reconcile
	equip     func(ctx context.Context, pod *corev1.Pod) error
	claims    *answers // of the controller that runs
	// if not nil, called before a request of the controller is sent
	before atomic.Pointer[func(r *http.Request)]
}

func newPlace(t *testing.T) *place {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", theCluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config,
		client.Options{Scheme: scheme, HTTPClient: &http.Client{Transport: transport, Timeout: wait.Patience()}})
	if err != nil {
		t.Fatal(err)
	}
	p := &place{T: t, Client: c, config: config, scheme: scheme}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}
	p.must(c.Create(t.Context(), namespace))
	p.namespace = namespace.Name
	ctx, cancel := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	playing.Go(func() { p.playKubelet(ctx) })
	t.Cleanup(func() {
		if p.stop != nil {
			p.stop()
		}
		cancel()
		playing.Wait()
		if idle, ok := transport.(interface{ CloseIdleConnections() }); ok {
			idle.CloseIdleConnections()
		}
	})
	return p
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// eventually waits until check returns nil.
func (p *place) eventually(check func() error) {
	p.Helper()
	wait.Succeeds(p, "the controller does what it should", check)
}

// control starts a controller; p.stop ends it.
func (p *place) control(pools batch.Pools, tasks batch.Tasks) {
	p.Helper()
	if tasks == nil {
		tasks = noTasks{}
	}
	config := rest.CopyConfig(p.config)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return &counting{inner, p}
	})
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme: p.scheme,
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{p.namespace: {}},
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:            {Transform: batch.TrimPod},
				&v1alpha1.BatchSandbox{}: {Transform: batch.TrimBatch},
			},
		},
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	p.must(err)
	enqueuer := new(batch.Enqueuer)
	if pools, ok := pools.(*heap); ok {
		pools.client, pools.enqueuer = mgr.GetClient(), enqueuer
	}
	if tasks, ok := tasks.(*script); ok {
		tasks.enqueuer = enqueuer
	}
	p.claims = &answers{enqueuer: enqueuer}
	p.must(batch.Setup(mgr, batch.Options{
		Pools: pools, Tasks: tasks, Claims: p.claims, Enqueuer: enqueuer,
		Metrics: batch.NewMetrics(prometheus.NewRegistry()),
		Now: func() time.Time {
			p.looks.Add(1)
			return time.Now().Add(time.Duration(p.ahead.Load()))
		},
		Equip: p.equip,
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			p.Errorf("the manager: %v", err)
		}
	})
}

// runController runs a controller without Pools and tasks, and calls works once it does.
func runController(ctx context.Context, config *rest.Config, namespace string, works func()) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme:  scheme,
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	if err := batch.Setup(mgr,
		batch.Options{Tasks: noTasks{}, Claims: new(answers), Enqueuer: new(batch.Enqueuer),
			Metrics: batch.NewMetrics(prometheus.NewRegistry())}); err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(func(context.Context) error { works(); return nil })); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}

// counting counts what changes something in the cluster, events left out.
type counting struct {
	inner http.RoundTripper
	place *place
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") {
		c.place.writes.Add(1)
	}
	if strings.Contains(r.URL.Query().Get("labelSelector"), v1alpha1.LabelBatch) {
		c.place.lists.Add(1)
	}
	if before := c.place.before.Load(); before != nil {
		(*before)(r)
	}
	return c.inner.RoundTrip(r)
}

func (c *counting) WrappedRoundTripper() http.RoundTripper { return c.inner }

// show waits for a pod and gives it a status; with bind, it is on a node then.
func (p *place) show(name string, status corev1.PodStatus, bind bool) {
	p.Helper()
	p.eventually(func() error {
		pod := new(corev1.Pod)
		if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name},
			pod); err != nil {
			return err
		}
		if bind && pod.Spec.NodeName == "" {
			if err := p.SubResource("binding").Create(p.Context(), pod, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
				Target:     corev1.ObjectReference{Kind: "Node", Name: "played"},
			}); err != nil {
				return err
			}
			p.must(p.Get(p.Context(), client.ObjectKeyFromObject(pod), pod))
		}
		pod.Status = status
		return p.Status().Update(p.Context(), pod)
	})
}

// batch returns a BatchSandbox with a template, which the caller changes and creates.
func (p *place) batch(name string, replicas int32) *v1alpha1.BatchSandbox {
	return &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: p.namespace},
		Spec: v1alpha1.BatchSandboxSpec{Replicas: replicas, Template: &corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"},
				Annotations: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "sandbox/busybox:dev"}},
			},
		}},
	}
}

// has waits until the batch is as wanted, and returns it.
func (p *place) has(name, what string,
	wanted func(b *v1alpha1.BatchSandbox) bool) *v1alpha1.BatchSandbox {
	p.Helper()
	b := new(v1alpha1.BatchSandbox)
	p.eventually(func() error {
		if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name},
			b); err != nil {
			return err
		}
		if !wanted(b) {
			status, _ := json.Marshal(b.Status)
			return fmt.Errorf("BatchSandbox %s is not %s: %s", name, what, status)
		}
		return nil
	})
	return b
}

// reaches waits for a phase.
func (p *place) reaches(name string, phase v1alpha1.Phase) *v1alpha1.BatchSandbox {
	p.Helper()
	return p.has(name, string(phase),
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Phase == phase })
}

// losesWarmPod waits until the pod of a Pool that the batch had is gone.
func (p *place) losesWarmPod(name string) {
	p.Helper()
	p.eventually(func() error {
		if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace,
			Name: "warm-" + name + "-0"}, new(corev1.Pod)); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod of %s is there (%v)", name, err)
		}
		return nil
	})
}

// change changes a batch and tries again on a conflict.
func (p *place) change(name string, change func(b *v1alpha1.BatchSandbox)) {
	p.Helper()
	p.eventually(func() error {
		b := new(v1alpha1.BatchSandbox)
		if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name},
			b); err != nil {
			return err
		}
		change(b)
		return p.Update(p.Context(), b)
	})
}

// later sets the controller's clock ahead, and has it look at batches.
func (p *place) later(ahead time.Duration, batches ...string) {
	p.Helper()
	p.ahead.Store(int64(ahead))
	for _, name := range batches {
		p.change(name, func(b *v1alpha1.BatchSandbox) {
			b.Annotations = map[string]string{"looked-at-after": ahead.String()}
		})
	}
}

// isGone waits until there is neither the batch nor a pod of it.
func (p *place) isGone(name string) {
	p.Helper()
	p.eventually(func() error {
		b := new(v1alpha1.BatchSandbox)
		if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name},
			b); !apierrors.IsNotFound(err) {
			return fmt.Errorf("BatchSandbox %s is there: %s %v", name, b.Status.Phase, err)
		}
		if names := p.pods(name); len(names) > 0 {
			return fmt.Errorf("%q are orphans", names)
		}
		return nil
	})
}

// pods returns the names of the pods that were made from a batch's template.
func (p *place) pods(name string) []string {
	p.Helper()
	var pods corev1.PodList
	p.must(p.List(p.Context(), &pods, client.InNamespace(p.namespace),
		client.MatchingLabels{v1alpha1.LabelBatch: name}))
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names
}

func (p *place) pod(name string) *corev1.Pod {
	p.Helper()
	pod := new(corev1.Pod)
	p.must(p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name}, pod))
	return pod
}

// kubectl runs kubectl in the namespace.
func (p *place) kubectl(stdin string, args ...string) (string, error) {
	out, err := theCluster.Kubectl(p.Context(), strings.NewReader(stdin),
		append([]string{"-n", p.namespace}, args...)...)
	return string(out), err
}

// history returns the phases that a batch went through.
func history(b *v1alpha1.BatchSandbox) string {
	var phases []string
	for _, change := range b.Status.History {
		phases = append(phases, string(change.Phase))
	}
	return strings.Join(phases, " ")
}
