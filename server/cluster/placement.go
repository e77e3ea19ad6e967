package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Placement says on which nodes, and as what, the pods of sandboxes with an image of their own run. Those of Pools have what the Pool's
// template says.
type Placement struct {
	// RuntimeClass and PriorityClass are names of such objects of the cluster; empty means its defaults.
	RuntimeClass, PriorityClass string
	// NodeSelector has labels that a node must have.
	NodeSelector map[string]string
	// Tolerations let the pods onto nodes with taints.
	Tolerations []Toleration
	// EphemeralStorage is how much a sandbox may write, as Kubernetes writes quantities, requested and limited alike; empty means no limit.
	EphemeralStorage string
}

// Toleration is one of a pod, with the meanings that Kubernetes gives its fields.
type Toleration struct {
	Key, Operator, Value, Effect string
	Seconds                      *int64 // nil means for ever
}

// check returns an error unless the quantity is one.
func (p Placement) check() error {
	if p.EphemeralStorage == "" {
		return nil
	}
	_, err := resource.ParseQuantity(p.EphemeralStorage)
	return err
}

// apply changes a pod whose first container is the sandbox's. The placement has been checked.
func (p Placement) apply(pod *corev1.PodSpec) {
	if p.RuntimeClass != "" {
		pod.RuntimeClassName = &p.RuntimeClass
	}
	pod.PriorityClassName, pod.NodeSelector = p.PriorityClass, p.NodeSelector
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
