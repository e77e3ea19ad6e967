package v1alpha1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// waiting is the template of a pod that waits for a sandbox.
func waiting() *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{
			{Name: "main", Image: "main:1", Command: []string{"/opt/sandbox/execd-init", "await"}},
			{Name: "helper", Image: "helper:1"},
		},
	}}
}

// TestProvides: what the lifecycle service compares with a request makes a difference, and nothing
// else of a template does.
func TestProvides(t *testing.T) {
	template := waiting()
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	for name, test := range map[string]struct {
		change func(pod *corev1.PodSpec)
		differ bool
	}{
		"name":         {func(pod *corev1.PodSpec) { pod.Containers[0].Name = "other" }, true},
		"image":        {func(pod *corev1.PodSpec) { pod.Containers[0].Image = "main:2" }, true},
		"limits":       {func(pod *corev1.PodSpec) { pod.Containers[0].Resources.Limits = limits }, true},
		"RuntimeClass": {func(pod *corev1.PodSpec) { pod.RuntimeClassName = ptr.To("gvisor") }, true},
		"way to resize": {func(pod *corev1.PodSpec) {
			pod.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: corev1.RestartContainer}}
		}, true},
		"sidecar": {func(pod *corev1.PodSpec) {
			pod.InitContainers = []corev1.Container{{Name: ContainerEgress, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		}, true},
		"claim": {func(pod *corev1.PodSpec) {
			pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
		}, true},
		"volume": {func(pod *corev1.PodSpec) { pod.Volumes = []corev1.Volume{{Name: "scratch"}} }, false},
		"helper": {func(pod *corev1.PodSpec) { pod.Containers[1].Image = "helper:2" }, false},
	} {
		changed := template.DeepCopy()
		test.change(&changed.Spec)
		if got := Provides(changed) != Provides(template); got != test.differ {
			t.Errorf("another %s: the pods provide something else: %t", name, got)
		}
	}
}

// TestCheckClaimPod: the error names the rule that the pods of a Pool break.
func TestCheckClaimPod(t *testing.T) {
	for says, change := range map[string]func(*corev1.PodTemplateSpec){
		"":                            func(*corev1.PodTemplateSpec) {},
		"execd-init":                  func(p *corev1.PodTemplateSpec) { p.Spec.Containers[0].Command = []string{"sleep", "infinity"} },
		"restartPolicy must be Never": func(p *corev1.PodTemplateSpec) { p.Spec.RestartPolicy = "" },
		"none named task-executor":    func(p *corev1.PodTemplateSpec) { p.Spec.Containers[1].Name = ContainerTaskExecutor },
		"the waiting container main fir": func(p *corev1.PodTemplateSpec) {
			p.Spec.Containers[0], p.Spec.Containers[1] = p.Spec.Containers[1], p.Spec.Containers[0]
		},
		"metadata.annotations must name": func(p *corev1.PodTemplateSpec) { p.Annotations = map[string]string{AnnotationMainContainer: "helper"} },
	} {
		template := waiting()
		change(template)
		if err := CheckClaimPod(template); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("want %q: %v", says, err)
		}
	}
	second := waiting()
	second.Spec.Containers[0], second.Spec.Containers[1] = second.Spec.Containers[1], second.Spec.Containers[0]
	second.Annotations = map[string]string{AnnotationMainContainer: "main"}
	if err := CheckClaimPod(second); err != nil {
		t.Errorf("a second container that is named the main one: %v", err)
	}
}

// TestClaimPodBesideSidecar: what could pass by the egress sidecar is no sandbox with a policy.
func TestClaimPodBesideSidecar(t *testing.T) {
	for name, test := range map[string]struct {
		context *corev1.SecurityContext
		allowed bool
	}{
		"nothing":    {nil, false},
		"drops":      {&corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"NET_RAW"}}}, true},
		"drops all":  {&corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}, true},
		"adds":       {&corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}}, false},
		"privileged": {&corev1.SecurityContext{Privileged: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}, false},
	} {
		template := waiting()
		template.Spec.InitContainers = []corev1.Container{{Name: ContainerEgress, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		template.Spec.Containers[0].SecurityContext = test.context
		if err := CheckClaimPod(template); (err == nil) != test.allowed {
			t.Errorf("%s: %v", name, err)
		}
	}
}
