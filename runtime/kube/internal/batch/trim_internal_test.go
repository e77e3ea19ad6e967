package batch

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// typical returns a sandbox of the service as the API server has it, and its pod.
func typical(number int, phase v1alpha1.Phase) (*v1alpha1.BatchSandbox, *corev1.Pod) {
	name := fmt.Sprintf("00000000-0000-4000-8000-%012d", number)
	container := func(name string) corev1.Container {
		env := []corev1.EnvVar{{Name: v1alpha1.EnvExecdToken, ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{Key: "execd-token"}}}}
		for i := range 10 {
			env = append(env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", i), Value: strings.Repeat("v", 60)})
		}
		limits := corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("512Mi")}
		return corev1.Container{
			Name: name, Image: "registry.example.com/team/image:1.0", Env: env, Command: []string{"/opt/sandbox/execd-init", "--"},
			Args: []string{"sleep", "infinity"}, Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits.DeepCopy()},
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1},
			VolumeMounts:   []corev1.VolumeMount{{Name: "sandbox-execd", MountPath: "/opt/sandbox"}},
		}
	}
	spec := corev1.PodSpec{
		InitContainers: []corev1.Container{container("egress"), container("install-execd")},
		Containers:     []corev1.Container{container("sandbox")},
		Volumes:        []corev1.Volume{{Name: "sandbox-execd", VolumeSource: corev1.VolumeSource{EmptyDir: new(corev1.EmptyDirVolumeSource)}}},
		Tolerations:    []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists"}},
		NodeName:       "node-1",
	}
	now := metav1.Now()
	finished := metav1.NewMicroTime(now.Time)
	b := &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "sandboxes", UID: types.UID(name), ResourceVersion: fmt.Sprint(number + 1),
			CreationTimestamp: now, Finalizers: []string{v1alpha1.Finalizer},
			Annotations: map[string]string{"sandbox.internal/record": strings.Repeat("r", 600), "sandbox.internal/metadata": strings.Repeat("m", 300)},
			Labels:      map[string]string{"app.kubernetes.io/managed-by": "sandbox-server"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "sandbox-server",
				FieldsV1: metav1.NewFieldsV1(`"` + strings.Repeat("f", 2000) + `"`)}},
		},
		Spec: v1alpha1.BatchSandboxSpec{Replicas: 1, Template: &corev1.PodTemplateSpec{Spec: *spec.DeepCopy()},
			TTLSecondsAfterFinished: ptr.To(int32(3600))},
		Status: v1alpha1.BatchSandboxStatus{Phase: phase, Replicas: 1, Addresses: []string{"192.0.2.1"}, Message: strings.Repeat("m", 100), History: []v1alpha1.PhaseChange{
			{Phase: v1alpha1.PhasePending, Time: finished}, {Phase: v1alpha1.PhaseRunning, Time: finished}}},
	}
	if phase.Finished() {
		b.Status.FinishedAt = &finished
		b.Status.History = append(b.Status.History, v1alpha1.PhaseChange{Phase: v1alpha1.PhaseStopping, Reason: v1alpha1.ReasonExpired, Time: finished})
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-0", Namespace: "sandboxes", UID: types.UID(name + "-pod"), ResourceVersion: "2", CreationTimestamp: now,
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelBatch: name, v1alpha1.LabelShard: "0"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b,
				v1alpha1.GroupVersion.WithKind("BatchSandbox"))},
			ManagedFields: b.ManagedFields,
		},
		Spec: spec,
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "192.0.2.1", Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}},
	}
	for _, c := range spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image + "@sha256:" + strings.Repeat("0", 64), ContainerID: "containerd://" + strings.Repeat("0", 64),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return b, pod
}

// decoded returns an object as a watch delivers it: with strings of its own.
func decoded[T any](t *testing.T, object *T) *T {
	t.Helper()
	text, err := json.Marshal(object)
	copied := new(T)
	if err == nil {
		err = json.Unmarshal(text, copied)
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// heldBy returns how many bytes each of many objects takes in memory.
func heldBy(t *testing.T, make func(number int) []any) int {
	t.Helper()
	const many = 500
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return memory.HeapAlloc
	}
	before := inUse()
	held := [][]any{}
	for number := range many {
		held = append(held, make(number))
	}
	bytes := int(inUse()-before) / many
	runtime.KeepAlive(held)
	return bytes
}

// TestCacheIsSmall: a sandbox takes at most 12 KB of the controller's cache while it lives, and its
// record 2 KB once it has ended.
func TestCacheIsSmall(t *testing.T) {
	trimmed := func(object any, trim func(any) (any, error)) any {
		kept, err := trim(object)
		if err != nil {
			t.Fatal(err)
		}
		return kept
	}
	living := heldBy(t, func(number int) []any {
		b, pod := typical(number, v1alpha1.PhaseRunning)
		return []any{trimmed(decoded(t, b), TrimBatch), trimmed(decoded(t, pod), TrimPod)}
	})
	if living > 12<<10 {
		t.Errorf("a sandbox that lives takes %d bytes", living)
	}
	ended := heldBy(t, func(number int) []any {
		b, _ := typical(number, v1alpha1.PhaseTerminated)
		return []any{trimmed(decoded(t, b), TrimBatch)}
	})
	if ended > 2<<10 {
		t.Errorf("the record of a sandbox that has ended takes %d bytes", ended)
	}
	t.Logf("%d bytes while it lives, %d after its end", living, ended)
}

// TestTrimmedDecidesAlike: what the controllers decide by is the same of what the cache keeps.
func TestTrimmedDecidesAlike(t *testing.T) {
	b, pod := typical(1, v1alpha1.PhaseTerminated)
	whole := observe(pod.DeepCopy())
	kept, err := TrimPod(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got := observe(kept.(*corev1.Pod))
	whole.pod, got.pod = nil, nil
	if got != whole {
		t.Errorf("the pod is %+v, and as the cache has it %+v", whole, got)
	}
	record, err := TrimBatch(b.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if trimmed := record.(*v1alpha1.BatchSandbox); !expired(&trimmed.Status) || !hasFinalizer(trimmed) ||
		*trimmed.Spec.TTLSecondsAfterFinished != 3600 || !trimmed.Status.FinishedAt.Equal(b.Status.FinishedAt) {
		t.Errorf("the record is kept as %+v", trimmed)
	}
	// Nothing that was dropped is dropped from the API server's.
	next := kept.(*corev1.Pod).DeepCopy()
	next.Spec.ActiveDeadlineSeconds = ptr.To(int64(1))
	patch, err := client.MergeFrom(kept.(*corev1.Pod)).Data(next)
	if want := `{"spec":{"activeDeadlineSeconds":1}}`; err != nil || string(patch) != want {
		t.Errorf("a change is written as %s (%v), want %s", patch, err, want)
	}
}
