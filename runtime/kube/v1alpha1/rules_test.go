package v1alpha1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// TestProvides: what the lifecycle service compares with a request makes a difference, and nothing
// else of a template does.
func TestProvides(t *testing.T) {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: ContainerTaskExecutor, Image: "executor:1"},
			{Name: "main", Image: "main:1"}},
	}}
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	for name, test := range map[string]struct {
		change func(pod *corev1.PodSpec)
		differ bool
	}{
		"image":           {func(pod *corev1.PodSpec) { pod.Containers[1].Image = "main:2" }, true},
		"limits":          {func(pod *corev1.PodSpec) { pod.Containers[1].Resources.Limits = limits }, true},
		"limits of tasks": {func(pod *corev1.PodSpec) { pod.Containers[0].Resources.Limits = limits }, true},
		"RuntimeClass":    {func(pod *corev1.PodSpec) { pod.RuntimeClassName = ptr.To("gvisor") }, true},
		"claim": {func(pod *corev1.PodSpec) {
			pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
		}, true},
		"volume":   {func(pod *corev1.PodSpec) { pod.Volumes = []corev1.Volume{{Name: "scratch"}} }, false},
		"executor": {func(pod *corev1.PodSpec) { pod.Containers[0].Image = "executor:2" }, false},
		"order of containers": {func(pod *corev1.PodSpec) {
			pod.Containers[0], pod.Containers[1] = pod.Containers[1], pod.Containers[0]
		}, false},
	} {
		changed := template.DeepCopy()
		test.change(&changed.Spec)
		if got := Provides(changed) != Provides(template); got != test.differ {
			t.Errorf("another %s: the pods provide something else: %t", name, got)
		}
	}
}
