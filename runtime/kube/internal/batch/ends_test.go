package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

func TestExpiry(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	for _, name := range []string{"first", "kept", "later"} {
		b := p.batch(name, 2)
		b.Spec.ExpireTime = ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))
		if name != "first" {
			b.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
		}
		p.must(p.Create(t.Context(), b))
	}
	for _, name := range []string{"first", "kept", "later"} {
		p.has(name, "running", running(2))
	}
	soon := metav1.NewTime(time.Now().Add(3 * time.Second).Truncate(time.Second))
	for _, name := range []string{"first", "kept"} {
		p.change(name, func(b *v1alpha1.BatchSandbox) { b.Spec.ExpireTime = &soon })
	}
	p.isGone("first")
	b := p.reaches("kept", v1alpha1.PhaseTerminated)
	if !strings.HasSuffix(history(b), "Stopping Terminated") ||
		b.Status.Reason != v1alpha1.ReasonExpired || b.Status.FinishedAt == nil ||
		b.Status.Ready != 0 {
		t.Errorf("history %q, status %+v", history(b), b.Status)
	}
	for _, change := range b.Status.History {
		if change.Phase == v1alpha1.PhaseStopping && change.Time.Time.Before(soon.Time) {
			t.Errorf("the batch expired at %s, before %s", change.Time, soon)
		}
	}
	if pod := p.pod("kept-1"); pod.Status.Phase != corev1.PodFailed ||
		pod.DeletionTimestamp != nil {
		t.Errorf("the pod, whose log is to be read, is %s", pod.Status.Phase)
	}
	p.change("kept",
		func(b *v1alpha1.BatchSandbox) { b.Spec.TTLSecondsAfterFinished = ptr.To[int32](0) })
	p.isGone("kept")

	// What is due while no controller runs happens when one does.
	p.stop()
	p.change("later", func(b *v1alpha1.BatchSandbox) {
		b.Spec.ExpireTime, b.Spec.TTLSecondsAfterFinished = ptr.To(
			metav1.NewTime(time.Now().Add(-time.Minute))), nil
	})
	p.control(nil, nil)
	p.isGone("later")
}

func TestStop(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	b := p.batch("b", 1)
	b.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
	p.must(p.Create(t.Context(), b))
	p.has("b", "running", running(1))
	p.change("b", func(b *v1alpha1.BatchSandbox) {
		b.Annotations = map[string]string{v1alpha1.AnnotationStop: v1alpha1.ReasonUserDelete}
	})
	b = p.reaches("b", v1alpha1.PhaseTerminated)
	if want := "Pending Running Stopping Terminated"; history(b) != want ||
		b.Status.Reason != v1alpha1.ReasonUserDelete {
		t.Errorf("history %q, reason %q", history(b), b.Status.Reason)
	}
}

// TestPodAfterTheEnd: a pod that the API server makes after the end of its batch is deleted: the
// request to make it may have taken that long.
func TestPodAfterTheEnd(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	b := p.batch("b", 1)
	b.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
	b.Annotations = map[string]string{v1alpha1.AnnotationStop: v1alpha1.ReasonUserDelete}
	p.must(p.Create(t.Context(), b))
	b = p.reaches("b", v1alpha1.PhaseTerminated)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.namespace, Name: "b-0",
		Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
			v1alpha1.LabelBatch: "b", v1alpha1.LabelShard: "0"},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("BatchSandbox"))},
	}, Spec: b.Spec.Template.Spec}
	p.must(p.Create(t.Context(), pod))
	p.eventually(func() error {
		if pods := p.pods("b"); len(pods) > 0 {
			return fmt.Errorf("the pods of a batch that has ended are %q", pods)
		}
		return nil
	})
	p.reaches("b", v1alpha1.PhaseTerminated)
}

