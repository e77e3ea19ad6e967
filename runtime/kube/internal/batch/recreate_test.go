package batch_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// cutShort is what a kubelet reports of a pod when it was killed while it started the main
// container.
func cutShort() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodFailed, PodIP: "10.1.2.9",
		PodIPs: []corev1.PodIP{{IP: "10.1.2.9"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError",
				Message: "context canceled: unknown"},
		}}}}
}

// turnedAway is what a kubelet reports of a pod that it does not run, whatever it reported before.
func turnedAway() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu",
		Message: "Pod was rejected: Node didn't have enough resource: cpu"}
}

// anotherPod waits until a pod's place is taken by a new one, and returns it.
func (p *place) anotherPod(name string, old types.UID) *corev1.Pod {
	p.Helper()
	pod := new(corev1.Pod)
	p.eventually(func() error {
		if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name},
			pod); err != nil {
			return err
		}
		if pod.UID == old {
			return fmt.Errorf("pod %s is still the first one: %s", name, pod.Status.Phase)
		}
		return nil
	})
	return pod
}

// TestAnotherPod: a sandbox that was never usable gets another pod when a node lets the first one
// down; one that may have been used does not, because its state is gone.
func TestAnotherPod(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	silent := func(name string, replicas int32) types.UID {
		t.Helper()
		b := p.batch(name, replicas)
		b.Spec.Template.Annotations = map[string]string{annotationPlay: "none"}
		p.must(p.Create(t.Context(), b))
		p.show(name+"-0", corev1.PodStatus{Phase: corev1.PodPending}, true)
		return p.pod(name + "-0").UID
	}

	// Its address is on record when its start is cut short. Then a node turns the second pod away,
	// and the third one runs.
	first := silent("b", 2)
	p.show("b-0", corev1.PodStatus{Phase: corev1.PodPending, PodIP: "10.1.2.9",
		PodIPs: []corev1.PodIP{{IP: "10.1.2.9"}}}, true)
	p.has("b", "known by its address",
		func(b *v1alpha1.BatchSandbox) bool { return len(b.Status.Addresses) == 1 })
	p.show("b-0", cutShort(), true)
	second := p.anotherPod("b-0", first).UID
	p.show("b-0", turnedAway(), true)
	third := p.anotherPod("b-0", second)
	usable := third.DeepCopy()
	setReady(usable, "10.1.2.10")
	p.show("b-0", usable.Status, true)
	setReady(usable, "10.1.2.11")
	p.show("b-1", usable.Status, true)
	b := p.has("b", "running", running(2))
	if history(b) != "Pending Running" || b.Status.Outcomes != "" ||
		strings.Join(b.Status.Addresses, " ") != "10.1.2.10 10.1.2.11" {
		t.Errorf("history %q, status %+v", history(b), b.Status)
	}
	p.eventually(func() error {
		out, err := p.kubectl("", "describe", "bsbx", "b")
		if err != nil || !strings.Contains(out, "PodReplaced") ||
			!strings.Contains(out, "b-0: container main did not start: context canceled") {
			return fmt.Errorf("kubectl describe says %s (%v)", out, err)
		}
		return nil
	})

	// A pod that was usable has the same status when the node rejects it after its kubelet was
	// restarted.
	p.show("b-0", turnedAway(), true)
	b = p.has("b", "degraded",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Outcomes == "F" })
	if pod := p.pod("b-0"); pod.UID != third.UID {
		events, err := p.kubectl("", "describe", "bsbx", "b")
		t.Errorf("the pod that was used was recreated: %s after %s, %s and %s, made at %s; status %+v\n%s%v",
			pod.UID, first, second, third.UID, pod.CreationTimestamp, b.Status, events, err)
	}

	// No pod comes to anything. Each waits longer for the next one, and says so, until it has
	// lasted too long.
	late := p.batch("late", 1)
	late.Spec.Template.Annotations = map[string]string{annotationPlay: "cut short"}
	p.must(p.Create(t.Context(), late))
	b = p.has("late", "the reason", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Phase == v1alpha1.PhasePending &&
			b.Status.Reason == v1alpha1.ReasonContainerError
	})
	if !strings.Contains(b.Status.Message, "context canceled: unknown; its pod is recreated") ||
		b.Status.Outcomes != "" {
		t.Errorf("%+v", b.Status)
	}
	p.change("late",
		func(b *v1alpha1.BatchSandbox) { b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](1) })
	p.reaches("late", v1alpha1.PhaseFailed)

	// It is deleted while it waits for another pod.
	silent("unwanted", 1)
	p.show("unwanted-0", cutShort(), true)
	p.change("unwanted", func(b *v1alpha1.BatchSandbox) {
		b.Annotations = map[string]string{v1alpha1.AnnotationStop: v1alpha1.ReasonUserDelete}
	})
	if b := p.reaches("unwanted",
		v1alpha1.PhaseTerminated); b.Status.Reason != v1alpha1.ReasonUserDelete {
		t.Errorf("%+v", b.Status)
	}
}
