package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// podName is the name of a sandbox's own pod. It follows from the number, so that it is made only
// once, also by controllers that are killed.
func podName(b *v1alpha1.BatchSandbox, number int) string {
	return fmt.Sprintf("%s-%d", b.Name, number)
}

// build makes the pod of a sandbox from the template. Its errors name the field that breaks a rule.
func build(b *v1alpha1.BatchSandbox, number int) (*corev1.Pod, error) {
	if b.Spec.UnknownField != "" {
		return nil, errors.New("spec." + b.Spec.UnknownField)
	}
	template := b.Spec.Template.DeepCopy()
	if number < len(b.Spec.ShardPatches) {
		var err error
		if template, err = patched(template, b.Spec.ShardPatches[number].Raw); err != nil {
			return nil, fmt.Errorf("spec.shardPatches[%d]: %w", number, err)
		}
	}
	if len(template.Spec.Containers) == 0 {
		return nil, errors.New("spec.template.spec.containers: at least one is needed")
	}
	if b.Spec.TaskTemplate != nil {
		if err := v1alpha1.CheckTaskPod(template); err != nil {
			return nil, fmt.Errorf("spec.%w", err)
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        podName(b, number),
			Namespace:   b.Namespace,
			Labels:      template.Labels,
			Annotations: template.Annotations,
			Finalizers:  template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("BatchSandbox")),
			},
		},
		Spec: template.Spec,
	}
	if pod.Labels == nil {
		pod.Labels = make(map[string]string)
	}
	pod.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ManagedBy
	pod.Labels[v1alpha1.LabelBatch] = b.Name
	pod.Labels[v1alpha1.LabelShard] = strconv.Itoa(number)
	v1alpha1.Confine(&pod.Spec)
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.TerminationMessagePolicy == "" {
			// the last lines of its log say how it ended
			c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}
	}
	return pod, nil
}

func patched(template *corev1.PodTemplateSpec, patch []byte) (*corev1.PodTemplateSpec, error) {
	if len(patch) == 0 || string(patch) == "null" {
		return template, nil
	}
	original, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, corev1.PodTemplateSpec{})
	if err != nil {
		return nil, err
	}
	result := new(corev1.PodTemplateSpec)
	if err := v1alpha1.Strictly(merged, result); err != nil {
		return nil, err
	}
	return result, nil
}

// maxReplicas is the maximum of BatchSandboxSpec.Replicas.
const maxReplicas = 10000

// numberOf returns which sandbox a pod is that was made from the batch's template. Labels can be
// written by others, and memory is taken up to the number.
func numberOf(pod metav1.Object) (int, bool) {
	number, err := strconv.Atoi(pod.GetLabels()[v1alpha1.LabelShard])
	return number, err == nil && number >= 0 && number < maxReplicas &&
		pod.GetName() == pod.GetLabels()[v1alpha1.LabelBatch]+"-"+strconv.Itoa(number)
}

// create makes the pods of the numbers, a few at first, so that a template which the API server
// refuses is not refused a thousand times. It returns who has none for what reason. With an error,
// which is among the reasons, another try of everything may help soon.
func (r *reconciler) create(ctx context.Context, b *v1alpha1.BatchSandbox,
	numbers []int) (made int, refused map[int]refusal, failed error) {
	refused = make(map[int]refusal)
	m := r.remember(b)
	m.made = max(m.made, numbers[len(numbers)-1]+1)
	for size := 1; len(numbers) > 0; size = min(2*size, maxParallel) {
		wave := numbers[:min(size, len(numbers))]
		numbers = numbers[len(wave):]
		results := make([]error, len(wave))
		inParallel(len(wave), func(i int) { results[i] = r.createOne(ctx, b, wave[i]) })
		for i, err := range results {
			why, again := classify(err)
			if why == nil {
				made++
				continue
			}
			refused[wave[i]] = *why
			if failed == nil {
				failed = again
			}
			// An API server that has not judged the pod does not take the others either.
			all := again != nil && !apierrors.IsForbidden(again)
			if wave[i] < len(b.Spec.ShardPatches) && !all {
				continue
			}
			// Without a patch the others are the same pod, and the answer would be.
			rest := numbers[:0:0]
			for _, number := range numbers {
				if number < len(b.Spec.ShardPatches) && !all {
					rest = append(rest, number)
				} else {
					refused[number] = *why
				}
			}
			numbers = rest
		}
	}
	return made, refused, failed
}

// invalidTemplate is an error of build.
type invalidTemplate struct{ error }

// foreignPod is the error when a pod of the name exists that is not the batch's.
type foreignPod struct{ error }

func (r *reconciler) createOne(ctx context.Context, b *v1alpha1.BatchSandbox, number int) error {
	pod, err := build(b, number)
	if err != nil {
		return invalidTemplate{err}
	}
	if r.Equip != nil {
		if err := r.Equip(ctx, pod); err != nil {
			return err
		}
	}
	err = r.client.Create(ctx, pod)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing := new(metav1.PartialObjectMetadata)
	existing.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(pod), existing); err != nil {
		return client.IgnoreNotFound(err) // gone again: its event brings us back
	}
	if !metav1.IsControlledBy(existing, b) {
		return foreignPod{fmt.Errorf("a pod %s exists that is not this batch's", pod.Name)}
	}
	return nil // made before, and not in the cache yet
}

