package batch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// maxHistory is how many changes of phase a status keeps (BatchSandboxStatus.History).
const maxHistory = 32

// maxMessage bounds a message of the status, in bytes: a pod may be its source.
const maxMessage = 4096

// stopReason returns why the batch must stop now, empty when it need not.
func stopReason(b *v1alpha1.BatchSandbox, now time.Time) (reason, message string) {
	switch {
	case b.Status.Phase == v1alpha1.PhaseStopping:
		return b.Status.Reason, b.Status.Message
	case b.DeletionTimestamp != nil:
		return v1alpha1.ReasonUserDelete, "the BatchSandbox is being deleted"
	case b.Annotations[v1alpha1.AnnotationStop] != "":
		return b.Annotations[v1alpha1.AnnotationStop], ""
	case expires(b, now) && !sleepsAtTimeout(b):
		return v1alpha1.ReasonExpired, "expired at " + b.Spec.ExpireTime.UTC().Format(time.RFC3339)
	}
	return "", ""
}

// enterPhase changes the phase and writes it into the history.
func (d *decision) enterPhase(phase v1alpha1.Phase, reason, message string) {
	message = truncate(message)
	now := metav1.NewMicroTime(d.at.now)
	d.status.Phase, d.status.Reason, d.status.Message = phase, reason, message
	d.status.History = append(d.status.History,
		v1alpha1.PhaseChange{Phase: phase, Reason: reason, Message: message, Time: now})
	d.status.History = shortened(d.status.History)
	if phase.Finished() {
		d.status.FinishedAt = &now
		d.status.Replicas = int32(d.at.kept)
	}
}

// shortened returns a history without its oldest changes where there are too many: those up to the
// first time that the batch was Running stay, as sandboxes may sleep and wake without end.
func shortened(history []v1alpha1.PhaseChange) []v1alpha1.PhaseChange {
	extra := len(history) - maxHistory
	if extra <= 0 {
		return history
	}
	kept := 1 + slices.IndexFunc(history,
		func(change v1alpha1.PhaseChange) bool { return change.Phase == v1alpha1.PhaseRunning })
	kept = min(kept, maxHistory/2)
	return slices.Concat(history[:kept], history[kept+extra:])
}

// explain changes the reason and the message of the phase, which stays.
func (d *decision) explain(reason, message string) {
	d.status.Reason, d.status.Message = reason, truncate(message)
}

func truncate(message string) string {
	if len(message) > maxMessage {
		return strings.ToValidUTF8(message[:maxMessage], "") + "..."
	}
	return message
}

// advancePhase changes the phase as the lifecycle document's table of transitions allows.
func (d *decision) advancePhase() {
	b, at := d.batch, d.at
	if d.status.Phase.Finished() {
		return
	}
	if reason, message := stopReason(b, at.now); reason != "" {
		if d.status.Phase != v1alpha1.PhaseStopping {
			d.enterPhase(v1alpha1.PhaseStopping, reason, message)
		} else if at.stopped {
			d.terminate(reason, message)
		}
		return
	}
	if d.live == 0 && b.Spec.Replicas > 0 {
		d.endBatch()
		return
	}
	switch d.status.Phase {
	case v1alpha1.PhasePending:
		if d.usable == d.live {
			d.enterPhase(v1alpha1.PhaseRunning, d.runningReason(), d.summary())
		} else {
			d.explainPending()
		}
	case v1alpha1.PhaseRunning:
		if b.Spec.Pause {
			d.enterPhase(v1alpha1.PhasePausing, v1alpha1.ReasonUserPause, "")
		} else if d.fallAsleep() {
			// as it says
		} else if d.status.Reason == v1alpha1.ReasonContainerRunning ||
			d.status.Reason == v1alpha1.ReasonReplicasZero {
			d.explain(d.runningReason(), d.summary())
		}
	case v1alpha1.PhasePaused:
		if sleeps(d.status.Reason) {
			d.sleepOn()
		} else if !b.Spec.Pause {
			d.enterPhase(v1alpha1.PhaseResuming, v1alpha1.ReasonUserResume, "")
		}
	}
	switch d.status.Phase {
	case v1alpha1.PhasePausing:
		if sleeps(d.status.Reason) {
			d.completeSleep()
			return
		}
		d.completeToggle(b.Spec.Pause, v1alpha1.PhasePaused, v1alpha1.PhaseResuming)
	case v1alpha1.PhaseResuming:
		d.completeToggle(!b.Spec.Pause, v1alpha1.PhaseRunning, v1alpha1.PhasePausing)
	}
}

