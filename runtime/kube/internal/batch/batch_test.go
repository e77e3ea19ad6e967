package batch_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/batch"
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

// execd answers like the freezing part of one.
type execd struct {
	mu     sync.Mutex
	frozen bool
	fails  int
	phase  func() v1alpha1.Phase // that is on record
	phases map[string]bool       // requests, and the phases in which they came
}

// serve answers at an address until the test ends.
func (e *execd) serve(p *place, address string) {
	p.Helper()
	listener, err := new(net.ListenConfig).Listen(p.Context(), "tcp",
		fmt.Sprintf("%s:%d", address, v1alpha1.PortExecd))
	p.must(err)
	server := &http.Server{Handler: e}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	p.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
}

func (e *execd) isFrozen() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.frozen
}

func (e *execd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != nil {
		e.phases[fmt.Sprintf("%s in %s", r.URL.Path, e.phase())] = true
	}
	switch {
	case r.Header.Get(v1alpha1.HeaderExecdToken) != "secret":
		http.Error(w, "no token", http.StatusUnauthorized)
	case e.fails > 0:
		e.fails--
		http.Error(w, `{"code": "RUNTIME_ERROR", "message": "not now\u001b[31m"}`,
			http.StatusInternalServerError)
	default:
		e.frozen = r.URL.Path == "/freeze"
	}
}

func TestPause(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const address = "127.99.44.7" // an address of this test alone
	daemon := &execd{fails: 1, phases: make(map[string]bool), phase: func() v1alpha1.Phase {
		b := new(v1alpha1.BatchSandbox)
		_ = p.Get(context.Background(), client.ObjectKey{Namespace: p.namespace, Name: "b"}, b)
		return b.Status.Phase
	}}
	daemon.serve(p, address)

	b := p.batch("b", 1)
	b.Spec.Template.Annotations["address"] = address
	b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
		Value: "secret"}}
	b.Spec.Pause = true // from the beginning: it is paused once it runs
	p.must(p.Create(t.Context(), b))
	b = p.reaches("b", v1alpha1.PhasePaused)
	if want := "Pending Running Pausing Paused"; history(b) != want || !daemon.frozen {
		t.Errorf("history %q, frozen %v", history(b), daemon.frozen)
	}
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = false })
	b = p.reaches("b", v1alpha1.PhaseRunning)
	if want := "Pending Running Pausing Paused Resuming Running"; history(b) != want ||
		daemon.frozen || b.Status.Reason != v1alpha1.ReasonContainerRunning {
		t.Errorf("history %q, frozen %v, reason %s", history(b), daemon.frozen, b.Status.Reason)
	}
	// What is done to the processes is on record before.
	if want := map[string]bool{"/freeze in Pausing": true, "/thaw in Resuming": true}; !maps.Equal(
		daemon.phases, want) {
		t.Errorf("asked for were %v, want %v", daemon.phases, want)
	}
}

// TestPauseRefused: a sandbox has failed whose execd answers for long that it does not freeze. One
// whose execd does not answer is waited for.
func TestPauseRefused(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const refusing, freezing, silent = "127.99.44.9", "127.99.44.10", "127.99.44.11"
	frozen := new(execd)
	frozen.serve(p, freezing)
	(&execd{fails: 1 << 30}).serve(p, refusing)
	for name, addresses := range map[string][]string{
		"one": {refusing}, "two": {refusing, freezing}, "none": {silent},
	} {
		b := p.batch(name, int32(len(addresses)))
		for _, address := range addresses {
			b.Spec.ShardPatches = append(b.Spec.ShardPatches, runtime.RawExtension{Raw: fmt.Appendf(
				nil, `{"metadata":{"annotations":{"address":%q}}}`, address)})
		}
		b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
			Value: "secret"}}
		b.Spec.Pause = true
		p.must(p.Create(t.Context(), b))
	}
	for name, answer := range map[string]string{
		"one": "500 Internal Server Error: not now", "two": "not now", "none": "does not answer",
	} {
		p.has(name, "pausing", func(b *v1alpha1.BatchSandbox) bool {
			return b.Status.Phase == v1alpha1.PhasePausing &&
				strings.Contains(b.Status.Message, answer)
		})
	}
	p.later(time.Minute, "none", "one", "two")
	b := p.reaches("one", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonContainerError ||
		!strings.Contains(b.Status.Message, "not now?[31m") || len(p.pods("one")) > 0 {
		t.Errorf("%+v, pods %q", b.Status, p.pods("one"))
	}
	b = p.reaches("two", v1alpha1.PhasePaused)
	if b.Status.Outcomes != "F" || !frozen.isFrozen() {
		t.Errorf("frozen %v, %+v", frozen.isFrozen(), b.Status)
	}
	b = p.has("none", "there", func(*v1alpha1.BatchSandbox) bool { return true })
	if b.Status.Phase != v1alpha1.PhasePausing || b.Status.Outcomes != "" {
		t.Errorf("without an answer it is %+v", b.Status)
	}
}

