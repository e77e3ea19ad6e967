package batch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TrimPod is the transformation of pods in the manager's cache: it drops what no controller reads,
// which is most of a pod. The controller writes the difference of two such pods, so that the API
// server's copy keeps these fields.
func TrimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	pod.ManagedFields = nil
	spec := &pod.Spec
	spec.Tolerations, spec.Affinity, spec.TopologySpreadConstraints, spec.NodeSelector = nil, nil, nil, nil
	spec.HostAliases, spec.DNSConfig, spec.ImagePullSecrets, spec.ReadinessGates = nil, nil, nil, nil
	spec.SecurityContext, spec.Overhead, spec.SchedulingGates = nil, nil, nil
	spec.Volumes = trimVolumes(spec.Volumes)
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			trimContainer(&list[i])
		}
	}
	status := &pod.Status
	status.HostIPs, status.PodIPs, status.ResourceClaimStatuses = nil, nil, nil
	for _, list := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range list {
			list[i].VolumeMounts, list[i].Resources, list[i].AllocatedResources = nil, nil, nil
			list[i].User, list[i].AllocatedResourcesStatus = nil, nil
		}
	}
	return pod, nil
}

// trimContainer leaves the name, the image, whether it is a sidecar, and the variable with execd's
// token.
func trimContainer(c *corev1.Container) {
	var env []corev1.EnvVar
	for _, variable := range c.Env {
		if variable.Name == v1alpha1.EnvExecdToken {
			env = append(env, variable)
		}
	}
	*c = corev1.Container{Name: c.Name, Image: c.Image, RestartPolicy: c.RestartPolicy, Env: env}
}

// trimVolumes leaves the first volume that may keep a pod from starting, which lacksNetwork looks
// for.
func trimVolumes(volumes []corev1.Volume) []corev1.Volume {
	i := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.EmptyDir == nil })
	if i < 0 {
		return nil
	}
	return []corev1.Volume{{Name: volumes[i].Name}}
}

// TrimBatch is the transformation of BatchSandboxes in the manager's cache: of those that have
// ended nothing is read but what it takes to end their pods and to remove them in time, and of one
// whose only sandbox has its pod neither the template nor what others have annotated.
func TrimBatch(object any) (any, error) {
	b, ok := object.(*v1alpha1.BatchSandbox)
	if !ok {
		return object, nil
	}
	b.ManagedFields = nil
	if !b.Status.Phase.Finished() {
		if b.Spec.PoolRef == "" && b.Spec.Replicas == 1 && b.Spec.TaskTemplate == nil && known(b, 0) {
			b.Spec.Template, b.Spec.ShardPatches, b.Labels = nil, nil, nil
			kept := make(map[string]string)
			for _, name := range []string{v1alpha1.AnnotationStop, v1alpha1.AnnotationTimedOut} {
				if value := b.Annotations[name]; value != "" {
					kept[name] = value
				}
			}
			if b.Annotations = nil; len(kept) > 0 {
				b.Annotations = kept
			}
		}
		return b, nil
	}
	kept := &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{
			Name: b.Name, Namespace: b.Namespace, UID: b.UID, ResourceVersion: b.ResourceVersion,
			Generation: b.Generation, CreationTimestamp: b.CreationTimestamp,
			DeletionTimestamp: b.DeletionTimestamp, Finalizers: b.Finalizers,
		},
		Spec: v1alpha1.BatchSandboxSpec{
			Replicas: b.Spec.Replicas, PoolRef: b.Spec.PoolRef,
			TTLSecondsAfterFinished: b.Spec.TTLSecondsAfterFinished,
		},
		Status: v1alpha1.BatchSandboxStatus{
			Phase: b.Status.Phase, FinishedAt: b.Status.FinishedAt, Replicas: b.Status.Replicas,
			Outcomes: b.Status.Outcomes, Addresses: b.Status.Addresses,
		},
	}
	if text, ok := b.Annotations[v1alpha1.AnnotationAllocation]; ok {
		kept.Annotations = map[string]string{v1alpha1.AnnotationAllocation: text}
	}
	if expired(&b.Status) {
		kept.Status.History = []v1alpha1.PhaseChange{{
			Phase: v1alpha1.PhaseStopping, Reason: v1alpha1.ReasonExpired,
		}}
	}
	return kept, nil
}
