package cluster

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// fits returns an error of KindInvalid, which names the field and the rule, unless a pod of a pool
// can become what the client asks for. It also returns the limits that it must be given first.
func fits(pool *v1alpha1.Pool, spec lifecycle.Spec, class lifecycle.RuntimeClass, resizes func() (bool, error)) (corev1.ResourceList, error) {
	template := pool.Spec.Template
	if template == nil {
		return nil, lifecycle.Invalidf("extensions.poolRef: Pool %q has no template", pool.Name)
	}
	if err := v1alpha1.CheckClaimPod(template); err != nil {
		return nil, lifecycle.Invalidf("extensions.poolRef: the pods of Pool %q do not wait for a sandbox: spec.%v", pool.Name, err)
	}
	waiting := v1alpha1.WaitingContainer(&template.Spec)
	switch {
	case spec.Image != waiting.Image:
		return nil, lifecycle.Invalidf("image.uri: must be %q, which the pods of Pool %q run", waiting.Image, pool.Name)
	case class.Handler != "" && ptr.Deref(template.Spec.RuntimeClassName, "") != class.Handler:
		return nil, lifecycle.Invalidf("runtimeClass: %q stands for the RuntimeClass %q, and the pods of Pool %q have %q", class.Name, class.Handler, pool.Name,
			ptr.Deref(template.Spec.RuntimeClassName, ""))
	case spec.Auth != nil:
		return nil, lifecycle.Invalidf("image.auth: has no use in Pool %q, whose pods have their image already", pool.Name)
	case len(spec.Volumes) > 0:
		return nil, lifecycle.Invalidf("volumes: the pods of Pool %q exist already, so volumes cannot be added", pool.Name)
	case len(spec.Requests) > 0:
		return nil, lifecycle.Invalidf("resourceRequests: the pods of Pool %q exist already, with what is reserved for them", pool.Name)
	case spec.NetworkPolicy != nil && v1alpha1.EgressSidecar(&template.Spec) == nil:
		return nil, lifecycle.Invalidf("networkPolicy: the pods of Pool %q exist already, without an egress sidecar, and none can be added", pool.Name)
	}
	if err := class.CheckPolicy(spec.NetworkPolicy); err != nil {
		return nil, err
	}
	return fitsLimits(pool.Name, waiting, spec.Resources, resizes)
}

// limitKeys are the keys of resourceLimits by the cluster's names of resources.
var limitKeys = map[corev1.ResourceName]string{corev1.ResourceCPU: "cpu", corev1.ResourceMemory: "memory", resourceGPU: "gpu"}

// poolLimits returns the limits that are asked for, and for the rest those of the container that
// waits, as far as a request could ask for them.
func poolLimits(pool *v1alpha1.Pool, asked lifecycle.ResourceLimits) lifecycle.ResourceLimits {
	limits := lifecycle.ResourceLimits{}
	if template := pool.Spec.Template; template != nil && v1alpha1.CheckClaimPod(template) == nil {
		for name, key := range limitKeys {
			limit, limited := v1alpha1.WaitingContainer(&template.Spec).Resources.Limits[name]
			if text := limitText(key, limit); limited && text != "" {
				limits[key] = text
			}
		}
	}
	maps.Copy(limits, asked)
	return limits
}

// limitText is a quantity as requests write that of the key; empty when they cannot.
func limitText(key string, limit resource.Quantity) string {
	var text string
	switch milli := limit.MilliValue(); {
	case key == "memory":
		text = strconv.FormatInt(limit.Value()>>10, 10) + "Ki"
	case key == "cpu" && milli%1000 != 0:
		text = strconv.FormatInt(milli, 10) + "m"
	default:
		text = strconv.FormatInt(limit.Value(), 10)
	}
	list, err := quantities(lifecycle.ResourceLimits{key: text})
	for _, same := range list {
		if err == nil && same.Cmp(limit) == 0 {
			return text
		}
	}
	return ""
}

// fitsLimits is fits for the limits: those of cpu and memory can be changed where the cluster
// resizes pods.
func fitsLimits(pool string, waiting *corev1.Container, asked lifecycle.ResourceLimits, resizes func() (bool, error)) (corev1.ResourceList, error) {
	wanted, err := requirements(asked, nil)
	if err != nil {
		return nil, err
	}
	others := corev1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(limitKeys)) {
		key := limitKeys[name]
		limit, isAsked := wanted.Limits[name]
		has, isLimited := waiting.Resources.Limits[name]
		switch {
		case !isAsked || isLimited && limit.Cmp(has) == 0:
			continue
		case !isLimited:
			return nil, lifecycle.Invalidf("resourceLimits.%s: the pods of Pool %q have no limit, and none can be added; leave the key out", key, pool)
		case name == resourceGPU:
			return nil, lifecycle.Invalidf("resourceLimits.%s: the pods of Pool %q have %s, which cannot be changed; leave the key out, or ask for just that",
				key, pool, has.String())
		case slices.ContainsFunc(waiting.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
			return p.ResourceName == name && p.RestartPolicy != corev1.NotRequired
		}):
			return nil, lifecycle.Invalidf("resourceLimits.%s: the pods of Pool %q have %s, which cannot be changed, because the resizePolicy of their container restarts it; leave the key out, or ask for just that",
				key, pool, has.String())
		}
		others[name] = limit
		if can, err := resizes(); err != nil {
			return nil, err
		} else if !can {
			return nil, lifecycle.Invalidf("resourceLimits.%s: the pods of Pool %q have %s, and this cluster does not resize pods in place; leave the key out, or ask for just that",
				key, pool, has.String())
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	return others, nil
}

// resizes reports whether the cluster resizes pods in place: Kubernetes 1.33 and newer, unless that
// is switched off.
func (c *Cluster) resizes() (bool, error) {
	if c.canResize.Load() {
		return true, nil
	}
	list, err := c.pods.Discovery().ServerResourcesForGroupVersion("v1")
	if err != nil {
		return false, view.Explain(err)
	}
	can := slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/resize" })
	c.canResize.Store(can)
	return can, nil
}

// policyOfClaim is a network policy as the egress sidecar takes it, empty without one.
func (c *Cluster) policyOfClaim(policy *lifecycle.NetworkPolicy) (string, error) {
	if policy == nil {
		return "", nil
	}
	variables, whole, err := c.NewSidecarClient("").Environment(lifecycle.Sidecar{}, policy)
	if err == nil && !whole {
		err = lifecycle.Invalidf("networkPolicy: is too large for a pod; it must fit into 100 KiB of JSON")
	}
	return variables[variablePolicy], err
}