// TestEnds: what becomes of a batch whose sandboxes end by themselves.
func TestEnds(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	ends := func(name string, status func(pod *corev1.Pod)) {
		t.Helper()
		p.eventually(func() error {
			pod := p.pod(name)
			status(pod)
			return p.Status().Update(t.Context(), pod)
		})
	}
	exits := func(code int32, reason, message string) func(pod *corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.Conditions = corev1.PodSucceeded, nil
			if code != 0 {
				pod.Status.Phase = corev1.PodFailed
			}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main",
				State: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason,
						Message: message},
				}}}
		}
	}
	for _, name := range []string{"well", "badly", "oom", "removed", "timed"} {
		p.must(p.Create(t.Context(), p.batch(name, 1)))
	}
	p.must(p.Create(t.Context(), p.batch("many", 2)))
	for _, name := range []string{"well", "badly", "oom", "removed", "timed"} {
		p.has(name, "running", running(1))
	}
	p.has("many", "running", running(2))
	ends("well-0", exits(0, "Completed", ""))
	ends("badly-0", exits(3, "Error", "the last line\n"))
	ends("oom-0", exits(137, "OOMKilled", ""))
	ends("many-1", exits(3, "Error", ""))
	p.must(p.Delete(t.Context(), p.pod("removed-0")))
	ends("timed-0", func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "DeadlineExceeded"
	})

	b := p.reaches("timed", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonExpired {
		t.Errorf("%+v", b.Status)
	}
	b = p.reaches("well", v1alpha1.PhaseTerminated)
	if b.Status.Reason != v1alpha1.ReasonEntrypointExited ||
		history(b) != "Pending Running Stopping Terminated" {
		t.Errorf("history %q, status %+v", history(b), b.Status)
	}
	b = p.reaches("badly", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonEntrypointExited ||
		!strings.Contains(b.Status.Message, "exit code 3:\nthe last line") {
		t.Errorf("%+v", b.Status)
	}
	if b = p.reaches("oom", v1alpha1.PhaseFailed); b.Status.Reason != v1alpha1.ReasonOOMKilled {
		t.Errorf("%+v", b.Status)
	}
	if b = p.reaches("removed",
		v1alpha1.PhaseFailed); b.Status.Reason != v1alpha1.ReasonRemovedExternally ||
		len(p.pods("removed")) > 0 {
		t.Errorf("%+v", b.Status)
	}
	b = p.has("many", "degraded", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Outcomes == "-F" && b.Status.Ready == 1 &&
			meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionDegraded)
	})
	if b.Status.Phase != v1alpha1.PhaseRunning ||
		meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("%+v", b.Status)
	}
	// the one that failed goes
	p.change("many", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 1 })
	b = p.has("many", "degraded no more", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Outcomes == "" &&
			meta.IsStatusConditionFalse(b.Status.Conditions, v1alpha1.ConditionDegraded)
	})
	if b.Status.Phase != v1alpha1.PhaseRunning ||
		!meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("%+v", b.Status)
	}
	p.change("many", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 })
	p.has("many", "whole again", running(2))
	ends("many-1", exits(3, "Error", ""))
	p.has("many", "degraded again", func(b *v1alpha1.BatchSandbox) bool {
		return meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionDegraded)
	})
	ends("many-0", exits(0, "Completed", ""))
	if b = p.reaches("many", v1alpha1.PhaseFailed); !strings.Contains(b.Status.Message,
		"sandbox 1: container main ended with exit code 3") {
		t.Errorf("%+v", b.Status)
	}
	// The time of its pod was up, and not its own: its record stays like others.
	p.has("timed", "kept",
		func(b *v1alpha1.BatchSandbox) bool { return b.DeletionTimestamp == nil })
}

// TestNotUsable: a batch that does not become usable says why, and fails where waiting cannot help
// or has lasted too long.
func TestNotUsable(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	pull := func(message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: message},
			}}}}
	}
	for _, name := range []string{"missing", "slow", "full", "patient"} {
		b := p.batch(name, 1)
		b.Spec.Template.Annotations = map[string]string{annotationPlay: "none"}
		p.must(p.Create(t.Context(), b))
	}
	p.show("missing-0", pull("manifest unknown"), true)
	p.show("slow-0", pull("dial tcp: i/o timeout"), true)
	unschedulable := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available",
	}}}
	p.show("full-0", unschedulable, false)
	p.show("patient-0", unschedulable, false)
	if b := p.reaches("missing",
		v1alpha1.PhaseFailed); b.Status.Reason != v1alpha1.ReasonImagePullError ||
		!strings.Contains(b.Status.Message, "manifest unknown") {
		t.Errorf("%+v", b.Status)
	}
	for name, reason := range map[string]string{"slow": v1alpha1.ReasonImagePullError,
		"patient": v1alpha1.ReasonResourceLimit, "full": v1alpha1.ReasonResourceLimit} {
		p.has(name, "waiting", func(b *v1alpha1.BatchSandbox) bool {
			return b.Status.Phase == v1alpha1.PhasePending && b.Status.Reason == reason
		})
	}
	p.change("full",
		func(b *v1alpha1.BatchSandbox) { b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](1) })
	if b := p.reaches("full",
		v1alpha1.PhaseFailed); b.Status.Reason != v1alpha1.ReasonResourceLimit ||
		!strings.Contains(b.Status.Message, "0/1 nodes") {
		t.Errorf("%+v", b.Status)
	}
	p.eventually(func() error {
		if names := slices.Concat(p.pods("missing"), p.pods("full")); len(names) > 0 {
			return fmt.Errorf("the pods %q still try", names)
		}
		return nil
	})
}