// TestResumeWithMore: pods that come with a resume have not been frozen, and are not waited for.
func TestResumeWithMore(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const address = "127.99.44.12"
	daemon := new(execd)
	daemon.serve(p, address)
	b := p.batch("b", 1)
	b.Spec.Template.Annotations["address"] = address
	b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
		Value: "secret"}}
	b.Spec.Pause = true
	p.must(p.Create(t.Context(), b))
	p.reaches("b", v1alpha1.PhasePaused)
	p.change("b", func(b *v1alpha1.BatchSandbox) {
		b.Spec.Pause, b.Spec.Replicas = false, 2
		b.Spec.ShardPatches = []runtime.RawExtension{{Raw: []byte(`{}`)},
			{Raw: []byte(`{"metadata":{"annotations":{"play":"none"}}}`)}}
	})
	b = p.reaches("b", v1alpha1.PhaseRunning)
	if b.Status.Ready != 1 || daemon.isFrozen() {
		t.Errorf("frozen %v, %+v", daemon.isFrozen(), b.Status)
	}
}

// TestPauseWaitsForPods: a batch is not Paused while one of its sandboxes is still to get a pod,
// which would run.
func TestPauseWaitsForPods(t *testing.T) {
	p := newPlace(t)
	pools := new(heap)
	p.control(pools, nil)
	daemons := []*execd{{}, {}}
	give := func(number int) {
		address := fmt.Sprintf("127.99.45.%d", number+1)
		daemons[number].serve(p, address)
		pod := warmPod(p.namespace, fmt.Sprintf("warm-%d", number))
		pod.Annotations = map[string]string{"address": address}
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken,
			Value: "secret"}}
		p.must(p.Create(t.Context(), pod))
		pools.give(p, "b", pod.Name)
	}
	b := p.batch("b", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "warm"
	p.must(p.Create(t.Context(), b))
	give(0)
	p.has("b", "running", running(1))
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 2 })
	p.change("b", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = true })
	p.has("b", "waiting for a pod", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Phase == v1alpha1.PhasePausing &&
			b.Status.Message == "sandbox 1 has no pod yet"
	})
	give(1)
	p.reaches("b", v1alpha1.PhasePaused)
	for number, daemon := range daemons {
		if !daemon.isFrozen() {
			t.Errorf("the batch is Paused and sandbox %d runs", number)
		}
	}
}

// TestPauseWithoutAnAnswer: execds that hold their requests hold up no worker of the controller.
func TestPauseWithoutAnAnswer(t *testing.T) {
	p := newPlace(t)
	p.control(nil, nil)
	const address, batches, workers = "127.99.44.8", 80, 64
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp",
		fmt.Sprintf("%s:%d", address, v1alpha1.PortExecd))
	p.must(err)
	var held atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		held.Add(1)
		<-r.Context().Done()
		held.Add(-1)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Close()
	for i := range batches {
		b := p.batch(fmt.Sprintf("b%d", i), 1)
		b.Spec.Template.Annotations["address"] = address
		p.must(p.Create(t.Context(), b))
	}
	for i := range batches {
		p.has(fmt.Sprintf("b%d", i), "running", running(1))
	}
	for i := range batches {
		p.change(fmt.Sprintf("b%d", i), func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = true })
	}
	p.eventually(func() error {
		if n := held.Load(); n <= workers { // each asks again a second after its time was up
			return fmt.Errorf("%d execds hold a request at once, want more than there are workers",
				n)
		}
		return nil
	})
	// The other way while that goes on: a freeze is not overtaken.
	p.change("b0", func(b *v1alpha1.BatchSandbox) { b.Spec.Pause = false })
	p.has("b0", "resuming",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Phase == v1alpha1.PhaseResuming })
	p.must(p.Delete(t.Context(),
		p.has("b1", "there", func(*v1alpha1.BatchSandbox) bool { return true })))
	p.isGone("b1")
}

