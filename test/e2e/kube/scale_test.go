package kube_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

// mostWrites is how often the controller may write a batch to give it pods that wait: the
// allocation, and the phases.
const mostWrites = 6

// TestBatchCostsTheSameWhateverItsSize gives batches of different sizes pods that wait in a Pool,
// and counts what the controller writes to the API server. The nodes of the cluster are played.
func TestBatchCostsTheSameWhateverItsSize(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*wait.Patience())
	defer cancel()
	fake, err := cluster.Start(ctx, cluster.Options{Mode: cluster.Fake, Nodes: 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fake.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := fake.Define(ctx, definitions); err != nil {
		t.Fatal(err)
	}
	api, disconnect, err := connect(fake)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(disconnect)
	accounts, err := fake.Accounts(ctx, "default", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := manager.Load(accounts.Controller)
	if err != nil {
		t.Fatal(err)
	}
	counted := &counter{}
	config.Wrap(counted.wrap)
	t.Cleanup(manage(t, manager.Options{Config: config, Namespace: "default"}))

	for _, size := range []int32{10, 100, 1000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			pool := plainPool(size)
			defer func() {
				if t.Failed() {
					t.Log(census(context.WithoutCancel(t.Context()), api, pool))
				}
			}()
			if err := api.Create(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the pool is full", func(ctx context.Context) error {
				err := api.Get(ctx, client.ObjectKeyFromObject(pool), pool)
				if err == nil && pool.Status.Available != size {
					err = fmt.Errorf("%d of %d pods are available", pool.Status.Available, size)
				}
				return err
			})

			counted.reset()
			began := time.Now()
			batch := &v1alpha1.BatchSandbox{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pool.Name},
				Spec:       v1alpha1.BatchSandboxSpec{Replicas: size, PoolRef: pool.Name},
			}
			if err := api.Create(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the batch is Running", func(ctx context.Context) error {
				err := api.Get(ctx, client.ObjectKeyFromObject(batch), batch)
				if err == nil &&
					(batch.Status.Phase != v1alpha1.PhaseRunning || batch.Status.Ready != size) {
					err = fmt.Errorf("status is %s, %d ready", batch.Status.Phase,
						batch.Status.Ready)
				}
				return err
			})
			writes := counted.all()
			t.Logf("%d sandboxes of a warm pool: %v, with %v written", size, time.Since(began), writes)
			if got := writes["batchsandboxes"]; got == 0 || got > mostWrites {
				t.Errorf("the batch was written %d times, want at most %d, whatever its size", got,
					mostWrites)
			}
			if writes["pods"] > 0 {
				t.Errorf("pods were written %d times, want none", writes["pods"])
			}
			distinct(t, api, batch)

			for _, object := range []client.Object{batch, pool} {
				if err := api.Delete(t.Context(), object); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "nothing is left", func(ctx context.Context) error {
				var pods corev1.PodList
				var batches v1alpha1.BatchSandboxList
				for _, list := range []client.ObjectList{&pods, &batches} {
					// One of them says that there are any, and a list of a thousand costs.
					err := api.List(ctx, list, client.InNamespace("default"), client.Limit(1))
					if err != nil {
						return err
					}
					if left := names(list); len(left) > 0 {
						return fmt.Errorf("there is %s, perhaps among others", left[0])
					}
				}
				return nil
			})
		})
	}
}

func plainPod() corev1.PodSpec {
	at := int64(0)
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: &at,
		Containers: []corev1.Container{{Name: "main", Image: busyboxImage,
			Command: []string{"sleep", "1000"}}},
	}
}

// plainPool is a Pool that neither grows nor shrinks.
func plainPool(size int32) *v1alpha1.Pool {
	return &v1alpha1.Pool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pool-%d", size)},
		Spec: v1alpha1.PoolSpec{
			Template: &corev1.PodTemplateSpec{Spec: plainPod()},
			CapacitySpec: v1alpha1.CapacitySpec{BufferMin: 0, BufferMax: size, PoolMin: size,
				PoolMax: size},
		},
	}
}

// census says where a Pool that is not full stands still: at the controller, the scheduler, the
// nodes or the pods.
func census(ctx context.Context, api client.Client, pool *v1alpha1.Pool) string {
	var nodes corev1.NodeList
	var pods corev1.PodList
	var events eventsv1.EventList
	if err := errors.Join(api.List(ctx, &nodes),
		api.List(ctx, &events, client.InNamespace(pool.Namespace)),
		api.List(ctx, &pods, client.InNamespace(pool.Namespace),
			client.MatchingLabels{v1alpha1.LabelPool: pool.Name})); err != nil {
		return err.Error()
	}
	found := make(map[string]int)
	for _, node := range nodes.Items {
		state := "node that never reported"
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				state = fmt.Sprintf("node with Ready=%s and %d taints", c.Status,
					len(node.Spec.Taints))
			}
		}
		found[state]++
	}
	for _, pod := range pods.Items {
		state := "pod " + string(pod.Status.Phase)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady || c.Type == corev1.PodScheduled &&
				c.Status != corev1.ConditionTrue {
				state += fmt.Sprintf(" %s=%s %s", c.Type, c.Status, c.Reason)
			}
		}
		if pod.DeletionTimestamp != nil {
			state += ", being deleted"
		}
		found[state]++
	}
	for _, event := range events.Items {
		if event.Regarding.Name == pool.Name {
			found["event "+event.Reason+": "+event.Note]++
		}
	}
	return fmt.Sprintf("the Pool says %+v; there are %v", pool.Status, found)
}

// distinct checks that a batch holds as many pods of its Pool as its spec says, each of them once,
// and all of them there.
func distinct(t *testing.T, api client.Client, batch *v1alpha1.BatchSandbox) {
	t.Helper()
	var pods corev1.PodList
	if err := api.List(t.Context(), &pods, client.InNamespace(batch.Namespace),
		client.MatchingLabels{v1alpha1.LabelPool: batch.Spec.PoolRef}); err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, pod := range pods.Items {
		there = append(there, pod.Name)
	}
	allocation, err := batch.Allocation()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(there)
	if held := slices.Sorted(slices.Values(allocation.Pods)); !slices.Equal(held, there) {
		t.Errorf("the batch holds %d pods, and the pool has %d others or more: %v, %v", len(held),
			len(there), held, there)
	}
}

// counter counts the requests that change something, by resource.
type counter struct {
	mu    sync.Mutex
	count map[string]int
}

func (c *counter) wrap(next http.RoundTripper) http.RoundTripper { return counting{c, next} }

func (c *counter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count = map[string]int{}
}

func (c *counter) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.count)
}

type counting struct {
	counter *counter
	next    http.RoundTripper
}

func (c counting) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		// /api/v1/namespaces/NAMESPACE/pods/NAME,
		// /apis/GROUP/VERSION/namespaces/NAMESPACE/batchsandboxes/NAME/status
		_, path, _ := strings.Cut(request.URL.Path, "/namespaces/")
		if parts := strings.Split(path, "/"); len(parts) > 1 {
			c.counter.mu.Lock()
			if c.counter.count != nil {
				c.counter.count[parts[1]]++
			}
			c.counter.mu.Unlock()
		}
	}
	return c.next.RoundTrip(request)
}
