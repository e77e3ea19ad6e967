// Command nodes plays the nodes of a cluster without a kubelet. It makes them, prints "ready", and
// reports on their pods until its standard input ends, which the end of its parent is, too.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the `FILE` with an administrator's access")
	count := flag.Int("nodes", 10, "how many nodes to make")
	flag.Parse()
	if err := run(context.Background(), *kubeconfig, *count); err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		os.Exit(1)
	}
}

// nodes reports what kubelets would: a pod that has been scheduled is Running and Ready, and a pod
// that is being deleted goes. Nothing runs.
type nodes struct {
	api       kubernetes.Interface
	addresses atomic.Uint32 // how many pods have got one
	queue     workqueue.TypedRateLimitingInterface[cache.ObjectName]
	pods      cache.SharedIndexInformer
}

// run makes count nodes that are Ready, and reports on their pods. The scheduler uses a node as
// soon as the controller manager has taken away the taint of a new one.
func run(ctx context.Context, kubeconfig string, count int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for i := range count {
		_, err := api.CoreV1().Nodes().Create(ctx, newNode(i), metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	limiter := workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()
	n := &nodes{api: api, queue: workqueue.NewTypedRateLimitingQueue(limiter)}
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0,
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}))
	n.pods = factory.Core().V1().Pods().Informer()
	enqueue := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			n.queue.Add(cache.MetaObjectToName(pod))
		}
	}
	if _, err := n.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() { n.work(ctx) })
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	n.queue.ShutDown()
	workers.Wait()
	return nil
}

func newNode(number int) *corev1.Node {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1k"), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("1k"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fake-%d", number)},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				Reason: "Fake", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
		},
	}
}

// work reports on pods until the queue is shut down.
func (n *nodes) work(ctx context.Context) {
	for {
		name, shutdown := n.queue.Get()
		if shutdown {
			return
		}
		if err := n.report(ctx, name); err != nil {
			n.queue.AddRateLimited(name)
		} else {
			n.queue.Forget(name)
		}
		n.queue.Done(name)
	}
}

// report writes what a kubelet would about one pod.
func (n *nodes) report(ctx context.Context, name cache.ObjectName) error {
	object, exists, err := n.pods.GetStore().GetByKey(name.String())
	if err != nil || !exists {
		return err
	}
	pod := object.(*corev1.Pod)
	switch {
	case pod.DeletionTimestamp != nil:
		now := int64(0)
		err = n.api.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
	case pod.Status.Phase == corev1.PodPending:
		pod = pod.DeepCopy()
		n.ready(pod)
		_, err = n.api.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
	// The watch delivers what has changed since, and the pod comes again.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (n *nodes) ready(pod *corev1.Pod) {
	number := n.addresses.Add(1)
	address := fmt.Sprintf("10.93.%d.%d", number>>8&0xff, number&0xff)
	now := metav1.Now()
	status := &pod.Status
	status.Phase, status.StartTime = corev1.PodRunning, &now
	status.PodIP, status.PodIPs = address, []corev1.PodIP{{IP: address}}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady,
		corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind,
			Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	started := true
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: &started,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
}
