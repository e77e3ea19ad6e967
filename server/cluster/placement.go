package cluster

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Placement says on which nodes, and as what, the pods of sandboxes with an image of their own run.
// Those of Pools have what the Pool's template says.
type Placement struct {
	// RuntimeClass and PriorityClass are names of such objects of the cluster; empty means its
	// defaults.
	RuntimeClass, PriorityClass string
	// NodeSelector has labels that a node must have.
	NodeSelector map[string]string
	// Tolerations let the pods onto nodes with taints.
	Tolerations []Toleration
	// EphemeralStorage is how much a sandbox may write, as Kubernetes writes quantities, requested
	// and limited alike; empty means no limit.
	EphemeralStorage string
	// ServiceAccount is the name of the pods' account, whose token they do not get; empty means the
	// namespace's default.
	ServiceAccount string
	// Labels and Annotations are added to the pods.
	Labels, Annotations map[string]string
	// UserNamespaces runs each pod in a user namespace of its own.
	UserNamespaces bool
	// RunAsUser is the user of the sandboxes' programs, without capabilities and without a way to
	// more rights, as the level restricted of the Pod Security Standards demands; 0 means the
	// image's.
	RunAsUser int64
	// Affinity is that of the pods, as JSON; empty means none.
	Affinity string
	// CPURequestPercent and MemoryRequestPercent are how much of a sandbox's limits its pod
	// requests; 0 means 100.
	CPURequestPercent, MemoryRequestPercent int
}

// Toleration is one of a pod, with the meanings that Kubernetes gives its fields.
type Toleration struct {
	Key, Operator, Value, Effect string
	Seconds                      *int64 // nil means for ever
}

// check returns an error that names the key, unless the quantity and the affinity are such.
func (p Placement) check() error {
	if p.EphemeralStorage != "" {
		if _, err := resource.ParseQuantity(p.EphemeralStorage); err != nil {
			return fmt.Errorf("kubernetes.ephemeral_storage: %w", err)
		}
	}
	if _, err := p.affinity(); err != nil {
		return fmt.Errorf("kubernetes.affinity: %w", err)
	}
	return nil
}

func (p Placement) affinity() (*corev1.Affinity, error) {
	if p.Affinity == "" {
		return nil, nil
	}
	affinity := new(corev1.Affinity)
	decoder := json.NewDecoder(strings.NewReader(p.Affinity))
	decoder.DisallowUnknownFields()
	return affinity, decoder.Decode(affinity)
}

// request lowers what a container requests to its part of the limits.
func (p Placement) request(resources *corev1.ResourceRequirements) {
	for name, percent := range map[corev1.ResourceName]int{corev1.ResourceCPU: p.CPURequestPercent, corev1.ResourceMemory: p.MemoryRequestPercent} {
		limit, limited := resources.Limits[name]
		if !limited || percent == 0 {
			continue
		}
		part := resource.NewQuantity(limit.Value()/100*int64(percent)+limit.Value()%100*int64(percent)/100, resource.BinarySI)
		if name == corev1.ResourceCPU {
			part = resource.NewMilliQuantity(max(limit.MilliValue()*int64(percent)/100, 1), resource.DecimalSI)
		}
		if requested := resources.Requests[name]; part.Cmp(requested) < 0 {
			resources.Requests[name] = *part
		}
	}
}

// apply changes a pod whose first container is the sandbox's. The placement has been checked.
func (p Placement) apply(pod *corev1.PodSpec) {
	if p.RuntimeClass != "" {
		pod.RuntimeClassName = &p.RuntimeClass
	}
	pod.PriorityClassName, pod.NodeSelector, pod.ServiceAccountName = p.PriorityClass, p.NodeSelector, p.ServiceAccount
	if p.UserNamespaces {
		pod.HostUsers = new(bool)
	}
	if p.RunAsUser != 0 {
		p.restrict(pod)
	}
	pod.Affinity, _ = p.affinity()
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			p.request(&containers[i].Resources)
		}
	}
	for _, t := range p.Tolerations {
		pod.Tolerations = append(pod.Tolerations, corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.Seconds,
		})
	}
	if p.EphemeralStorage == "" {
		return
	}
	resources := &pod.Containers[0].Resources
	for _, list := range []*corev1.ResourceList{&resources.Requests, &resources.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[corev1.ResourceEphemeralStorage] = resource.MustParse(p.EphemeralStorage)
	}
}

// restrict makes a pod one of the level restricted of the Pod Security Standards, but for a
// sidecar, which is added later. The user gets the volumes that can be given to a group.
func (p Placement) restrict(pod *corev1.PodSpec) {
	pod.SecurityContext.FSGroup, pod.SecurityContext.FSGroupChangePolicy = &p.RunAsUser, new(corev1.FSGroupChangeOnRootMismatch)
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			context := containers[i].SecurityContext
			context.RunAsUser, context.RunAsGroup, context.RunAsNonRoot = &p.RunAsUser, &p.RunAsUser, new(true)
			context.AllowPrivilegeEscalation = new(bool)
			context.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
		}
	}
}