// completeToggle ends Pausing or Resuming once the sandboxes are frozen or thawed, or reverses when
// that is not wanted any more.
func (d *decision) completeToggle(wanted bool, done, back v1alpha1.Phase) {
	reason := v1alpha1.ReasonUserPause
	if done == v1alpha1.PhaseRunning {
		reason = v1alpha1.ReasonContainerRunning
	}
	switch {
	case !wanted && back == v1alpha1.PhaseResuming:
		d.enterPhase(back, v1alpha1.ReasonUserResume, "")
	case !wanted:
		d.enterPhase(back, v1alpha1.ReasonUserPause, "")
	case d.at.frozen.tried && d.at.frozen.err == nil:
		d.enterPhase(done, reason, "")
	case d.at.frozen.err != nil:
		d.explain(d.status.Reason, d.at.frozen.err.Error())
	}
}

// endBatch ends a batch all of whose sandboxes have ended by themselves.
func (d *decision) endBatch() {
	if c := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionDegraded); c != nil &&
		c.Status == metav1.ConditionTrue {
		if d.at.stopped {
			d.enterPhase(v1alpha1.PhaseFailed, c.Reason, c.Message)
		}
		return
	}
	message := "every sandbox ended with exit code 0"
	if d.batch.Spec.Replicas == 1 {
		message = "ended with exit code 0"
	}
	d.enterPhase(v1alpha1.PhaseStopping, v1alpha1.ReasonEntrypointExited, message)
	if d.at.stopped {
		d.terminate(v1alpha1.ReasonEntrypointExited, message)
	}
}

// terminate ends Stopping: in Failed where it is not known whether everything has ended.
func (d *decision) terminate(reason, message string) {
	if d.at.unreachableNode == "" {
		d.enterPhase(v1alpha1.PhaseTerminated, reason, message)
		return
	}
	d.enterPhase(v1alpha1.PhaseFailed, v1alpha1.ReasonRemovedExternally, fmt.Sprintf(
		"node %s does not answer: processes of the sandbox may still run there", d.at.unreachableNode))
}

func (d *decision) runningReason() string {
	if d.batch.Spec.Replicas == 0 {
		return v1alpha1.ReasonReplicasZero
	}
	return v1alpha1.ReasonContainerRunning
}

// summary counts the usable and the ended sandboxes, where the phase alone does not give that.
func (d *decision) summary() string {
	ended := int(d.batch.Spec.Replicas) - d.live
	switch {
	case ended == 0 && d.usable == d.live:
		return ""
	case ended == 0:
		return fmt.Sprintf("%d of %d sandboxes are usable", d.usable, d.batch.Spec.Replicas)
	}
	return fmt.Sprintf("%d of %d sandboxes are usable, %d have ended", d.usable,
		d.batch.Spec.Replicas, ended)
}

func (d *decision) explainPending() {
	reason, message := v1alpha1.ReasonProvisioning, ""
	if d.problem != nil {
		reason, message = d.problem.reason, d.problem.message
	}
	if d.batch.Spec.Replicas > 1 {
		if message != "" {
			message = fmt.Sprintf("; sandbox %d: %s", d.problemAt, message)
		}
		message = d.summary() + message
	}
	d.explain(reason, message)
}

// reasonWeight orders reasons by their importance for a client that waits.
func reasonWeight(reason string) int {
	switch reason {
	case v1alpha1.ReasonInvalidTemplate, v1alpha1.ReasonPoolNotFound:
		return 6
	case v1alpha1.ReasonImagePullError:
		return 5
	case v1alpha1.ReasonResourceLimit:
		return 4
	case v1alpha1.ReasonContainerError, v1alpha1.ReasonNetworkError:
		return 3
	case v1alpha1.ReasonImagePulling:
		return 2
	case v1alpha1.ReasonContainerStarting:
		return 1
	}
	return 0
}
