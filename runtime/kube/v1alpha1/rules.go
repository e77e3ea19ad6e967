package v1alpha1

import (
	"crypto/hmac"
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

// waitingCommand is how the command of a container begins that waits for a claim.
var waitingCommand = []string{"/opt/sandbox/execd-init", "await"}

// WaitingContainer returns the container of a pod that waits for a claim: the first one with the
// command "/opt/sandbox/execd-init await". It is nil when there is none.
func WaitingContainer(spec *corev1.PodSpec) *corev1.Container {
	for i := range spec.Containers {
		if command := spec.Containers[i].Command; len(command) >= len(waitingCommand) &&
			slices.Equal(command[:len(waitingCommand)], waitingCommand) {
			return &spec.Containers[i]
		}
	}
	return nil
}

// CheckClaimPod returns an error that names the rule which a pod's template breaks that is to be
// claimed: the main container waits, and is never started again, because no pod takes two claims.
func CheckClaimPod(template *corev1.PodTemplateSpec) error {
	waiting := WaitingContainer(&template.Spec)
	main := template.Annotations[AnnotationMainContainer]
	switch {
	case waiting == nil:
		return fmt.Errorf("template.spec.containers must have one with the command %q, which waits for a sandbox",
			waitingCommand)
	case template.Spec.RestartPolicy != corev1.RestartPolicyNever:
		return errors.New("template.spec.restartPolicy must be Never for pods that wait for a sandbox")
	case UsesTasks(template):
		return fmt.Errorf("template.spec.containers must have none named %s in pods that wait for a sandbox",
			ContainerTaskExecutor)
	case main != "" && main != waiting.Name:
		return fmt.Errorf("template.metadata.annotations must name the waiting container %s in %s",
			waiting.Name, AnnotationMainContainer)
	case main == "" && waiting != &template.Spec.Containers[0]:
		return fmt.Errorf("template.spec.containers must have the waiting container %s first", waiting.Name)
	case EgressSidecar(&template.Spec) != nil && !confined(waiting.SecurityContext):
		return fmt.Errorf("container %s must drop NET_RAW or ALL in securityContext.capabilities, add neither NET_RAW "+
			"nor NET_ADMIN, and not be privileged: it could pass by the egress sidecar", waiting.Name)
	}
	return nil
}

// confined reports whether a container can neither change the rules of the egress sidecar beside it
// nor forge what they go by.
func confined(c *corev1.SecurityContext) bool {
	if c == nil || c.Capabilities == nil || c.Privileged != nil && *c.Privileged {
		return false
	}
	drops := slices.ContainsFunc(c.Capabilities.Drop, func(name corev1.Capability) bool {
		return name == "ALL" || name == "NET_RAW"
	})
	return drops && !slices.ContainsFunc(c.Capabilities.Add, func(name corev1.Capability) bool {
		return name == "ALL" || name == "NET_RAW" || name == "NET_ADMIN"
	})
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

// Provides returns the hash of what the lifecycle service compares of a Pool's template with a
// request for a sandbox: name, image, limits and resizePolicy of the container that waits for one
// (else of the first), whether there is an egress sidecar, the RuntimeClass, and the claims.
func Provides(template *corev1.PodTemplateSpec) string {
	var compared struct {
		Name, Image  string
		Limits       corev1.ResourceList
		Resize       []corev1.ContainerResizePolicy `json:",omitempty"`
		Egress       bool
		RuntimeClass *string
		Claims       []string `json:",omitempty"`
	}
	compared.Claims = Claims(&template.Spec)
	compared.RuntimeClass = template.Spec.RuntimeClassName
	compared.Egress = EgressSidecar(&template.Spec) != nil
	waiting := WaitingContainer(&template.Spec)
	if waiting == nil && len(template.Spec.Containers) > 0 {
		waiting = &template.Spec.Containers[0]
	}
	if waiting != nil {
		compared.Name, compared.Image = waiting.Name, waiting.Image
		compared.Limits, compared.Resize = waiting.Resources.Limits, waiting.ResizePolicy
	}
	text, err := json.Marshal(compared)
	if err != nil {
		panic(err) // it came as JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// EgressSidecar returns the init container of a pod that is the egress sidecar, nil when there is
// none.
func EgressSidecar(spec *corev1.PodSpec) *corev1.Container {
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.Name == ContainerEgress && c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return c
		}
	}
	return nil
}

// SidecarToken returns the token of the egress sidecar in a pod of a Pool, which follows from the
// key of its namespace (EntryExecutorKey) and the name of the pod: those who may read the Secret
// know it.
func SidecarToken(key []byte, namespace, pod string) string {
	sum := hmac.New(sha256.New, key)
	fmt.Fprintf(sum, "sandbox.internal egress v1\x00%s\x00%s", namespace, pod)
	return hex.EncodeToString(sum.Sum(nil))
}
