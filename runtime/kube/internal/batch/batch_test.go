package batch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"sandbox.internal/runtime/kube/v1alpha1"
)

func running(n int32) func(b *v1alpha1.BatchSandbox) bool {
	return func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Phase == v1alpha1.PhaseRunning && b.Status.Ready == n &&
			b.Status.Replicas == n
	}
}

// columns returns what kubectl shows, by the names of the columns.
func columns(p *place, args ...string) map[string]string {
	p.Helper()
	out, err := p.kubectl("", append([]string{"get"}, args...)...)
	p.must(err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		p.Fatalf("kubectl get %q says %q", args, out)
	}
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	if len(names) != len(values) {
		p.Fatalf("there is a column without a value:\n%s", out)
	}
	shown := make(map[string]string)
	for i, name := range names {
		shown[name] = values[i]
	}
	return shown
}

func TestTemplate(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	b := p.batch("b", 3)
	b.Spec.ExpireTime = ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))
	b.Spec.ShardPatches = []runtime.RawExtension{{},
		{Raw: []byte(`{"spec":{"containers":[{"name":"main","env":[{"name":"N","value":"1"}]}]}}`)}}
	b.Spec.ShardPatches[0].Raw = []byte(`{}`)
	p.must(p.Create(t.Context(), b))
	b = p.has("b", "running", running(3))
	if want := "Pending Running"; history(b) != want || len(b.Status.Addresses) != 3 ||
		b.Status.Allocated != 3 ||
		!meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady) ||
		b.Status.Reason != v1alpha1.ReasonContainerRunning {
		t.Errorf("history %q, status %+v", history(b), b.Status)
	}
	for i := range 3 {
		pod := p.pod(fmt.Sprintf("b-%d", i))
		if !metav1.IsControlledBy(pod, b) || pod.Labels["app"] != "x" ||
			pod.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ManagedBy ||
			pod.Annotations["a"] != "b" {
			t.Errorf("%+v", pod.ObjectMeta)
		}
		if main := pod.Spec.Containers[0]; main.Image != "sandbox/busybox:dev" ||
			len(main.Env) != i%2 {
			t.Errorf("pod %d has %+v", i, main)
		}
	}
	t.Run("row lifecycle/cluster/BatchSandbox columns", func(t *testing.T) {
		shown := columns(p, "bsbx")
		for column, want := range map[string]string{
			"DESIRED": "3", "TOTAL": "3", "ALLOCATED": "3", "READY": "3",
			"EXPIRE": b.Spec.ExpireTime.UTC().Format(time.RFC3339),
		} {
			if shown[column] != want {
				t.Errorf("%s shows %q and not %q", column, shown[column], want)
			}
		}
		if shown["AGE"] == "" || len(shown) != 7 {
			t.Errorf("the columns are %v", shown)
		}
	})
	out, err := p.kubectl("", "describe", "bsbx", "b")
	p.must(err)
	if !strings.Contains(out, "made 3 pods, b-0 to -2") {
		p.eventually(func() error {
			if out, err = p.kubectl("", "describe", "bsbx", "b"); err != nil ||
				!strings.Contains(out, "made 3 pods, b-0 to -2") {
				return fmt.Errorf("kubectl describe says %s (%v)", out, err)
			}
			return nil
		})
	}

	if _, err := p.kubectl("", "scale", "bsbx", "b", "--replicas=5"); err != nil {
		t.Fatal(err)
	}
	p.has("b", "scaled up", running(5))
	if _, err := p.kubectl("", "scale", "bsbx", "b", "--replicas=1"); err != nil {
		t.Fatal(err)
	}
	p.has("b", "scaled down", running(1))
	if pods := p.pods("b"); !slices.Equal(pods, []string{"b-0"}) {
		t.Errorf("the pods are %q", pods)
	}
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 3 }) // numbers come back
	p.has("b", "scaled up again", running(3))
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 0 })
	p.eventually(func() error { // the status need not show it yet
		if pods := p.pods("b"); len(pods) > 0 {
			return fmt.Errorf("the pods are %q", pods)
		}
		return nil
	})
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 })
	if b = p.has("b", "scaled up at once", running(2)); b.Status.Outcomes != "" {
		t.Errorf("%+v", b.Status)
	}
	p.must(p.Delete(t.Context(), b))
	p.isGone("b")
	if n := p.lists.Load(); n > 0 {
		t.Errorf(
			"the pods of the batch were listed %d times: such a list reads every pod of the namespace", n)
	}
}

func TestInvalidTemplates(t *testing.T) {
	p := newPlace(t)
	p.control(nil, new(script))
	for name, test := range map[string]struct {
		spoil func(b *v1alpha1.BatchSandbox)
		want  string
	}{
		"task": {func(b *v1alpha1.BatchSandbox) { b.Spec.TaskTemplate = &v1alpha1.TaskTemplate{Command: []string{"x"}} }, "shareProcessNamespace must be true"},
		"volume": {func(b *v1alpha1.BatchSandbox) {
			b.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v",
				MountPath: "/v"}}
		}, "volumeMounts"},
		"patch": {func(b *v1alpha1.BatchSandbox) {
			b.Spec.ShardPatches = []runtime.RawExtension{{Raw: []byte(
				`{"spec":{"containers":[{"image":"x"}]}}`)}}
		}, "spec.shardPatches[0]"},
		"empty": {func(b *v1alpha1.BatchSandbox) { b.Spec.Template.Spec.Containers = nil },
			"at least one"},
	} {
		b := p.batch(name, 1)
		test.spoil(b)
		p.must(p.Create(t.Context(), b))
		b = p.reaches(name, v1alpha1.PhaseFailed)
		invalid := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionInvalid)
		if b.Status.Reason != v1alpha1.ReasonInvalidTemplate ||
			!strings.Contains(b.Status.Message, test.want) || invalid == nil ||
			!strings.Contains(invalid.Message, test.want) {
			t.Errorf("%s: %+v", name, b.Status)
		}
		p.eventually(func() error {
			out, err := p.kubectl("", "describe", "bsbx", name)
			if err != nil || !strings.Contains(out, "InvalidTemplate") ||
				!strings.Contains(out, "Warning") {
				return fmt.Errorf("kubectl describe says %s (%v)", out, err)
			}
			return nil
		})
	}
}

