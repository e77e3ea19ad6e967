package claim

import (
	"context"
	"math/big"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// resize gives the container of the pod the limits of the claim, and returns what is known of that
// then. It sets a.resized once the node has reported that they hold.
func (a *attempt) resize(ctx context.Context) batch.ClaimState {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	waits := batch.ClaimState{Message: "its pod is being resized"}
	var pod corev1.Pod
	if err := a.live.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: a.name}, &pod); err != nil {
		return waits // a pod that is gone is found to be so elsewhere
	}
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == a.claim.Container })
	if pod.UID != a.pod || i < 0 {
		return failed("its pod has no container %s", a.claim.Container)
	}
	changed := pod.DeepCopy()
	if fit(&changed.Spec.Containers[i].Resources, a.claim.Limits) {
		err := a.pods.Patch(ctx, changed, client.StrategicMergeFrom(&pod))
		switch {
		case err == nil:
		case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
			return failed("its limits are not those of the Pool, and the cluster does not resize pods")
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
			state := failed("its pod cannot be resized: %v", err)
			state.Reason = v1alpha1.ReasonResourceLimit
			return state
		default:
			waits.Message += ": " + err.Error()
		}
		return waits
	}
	for _, condition := range pod.Status.Conditions {
		switch {
		case condition.Status != corev1.ConditionTrue:
		case condition.Type == corev1.PodResizePending && condition.Reason == corev1.PodReasonInfeasible:
			state := failed("its node cannot resize the pod: %s", condition.Message)
			state.Reason = v1alpha1.ReasonResourceLimit
			return state
		case condition.Type == corev1.PodResizePending, condition.Type == corev1.PodResizeInProgress:
			if condition.Message != "" {
				waits.Message += ": " + condition.Message
			}
			return waits
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == a.claim.Container && status.Resources != nil && holds(status.Resources.Limits, a.claim.Limits) {
			a.resized = true
		}
	}
	return waits
}

// holds reports whether limits have those that are wanted.
func holds(limits, wanted corev1.ResourceList) bool {
	for name, want := range wanted {
		if has, ok := limits[name]; !ok || has.Cmp(want) != 0 {
			return false
		}
	}
	return true
}

// fit changes resources to the limits that are wanted, and each request in the same proportion, so
// that the pod stays in its quality-of-service class, which cannot change. It reports whether that
// was a change.
func fit(resources *corev1.ResourceRequirements, wanted corev1.ResourceList) bool {
	if holds(resources.Limits, wanted) {
		return false
	}
	for name, want := range wanted {
		limit := resources.Limits[name]
		if request, ok := resources.Requests[name]; ok {
			resources.Requests[name] = proportion(name, request, limit, want)
		}
		if resources.Limits == nil {
			resources.Limits = corev1.ResourceList{}
		}
		resources.Limits[name] = want
	}
	return true
}

// proportion returns what is to want as request is to limit, rounded down: less stays less.
func proportion(name corev1.ResourceName, request, limit, want resource.Quantity) resource.Quantity {
	if request.Cmp(limit) == 0 {
		return want
	}
	value, format := (*resource.Quantity).Value, resource.BinarySI
	if name == corev1.ResourceCPU {
		value, format = (*resource.Quantity).MilliValue, resource.DecimalSI
	}
	if value(&limit) == 0 {
		return request
	}
	part := new(big.Int).Mul(big.NewInt(value(&want)), big.NewInt(value(&request)))
	part.Div(part, big.NewInt(value(&limit)))
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(part.Int64(), format)
	}
	return *resource.NewQuantity(part.Int64(), format)
}