// classify returns why there is no pod, nil when there is one, and the error itself where another
// try may help soon.
func classify(err error) (why *refusal, again error) {
	var invalid invalidTemplate
	var foreign foreignPod
	switch {
	case err == nil:
		return nil, nil
	case errors.As(err, &invalid):
		return &refusal{v1alpha1.ReasonInvalidTemplate, err.Error(), true}, nil
	case errors.As(err, &foreign):
		return &refusal{v1alpha1.ReasonContainerError, err.Error(), false}, nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &refusal{v1alpha1.ReasonInvalidTemplate,
			"the API server refuses the pod: " + err.Error(), true}, nil
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return &refusal{v1alpha1.ReasonResourceLimit, err.Error(), neverFits(err.Error())}, nil
	case apierrors.IsForbidden(err) && byRule.MatchString(err.Error()):
		return &refusal{v1alpha1.ReasonInvalidTemplate,
			"the API server refuses the pod: " + err.Error(), true}, nil
	}
	return &refusal{v1alpha1.ReasonProvisioning, "the pod is not made: " + err.Error(), false}, err
}

// byRule matches what the API server says of a pod that breaks a rule of its namespace: a level of
// Pod Security, a LimitRange, or a ResourceQuota for a limit or request that the pod does not have.
var byRule = regexp.MustCompile(`violates PodSecurity|must be less than or equal to|` +
	`(?:maximum|minimum) \S+ usage per |max limit to request ratio per |` +
	`failed quota: .*must specify `)

// inQuota matches the lists of a quota that is exceeded.
var inQuota = regexp.MustCompile(`requested: (\S+), used: \S+, limited: (\S+)`)

// neverFits reports whether a pod asks for more than a quota allows altogether, so that no other
// pod's end makes room for it. It takes what the API server says, which names all resources that
// lack.
func neverFits(text string) bool {
	for _, found := range inQuota.FindAllStringSubmatch(text, -1) {
		limited := quantities(found[2])
		for name, requested := range quantities(found[1]) {
			if limit, ok := limited[name]; ok && requested.Cmp(limit) > 0 {
				return true
			}
		}
	}
	return false
}

// quantities reads NAME=QUANTITY,...
func quantities(list string) map[string]resource.Quantity {
	read := make(map[string]resource.Quantity)
	for entry := range strings.SplitSeq(list, ",") {
		name, text, _ := strings.Cut(entry, "=")
		if quantity, err := resource.ParseQuantity(text); err == nil {
			read[name] = quantity
		}
	}
	return read
}

// annotationEnding, on a pod that is to end and stay as an object, is when its kubelet was asked
// for that (RFC 3339).
const annotationEnding = "sandbox.internal/ending-since"

// end makes sure that nothing of a pod that was made from the batch's template runs any more, soon.
// With keep, a pod whose containers have run stays as an object, so that its log can be read: the
// kubelet ends its containers because its time is up. A pod that the kubelet has not ended in time
// is deleted: its node may be lost, and only of pods that are being deleted that is known some
// time. So is one that has no room for what asks its kubelet.
func (r *reconciler) end(ctx context.Context, pod *corev1.Pod, keep bool) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	remove := func() error {
		return client.IgnoreNotFound(r.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}))
	}
	until, asked := keptUntil(pod)
	switch {
	case !keep || !hasRun(pod) || asked && !r.Now().Before(until):
		return remove()
	case asked:
		return nil
	}
	changed := pod.DeepCopy()
	second := int64(1)
	changed.Spec.ActiveDeadlineSeconds = &second
	if changed.Annotations == nil {
		changed.Annotations = make(map[string]string)
	}
	changed.Annotations[annotationEnding] = r.Now().UTC().Format(time.RFC3339)
	err := r.client.Patch(ctx, changed, client.MergeFrom(pod))
	if v1alpha1.IsTooLarge(err) {
		return remove()
	}
	return client.IgnoreNotFound(err)
}

// keptUntil returns until when a pod that is to end and stay is left to its kubelet. asked is false
// before the kubelet was asked.
func keptUntil(pod *corev1.Pod) (until time.Time, asked bool) {
	since, err := time.Parse(time.RFC3339, pod.Annotations[annotationEnding])
	deadline := pod.Spec.ActiveDeadlineSeconds
	if err != nil || deadline == nil || *deadline != 1 {
		return time.Time{}, false
	}
	grace := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds,
		corev1.DefaultTerminationGracePeriodSeconds)
	return since.Add(time.Duration(grace)*time.Second + silentNode), true
}

// hasRun reports whether there may be a log.
func hasRun(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running != nil || status.State.Terminated != nil ||
			status.RestartCount > 0 {
			return true
		}
	}
	return false
}

// How long after its grace period a pod may still be there until its node counts as lost. One whose
// taint evicted the pod has not reported for minutes by then.
const (
	silentNode  = 5 * time.Minute
	taintedNode = 30 * time.Second
)

// abandonedAt is when the node of a pod that is being deleted has had enough time to report the end
// of its containers.
func abandonedAt(pod *corev1.Pod) time.Time {
	wait := silentNode
	if evictedByTaint(pod) {
		wait = taintedNode
	}
	return pod.DeletionTimestamp.Add(wait) // which has the grace period in it
}

// abandoned reports whether a pod is only still there because its node is lost: it is deleted as
// soon as the node comes back or is removed.
func abandoned(pod *corev1.Pod, now time.Time) bool {
	return pod.DeletionTimestamp != nil && !now.Before(abandonedAt(pod))
}

// evictedByTaint reports whether a pod is being deleted because of a taint of its node, as one that
// does not answer has.
func evictedByTaint(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			c.Reason == "DeletionByTaintManager"
	})
}

// terminal reports whether nothing of a pod runs: the kubelet says so only then.
func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
