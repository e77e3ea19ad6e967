package batch_test

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// annotationPlay on a pod says how its kubelet plays: "none" leaves it alone, "cut short" never
// brings it to run, "lost" brings it to run and reports nothing more; otherwise it becomes ready.
const annotationPlay = "play"

// playKubelet does with the namespace's pods what scheduler and kubelet would: binds, runs and ends
// them.
func (p *place) playKubelet(ctx context.Context) {
	for ctx.Err() == nil {
		var pods corev1.PodList
		if err := p.List(ctx, &pods, client.InNamespace(p.namespace)); err == nil {
			for i := range pods.Items {
				if err := p.playPod(ctx, &pods.Items[i]); err != nil && ctx.Err() == nil &&
					!apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					p.Errorf("the played kubelet: %v", err)
				}
			}
		}
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (p *place) playPod(ctx context.Context, pod *corev1.Pod) error {
	switch deadline := pod.Spec.ActiveDeadlineSeconds; {
	case pod.Annotations[annotationPlay] == "lost" && pod.Status.Phase == corev1.PodRunning:
		return nil
	case pod.DeletionTimestamp != nil:
		return p.Delete(ctx, pod, client.GracePeriodSeconds(0))
	case deadline != nil && *deadline == 1 && pod.Status.Phase != corev1.PodFailed:
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "DeadlineExceeded"
		return p.Status().Update(ctx, pod)
	case pod.Annotations[annotationPlay] == "none":
		return nil
	case pod.Spec.NodeName == "":
		return p.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "played"},
		})
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "":
		address := pod.Annotations["address"]
		if address == "" {
			address = "10.1.2.3"
		}
		setReady(pod, address)
		if pod.Annotations[annotationPlay] == "cut short" {
			pod.Status = cutShort()
		}
		return p.Status().Update(ctx, pod)
	}
	return nil
}

func setReady(pod *corev1.Pod, address string) {
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
}
