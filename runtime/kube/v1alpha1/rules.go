package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// CheckTaskPod returns an error that names the rule which a pod's template breaks that tasks are to
// run in (lifecycle document, "Cluster resources"): shareProcessNamespace, and a container named
// task-executor with the capability SYS_PTRACE added.
func CheckTaskPod(template *corev1.PodTemplateSpec) error {
	spec := &template.Spec
	if spec.ShareProcessNamespace == nil || !*spec.ShareProcessNamespace {
		return errors.New("template.spec.shareProcessNamespace must be true for tasks")
	}
	executor := TaskExecutor(spec)
	if executor == nil {
		return fmt.Errorf("template.spec.containers must have one named %s for tasks", ContainerTaskExecutor)
	}
	if c := executor.SecurityContext; c == nil || c.Capabilities == nil || !slices.Contains(c.Capabilities.Add, "SYS_PTRACE") {
		return fmt.Errorf("container %s must have SYS_PTRACE in securityContext.capabilities.add", ContainerTaskExecutor)
	}
	return nil
}

// Confine gives a pod that runs foreign code no token for the API server, unless its template asks
// for one.
func Confine(pod *corev1.PodSpec) {
	if pod.AutomountServiceAccountToken == nil {
		pod.AutomountServiceAccountToken = new(bool)
	}
}

// UsesTasks reports whether a pod's template is meant for tasks: it has a container named
// task-executor, so that CheckTaskPod must hold.
func UsesTasks(template *corev1.PodTemplateSpec) bool { return TaskExecutor(&template.Spec) != nil }

// TaskExecutor returns the task-executor's container of a pod, nil when there is none. It may be an
// init container that restarts always, which is a sidecar.
func TaskExecutor(spec *corev1.PodSpec) *corev1.Container {
	for i := range spec.Containers {
		if spec.Containers[i].Name == ContainerTaskExecutor {
			return &spec.Containers[i]
		}
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.Name == ContainerTaskExecutor && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return c
		}
	}
	return nil
}

// Claims returns the names of the PersistentVolumeClaims that a pod mounts.
func Claims(spec *corev1.PodSpec) []string {
	var names []string
	for i := range spec.Volumes {
		if claim := spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			names = append(names, claim.ClaimName)
		}
	}
	return names
}

// Provides returns the hash of what the lifecycle service compares of a Pool's template with a request
// for a sandbox: image and limits of the sandbox's container, which is the first one that is not the
// task-executor's, the limits of that one, the RuntimeClass, and the claims.
func Provides(template *corev1.PodTemplateSpec) string {
	var compared struct {
		Image              string
		Limits, TaskLimits corev1.ResourceList
		RuntimeClass       *string
		Claims             []string `json:",omitempty"`
	}
	compared.Claims = Claims(&template.Spec)
	compared.RuntimeClass = template.Spec.RuntimeClassName
	main := slices.IndexFunc(template.Spec.Containers,
		func(c corev1.Container) bool { return c.Name != ContainerTaskExecutor })
	if main >= 0 {
		compared.Image = template.Spec.Containers[main].Image
		compared.Limits = template.Spec.Containers[main].Resources.Limits
	}
	if executor := TaskExecutor(&template.Spec); executor != nil {
		compared.TaskLimits = executor.Resources.Limits
	}
	text, err := json.Marshal(compared)
	if err != nil {
		panic(err) // it came as JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