// withTasks gives a batch with a template a task.
func withTasks(b *v1alpha1.BatchSandbox) {
	b.Spec.TaskTemplate = &v1alpha1.TaskTemplate{Command: []string{"work"}}
	b.Spec.Template.Spec.ShareProcessNamespace = ptr.To(true)
	b.Spec.Template.Spec.Containers = append(b.Spec.Template.Spec.Containers, corev1.Container{
		Name: v1alpha1.ContainerTaskExecutor, Image: "sandbox/execd:dev",
		SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE"}}},
	})
}

func TestTasks(t *testing.T) {
	p := newPlace(t)
	tasks := new(script)
	p.control(nil, tasks)
	for name, policy := range map[string]v1alpha1.TaskResourcePolicy{"retain": v1alpha1.TaskRetain,
		"release": v1alpha1.TaskRelease} {
		b := p.batch(name, 4)
		withTasks(b)
		b.Spec.TaskResourcePolicyWhenCompleted = policy
		p.must(p.Create(t.Context(), b))
	}
	p.has("retain", "waiting for its tasks", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Allocated == 4 && b.Status.Ready == 0 && b.Status.TaskStats.Pending == 4
	})
	up := batch.TaskState{Phase: batch.TaskRunning, Ready: true}
	well, badly := batch.TaskState{Phase: batch.TaskSucceeded},
		batch.TaskState{Phase: batch.TaskFailed, Reason: "EXITED", Message: "exit code 3"}
	tasks.say(p.namespace, "retain", up, up, up, up)
	p.has("retain", "running", running(4))
	tasks.say(p.namespace, "retain", up, well, badly, batch.TaskState{Phase: batch.TaskUnknown})
	t.Run("row lifecycle/cluster/BatchSandbox status.taskStats", func(t *testing.T) {
		b := p.has("retain", "counted", func(b *v1alpha1.BatchSandbox) bool {
			return *b.Status.TaskStats == v1alpha1.TaskStats{Running: 1, Succeed: 1, Failed: 1,
				Unknown: 1}
		})
		if b.Status.Outcomes != "-sf" || len(p.pods("retain")) != 4 {
			t.Errorf("outcomes %q, pods %q", b.Status.Outcomes, p.pods("retain"))
		}
	})
	t.Run("row lifecycle/cluster/BatchSandbox columns: of tasks", func(t *testing.T) {
		out, err := p.kubectl("", "get", "bsbx", "retain", "-o", "wide", "--no-headers")
		p.must(err)
		header, err := p.kubectl("", "get", "bsbx", "retain", "-o", "wide")
		p.must(err)
		// EXPIRE is empty here, so the columns are compared in order.
		if fields := strings.Fields(out); len(fields) < 9 ||
			!slices.Equal(fields[5:9], []string{"1", "1", "1", "1"}) {
			t.Errorf("the line is %q", out)
		}
		if names := strings.Fields(header); !slices.Equal(names[5:9],
			[]string{"TASK_RUNNING", "TASK_SUCCEED", "TASK_FAILED", "TASK_UNKNOWN"}) {
			t.Errorf("the columns are %q", header)
		}
	})

	// Release: a sandbox goes with its task, and the batch with the last of them.
	p.has("release", "there",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Allocated == 4 })
	tasks.say(p.namespace, "release", up, well, well, up)
	p.eventually(func() error {
		if pods := p.pods("release"); !slices.Equal(pods, []string{"release-0", "release-3"}) {
			return fmt.Errorf("the pods are %q", pods)
		}
		return nil
	})
	p.stop() // what has ended is on record: another controller neither repeats nor loses it
	p.control(nil, tasks)
	tasks.say(p.namespace, "release", well, well, well, badly)
	b := p.reaches("release", v1alpha1.PhaseFailed)
	if *b.Status.TaskStats != (v1alpha1.TaskStats{Succeed: 3, Failed: 1}) ||
		b.Status.Reason != v1alpha1.ReasonEntrypointExited ||
		!strings.Contains(b.Status.Message, "sandbox 3: exit code 3") ||
		len(p.pods("release")) > 0 {
		t.Errorf("%+v", b.Status)
	}
}