// TestGivenUpWhilePending: a batch whose time to become usable is over is not looked at without end
// while its pods end.
func TestGivenUpWhilePending(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	b := p.batch("b", 1)
	b.Spec.Template.Annotations = map[string]string{annotationPlay: "none"}
	b.Spec.Template.Finalizers = []string{"sandbox.internal/test"} // it takes long to end
	b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](60)
	p.must(p.Create(t.Context(), b))
	p.reaches("b", v1alpha1.PhasePending)
	p.later(2*time.Minute, "b")
	b = p.has("b", "given up",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Outcomes == "F" })
	p.eventually(func() error {
		if p.pod("b-0").DeletionTimestamp == nil {
			return errors.New("pod is not being deleted")
		}
		return nil
	})
	before := p.looks.Load()
	time.Sleep(200 * time.Millisecond) // a time in which nothing changes
	if n := p.looks.Load() - before; n > 50 || b.Status.Phase != v1alpha1.PhasePending {
		t.Errorf("while it is %s, the clock is looked at %d times", b.Status.Phase, n)
	}
	p.eventually(func() error {
		pod := p.pod("b-0")
		pod.Finalizers = nil
		return p.Update(t.Context(), pod)
	})
	b = p.reaches("b", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonProvisionTimeout {
		t.Errorf("%+v", b.Status)
	}
}

// TestLostNode: a sandbox whose node does not answer any more has failed, although the node never
// says so, and its record can be deleted.
func TestLostNode(t *testing.T) {
	p := newPlace(t)
	p.later(10 * time.Minute) // no node takes that long to end a pod
	p.control(nil, nil)
	for _, name := range []string{"lost", "stopped", "ending", "kept", "expired"} {
		b := p.batch(name, 1)
		b.Spec.Template.Annotations[annotationPlay] = "lost"
		if name == "kept" {
			b.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
		}
		p.must(p.Create(t.Context(), b))
		p.has(name, "running", running(1))
		pod := p.pod(name + "-0")
		t.Cleanup(func() {
			_ = p.Delete(context.WithoutCancel(t.Context()), pod,
				client.GracePeriodSeconds(0))
		})
	}
	pod := p.pod("lost-0") // as the controller manager does
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByTaintManager",
	})
	p.must(p.Status().Update(t.Context(), pod))
	p.must(p.Delete(t.Context(), pod))
	b := p.reaches("lost", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonRemovedExternally ||
		!strings.Contains(b.Status.Message, "its node played") {
		t.Errorf("%+v", b.Status)
	}
	// Nobody knows whether the end of a batch that is asked for has come.
	for _, name := range []string{"ending", "kept"} {
		p.change(name, func(b *v1alpha1.BatchSandbox) {
			b.Annotations = map[string]string{v1alpha1.AnnotationStop: v1alpha1.ReasonUserDelete}
		})
		if name == "kept" { // with its log, for as long as its node may be about to end it
			p.eventually(func() error {
				if p.pod("kept-0").Spec.ActiveDeadlineSeconds == nil {
					return errors.New("the kubelet is not asked to end the pod")
				}
				return nil
			})
			if pod := p.pod("kept-0"); pod.DeletionTimestamp != nil {
				t.Error("the pod is deleted before its node had time to end it")
			}
			p.later(20*time.Minute, "kept")
		}
		b = p.reaches(name, v1alpha1.PhaseFailed)
		if b.Status.Reason != v1alpha1.ReasonRemovedExternally ||
			!strings.Contains(b.Status.Message, "node played does not answer") ||
			history(b) != "Pending Running Stopping Failed" {
			t.Errorf("%s: history %q, status %+v", name, history(b), b.Status)
		}
	}
	p.change("expired", func(b *v1alpha1.BatchSandbox) {
		b.Spec.ExpireTime = ptr.To(metav1.NewTime(time.Now()))
	})
	for _, name := range []string{"lost", "stopped", "ending", "kept", "expired"} {
		if name != "expired" { // which is deleted like others that have expired
			p.must(p.Delete(t.Context(),
				p.has(name, "there", func(*v1alpha1.BatchSandbox) bool { return true })))
		}
		p.eventually(func() error {
			err := p.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: name}, b)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("BatchSandbox %s is there: %v", name, err)
		})
	}
}
