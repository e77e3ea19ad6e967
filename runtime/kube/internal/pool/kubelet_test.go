package pool_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// annotationIdle on a pod makes the kubelet report nothing of it.
const annotationIdle = "idle"

// kubelet reports every pod of a namespace as ready, and removes those that are deleted: usually
// the API server does, but not when the request was cut in between.
func kubelet(ctx context.Context, namespace string) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var pods corev1.PodList
		if err := admin.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			continue
		}
		for i := range pods.Items {
			// A request that fails is done again at the next tick; the test's own waits fail if
			// that does not help.
			switch pod := &pods.Items[i]; {
			case pod.DeletionTimestamp != nil:
				_ = admin.Delete(ctx, pod, client.GracePeriodSeconds(0),
					client.Preconditions{UID: &pod.UID})
			case pod.Status.Phase == corev1.PodPending && pod.Annotations[annotationIdle] == "":
				_ = report(ctx, pod, 1)
			}
		}
	}
}

// report writes what a kubelet says of a pod whose containers were started so many times.
func report(ctx context.Context, pod *corev1.Pod, starts int) error {
	base := pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = "127.0.0.1"
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
		Status: corev1.ConditionTrue}}
	pod.Status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		id := fmt.Sprintf("test://%s-%s-%d", pod.Name, c.Name, starts)
		if c.Name == v1alpha1.ContainerTaskExecutor {
			id = fmt.Sprintf("test://%s-%s", pod.Name, c.Name)
		}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, ContainerID: id, RestartCount: int32(starts - 1),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
	return admin.Status().Patch(ctx, pod, client.MergeFrom(base))
}