// TestPodsAreNotMade: a batch says why the API server takes a pod of it no more, for whatever
// cause, goes on with its others, and gives up in the end.
func TestPodsAreNotMade(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	b := p.batch("some", 1)
	p.must(p.Create(t.Context(), b))
	p.has("some", "running", running(1))
	b = p.batch("none", 1)
	b.Spec.Template.Spec.RuntimeClassName = ptr.To("missing")
	b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](60)
	p.must(p.Create(t.Context(), b))
	p.has("none", "waiting", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Phase == v1alpha1.PhasePending &&
			b.Status.Reason == v1alpha1.ReasonProvisioning &&
			strings.Contains(b.Status.Message, `"missing" not found`)
	})
	p.change("some", func(b *v1alpha1.BatchSandbox) {
		b.Spec.Replicas = 3
		b.Spec.ShardPatches = []runtime.RawExtension{{Raw: []byte(`{}`)},
			{Raw: []byte(`{"spec":{"runtimeClassName":"missing"}}`)}}
	})
	p.has("some", "scaled up but for one", running(2))
	if pods := p.pods("some"); !slices.Equal(pods, []string{"some-0", "some-2"}) {
		t.Errorf("the pods are %q", pods)
	}
	p.change("some", func(b *v1alpha1.BatchSandbox) { b.Spec.ShardPatches = nil })
	p.has("some", "scaled up", running(3))
	p.later(2*time.Minute, "none")
	b = p.reaches("none", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonProvisionTimeout ||
		!strings.Contains(b.Status.Message, `"missing" not found`) {
		t.Errorf("%+v", b.Status)
	}
}

// TestNotFoundIsWaitedFor: that something else than the batch is not there says nothing of the
// batch, and no event says when it is.
func TestNotFoundIsWaitedFor(t *testing.T) {
	p := newPlace(t)
	var there atomic.Bool
	p.equip = func(context.Context, *corev1.Pod) error {
		if there.Load() {
			return nil
		}
		return apierrors.NewNotFound(corev1.Resource("secrets"), v1alpha1.SecretExecutors)
	}
	p.control(nil, nil)
	p.must(p.Create(t.Context(), p.batch("b", 1)))
	p.has("b", "waiting", func(b *v1alpha1.BatchSandbox) bool {
		return strings.Contains(b.Status.Message, v1alpha1.SecretExecutors)
	})
	there.Store(true)
	p.has("b", "running", running(1))
}

// TestRecordOfPodsIsRemoved: sandboxes whose pods were removed from the record are lost. They
// get no others, in which their tasks would run a second time.
func TestRecordOfPodsIsRemoved(t *testing.T) {
	p := newPlace(t)
	p.pooled(4, 2)
	p.has("b", "known by its addresses",
		func(b *v1alpha1.BatchSandbox) bool { return len(b.Status.Addresses) == 2 })
	p.change("b", func(b *v1alpha1.BatchSandbox) { // as kubectl replace does
		delete(b.Annotations, v1alpha1.AnnotationAllocation)
	})
	b := p.reaches("b", v1alpha1.PhaseFailed)
	if a, err := b.Allocation(); err != nil || len(a.Pods) > 0 || b.Status.Outcomes != "FF" ||
		b.Status.Reason != v1alpha1.ReasonRemovedExternally {
		t.Errorf("allocation %+v (%v), status %+v", a, err, b.Status)
	}
}

// TestCopies: a batch that was copied with its annotations has none of the pods that these name,
// nor has one whose annotation names a pod of no Pool.
func TestCopies(t *testing.T) {
	p := newPlace(t)
	p.pooled(2, 2)
	p.must(p.Create(t.Context(), p.batch("other", 1)))
	p.has("other", "running", running(1))
	b := p.has("b", "running", running(2))

	names := b.Annotations[v1alpha1.AnnotationAllocation]
	for name, allocation := range map[string]string{"copy": names, "edited": `{"pods":["other-0"]}`} {
		c := p.batch(name, int32(strings.Count(allocation, ",")+1))
		c.Spec.Template, c.Spec.PoolRef = nil, "warm"
		c.Annotations = map[string]string{v1alpha1.AnnotationAllocation: allocation}
		p.must(p.Create(t.Context(), c))
		c = p.reaches(name, v1alpha1.PhaseFailed)
		if c.Status.Reason != v1alpha1.ReasonRemovedExternally || len(c.Status.Addresses) > 0 ||
			!strings.Contains(c.Status.Message, "which is not this batch's") {
			t.Errorf("%s: %+v", name, c.Status)
		}
	}
	for _, name := range []string{"warm-b-0", "warm-b-1", "other-0"} {
		if pod := p.pod(name); pod.DeletionTimestamp != nil {
			t.Errorf("pod %s is being deleted", name)
		}
	}
	for _, name := range []string{"b", "other"} {
		if b := p.has(name, "there", func(*v1alpha1.BatchSandbox) bool { return true }); b.Status.Phase != v1alpha1.PhaseRunning || b.Status.Outcomes != "" {
			t.Errorf("%s: %+v", name, b.Status)
		}
	}
}
