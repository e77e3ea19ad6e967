package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// fits returns an error of KindInvalid, which names the field and the rule, unless a pod of a pool can become what the client asks for.
func fits(pool *v1alpha1.Pool, spec lifecycle.Spec, class lifecycle.RuntimeClass) error {
	template := pool.Spec.Template
	if template == nil {
		return lifecycle.Invalidf("extensions.poolRef: Pool %q has no template", pool.Name)
	}
	if err := v1alpha1.CheckClaimPod(template); err != nil {
		return lifecycle.Invalidf("extensions.poolRef: the pods of Pool %q do not wait for a sandbox: spec.%v", pool.Name, err)
	}
	waiting := v1alpha1.WaitingContainer(&template.Spec)
	switch {
	case spec.Image != waiting.Image:
		return lifecycle.Invalidf("image.uri: must be %q, which the pods of Pool %q run", waiting.Image, pool.Name)
	case class.Handler != "" && ptr.Deref(template.Spec.RuntimeClassName, "") != class.Handler:
		return lifecycle.Invalidf("runtimeClass: %q stands for the RuntimeClass %q, and the pods of Pool %q have %q", class.Name, class.Handler, pool.Name,
			ptr.Deref(template.Spec.RuntimeClassName, ""))
	case spec.Auth != nil:
		return lifecycle.Invalidf("image.auth: has no use in Pool %q, whose pods have their image already", pool.Name)
	case len(spec.Volumes) > 0:
		return lifecycle.Invalidf("volumes: the pods of Pool %q exist already, so volumes cannot be added", pool.Name)
	case len(spec.Requests) > 0:
		return lifecycle.Invalidf("resourceRequests: the pods of Pool %q exist already, with what is reserved for them", pool.Name)
	case spec.NetworkPolicy != nil:
		return lifecycle.Invalidf("networkPolicy: the pods of Pool %q exist already, so an egress sidecar cannot be added", pool.Name)
	}
	return fitsLimits(pool.Name, waiting, spec.Resources)
}

// limitKeys are the keys of resourceLimits by the cluster's names of resources.
var limitKeys = map[corev1.ResourceName]string{corev1.ResourceCPU: "cpu", corev1.ResourceMemory: "memory", resourceGPU: "gpu"}

// fitsLimits is fits for the limits.
func fitsLimits(pool string, waiting *corev1.Container, asked lifecycle.ResourceLimits) error {
	wanted, err := requirements(asked, nil)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(limitKeys)) {
		limit, isAsked := wanted.Limits[name]
		has, isLimited := waiting.Resources.Limits[name]
		switch {
		case !isAsked || isLimited && limit.Cmp(has) == 0:
		case !isLimited:
			return lifecycle.Invalidf("resourceLimits.%s: the pods of Pool %q have no limit, and none can be added; leave the key out", limitKeys[name], pool)
		default:
			return lifecycle.Invalidf("resourceLimits.%s: the pods of Pool %q have %s; leave the key out, or ask for just that", limitKeys[name], pool, has.String())
		}
	}
	return nil
}