// TestLostExecutor: a task ends with its executor's container, when that is not started again.
func TestLostExecutor(t *testing.T) {
	p := newPlace(t)
	tasks := new(script)
	p.control(nil, tasks)
	b := p.batch("b", 3)
	withTasks(b)
	b.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	p.must(p.Create(t.Context(), b))
	p.has("b", "there", func(b *v1alpha1.BatchSandbox) bool { return b.Status.Allocated == 3 })
	up, unknown := batch.TaskState{Phase: batch.TaskRunning, Ready: true},
		batch.TaskState{Phase: batch.TaskUnknown}
	tasks.say(p.namespace, "b", up, up, up)
	p.has("b", "running", running(3))
	for number, code := range []int32{0, 1} { // the second is started again
		status := p.pod(fmt.Sprintf("b-%d", number)).Status
		for i := range status.ContainerStatuses {
			if c := &status.ContainerStatuses[i]; c.Name == v1alpha1.ContainerTaskExecutor {
				c.State = corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
			}
		}
		p.show(fmt.Sprintf("b-%d", number), status, false)
	}
	tasks.say(p.namespace, "b", unknown, unknown, up)
	b = p.has("b", "without a task", func(b *v1alpha1.BatchSandbox) bool {
		return *b.Status.TaskStats == v1alpha1.TaskStats{Failed: 1, Unknown: 1, Running: 1}
	})
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionDegraded); c == nil ||
		c.Reason != "EXECUTOR_LOST" || b.Status.Outcomes != "f" {
		t.Errorf("outcomes %q, condition %+v", b.Status.Outcomes, c)
	}
}

// TestTasksEndBeforePodsGo: no task is sent to a pod that is given back, whatever it is given back
// for.
func TestTasksEndBeforePodsGo(t *testing.T) {
	p := newPlace(t)
	tasks, wrong := new(script), make(chan string, 10)
	pools := &heap{releasing: func(b *v1alpha1.BatchSandbox, shards []int) {
		if tasks.follows(b, shards) {
			wrong <- b.Name
		}
	}}
	p.ahead.Store(int64(time.Hour))
	p.control(pools, tasks)
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Name: "warm", Namespace: p.namespace}}
	withTask := p.batch("x", 1)
	withTasks(withTask)
	pool.Spec.Template = withTask.Spec.Template
	p.must(p.Create(t.Context(), pool))
	up := batch.TaskState{Phase: batch.TaskRunning, Ready: true}
	for name, end := range map[string]func(*v1alpha1.BatchSandbox){
		"deleted": func(b *v1alpha1.BatchSandbox) { p.must(p.Delete(t.Context(), b)) },
		"stopped": func(b *v1alpha1.BatchSandbox) {
			p.change(b.Name, func(b *v1alpha1.BatchSandbox) {
				b.Annotations[v1alpha1.AnnotationStop] = v1alpha1.ReasonUserDelete
			})
		},
		"overdue": nil,
	} {
		pools.stock(p, name, 1)
		b := p.batch(name, 1)
		b.Spec.Template, b.Spec.PoolRef, b.Spec.TaskTemplate = nil, "warm", withTask.Spec.TaskTemplate
		if end == nil {
			b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](1)
		}
		p.must(p.Create(t.Context(), b))
		if end != nil {
			tasks.say(p.namespace, name, up)
			end(p.has(name, "running", running(1)))
		}
		p.losesWarmPod(name)
	}
	p.stop()
	close(wrong)
	for name := range wrong {
		t.Errorf("the pod of the batch %s was given back while its task was followed", name)
	}
}

// TestPoolWrites: what a batch costs the API server does not follow its size.
func TestPoolWrites(t *testing.T) {
	p := newPlace(t)
	pools := new(heap)
	p.control(pools, nil)
	cost := make(map[int32]int64)
	for _, size := range []int32{2, 40} {
		name := fmt.Sprintf("b%d", size)
		pools.stock(p, name, int(size))
		before := p.writes.Load()
		b := p.batch(name, size)
		b.Spec.Template, b.Spec.PoolRef = nil, "warm"
		p.must(p.Create(t.Context(), b))
		b = p.has(name, "running", running(size))
		cost[size] = p.writes.Load() - before
		if b.Status.Allocated != size || len(b.Status.Addresses) != int(size) ||
			history(b) != "Pending Running" {
			t.Errorf("history %q, status %+v", history(b), b.Status)
		}
	}
	t.Logf("writes by size: %v", cost)
	if cost[40] > 4 { // the allocation and the status; a conflict repeats one of them
		t.Errorf("writes by size: %v", cost)
	}

	// Scaled down, one gone by foreign hand, ended.
	p.change("b40", func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = 3 })
	p.has("b40", "scaled down", running(3))
	p.must(p.Delete(t.Context(), p.pod("warm-b40-1")))
	b := p.has("b40", "degraded",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Outcomes == "-F" })
	p.eventually(func() error {
		b = p.has("b40", "there", func(*v1alpha1.BatchSandbox) bool { return true })
		if a, err := b.Allocation(); err != nil ||
			!slices.Equal(a.Pods, []string{"warm-b40-0", "", "warm-b40-2"}) {
			return fmt.Errorf("the allocation is %+v (%v)", a, err)
		}
		return nil
	})
	p.must(p.Delete(t.Context(), b))
	p.isGone("b40")
	p.must(p.Delete(t.Context(),
		&v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "b2"}}))
	p.isGone("b2")
	p.eventually(func() error {
		var pods corev1.PodList
		if err := p.List(t.Context(), &pods, client.InNamespace(p.namespace)); err != nil ||
			len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are left (%v)", len(pods.Items), err)
		}
		return nil
	})
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

func TestPoolIsMissing(t *testing.T) {
	p := newPlace(t)
	pools := &heap{err: v1alpha1.ErrNoPool}
	p.control(pools, nil)
	b := p.batch("b", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "cold"
	p.must(p.Create(t.Context(), b))
	p.has("b", "waiting", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Reason == v1alpha1.ReasonPoolNotFound &&
			strings.Contains(b.Status.Message, "no Pool cold")
	})
	pools.mu.Lock()
	pools.err = nil
	pools.mu.Unlock()
	p.has("b", "waiting for pods",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Reason == v1alpha1.ReasonResourceLimit })
	p.change("b",
		func(b *v1alpha1.BatchSandbox) { b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](1) })
	if b := p.reaches("b", v1alpha1.PhaseFailed); b.Status.Reason != v1alpha1.ReasonResourceLimit {
		t.Errorf("%+v", b.Status)
	}

	// So does one that the pool gives nothing for a cause that may pass.
	pools.mu.Lock()
	pools.err = errors.New("the ledger cannot be written")
	pools.mu.Unlock()
	b = p.batch("unwritten", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "cold"
	b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](60)
	p.must(p.Create(t.Context(), b))
	p.reaches("unwritten", v1alpha1.PhasePending)
	p.later(2*time.Minute, "unwritten")
	b = p.reaches("unwritten", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonProvisionTimeout ||
		!strings.Contains(b.Status.Message, "the ledger cannot be written") {
		t.Errorf("%+v", b.Status)
	}

	// One whose annotations cannot take the names fails at once.
	pools.mu.Lock()
	pools.err = fmt.Errorf("%w: 300000 bytes", v1alpha1.ErrTooLarge)
	pools.mu.Unlock()
	b = p.batch("full", 1)
	b.Spec.Template, b.Spec.PoolRef = nil, "cold"
	p.must(p.Create(t.Context(), b))
	b = p.reaches("full", v1alpha1.PhaseFailed)
	if b.Status.Reason != v1alpha1.ReasonResourceLimit ||
		!strings.Contains(b.Status.Message, "300000 bytes") ||
		!meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionInvalid) {
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
