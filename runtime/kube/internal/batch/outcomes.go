package batch

import (
	"strings"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// maxOutcomes is how many letters a status takes (BatchSandboxStatus.Outcomes). There are no more
// replicas.
const maxOutcomes = 10000

// The letters of BatchSandboxStatus.Outcomes.
const (
	outcomeActive           = v1alpha1.OutcomeActive
	outcomeSucceeded        = v1alpha1.OutcomeSucceeded
	outcomeFailed           = v1alpha1.OutcomeFailed
	outcomeSucceededPodKept = v1alpha1.OutcomeSucceededPodKept
	outcomeFailedPodKept    = v1alpha1.OutcomeFailedPodKept
	outcomeReleased         = v1alpha1.OutcomeReleased
)

// outcome returns the letter of a sandbox.
func outcome(status *v1alpha1.BatchSandboxStatus, number int) byte {
	if number < len(status.Outcomes) {
		return status.Outcomes[number]
	}
	return outcomeActive
}

// hasEnded reports whether a sandbox has ended, so that its pod is given back.
func hasEnded(letter byte) bool { return letter == outcomeSucceeded || letter == outcomeFailed }

// podReleased reports whether the pod of a number is given back: its sandbox has ended, or the
// number was not wanted.
func podReleased(letter byte) bool { return hasEnded(letter) || letter == outcomeReleased }

// tally counts the sandboxes, and sets the numbers, addresses and letters of the status.
func (d *decision) tally() {
	replicas := int(d.batch.Spec.Replicas)
	letters := make([]byte, max(replicas, min(len(d.at.held), maxOutcomes)))
	addresses := make([]string, replicas)
	var tasks v1alpha1.TaskStats
	d.status.Allocated, d.status.Ready = 0, 0
	finishing := d.status.Phase == v1alpha1.PhaseStopping || d.status.Phase.Finished()
	for i := range replicas {
		s := &d.at.sandboxes[i]
		letters[i] = outcome(&d.status, i)
		if letters[i] == outcomeReleased && !d.at.holds(i) {
			letters[i] = outcomeActive // it is wanted again
		}
		if !finishing {
			letters[i] = d.nextOutcome(i, s, letters[i])
		}
		if !hasEnded(letters[i]) {
			d.live++
			if !s.ended {
				addresses[i] = s.address
			}
			if s.scheduled && !s.ended {
				d.status.Allocated++
			}
			if s.usable {
				d.status.Ready++
				d.usable++
			} else if d.problem == nil || reasonWeight(s.reason) > reasonWeight(d.problem.reason) {
				d.problem, d.problemAt = s, i
			}
		}
		d.tallyTask(&tasks, i, letters[i])
	}
	for i := replicas; i < len(letters); i++ {
		letters[i] = outcomeActive
		if d.at.holds(i) {
			letters[i] = outcomeReleased
		}
	}
	d.status.Replicas = int32(d.at.existing)
	d.status.Outcomes = strings.TrimRight(string(letters), string(rune(outcomeActive)))
	d.status.Addresses = trimmed(addresses)
	// What failed may have gone with its number. What is invalid fails, so that the reason is gone
	// with it.
	if !strings.ContainsAny(d.status.Outcomes, "Ff") {
		d.clearCondition(v1alpha1.ConditionDegraded, "NoneFailed")
		d.clearCondition(v1alpha1.ConditionInvalid, "Valid")
	}
	switch {
	case d.batch.Spec.TaskTemplate == nil:
		d.status.TaskStats = nil
	case d.at.tasks != nil || d.status.TaskStats == nil: // else it stops, and nothing new is learned
		d.status.TaskStats = &tasks
	}
}

// nextOutcome returns a sandbox's new letter, and records how the first one failed.
func (d *decision) nextOutcome(number int, s *sandbox, letter byte) byte {
	if podReleased(letter) {
		return letter
	}
	release := d.batch.Spec.TaskResourcePolicyWhenCompleted == v1alpha1.TaskRelease
	if letter == outcomeActive && d.at.tasks != nil {
		switch task := d.at.tasks[number]; task.Phase {
		case TaskSucceeded:
			letter = outcomeSucceededPodKept
		case TaskFailed:
			letter = outcomeFailedPodKept
			d.recordFailure(number, taskReason(task), task.Message)
		}
	}
	if release || s.ended {
		switch letter {
		case outcomeSucceededPodKept:
			return outcomeSucceeded
		case outcomeFailedPodKept:
			return outcomeFailed
		}
	}
	switch {
	case s.ended && !s.failed:
		if d.batch.Spec.TaskTemplate != nil { // its pod ended before its task did
			d.recordFailure(number, s.reason, s.message)
			return outcomeFailed
		}
		return outcomeSucceeded
	case s.ended:
		d.recordFailure(number, s.reason, s.message)
		return outcomeFailed
	case letter == outcomeActive && !s.usable && d.overdue(s):
		reason := s.reason
		if reason == v1alpha1.ReasonProvisioning || reason == v1alpha1.ReasonImagePulling ||
			reason == v1alpha1.ReasonContainerStarting {
			reason = v1alpha1.ReasonProvisionTimeout
			if s.pod != nil && lacksNetwork(s.pod) {
				reason = v1alpha1.ReasonNetworkError
			}
		}
		d.recordFailure(number, reason, s.message)
		return outcomeFailed
	}
	return letter
}

// overdue reports whether a sandbox that is not usable has failed for good or taken too long.
func (d *decision) overdue(s *sandbox) bool {
	if s.fatal {
		return true
	}
	deadline, ok := provisionDeadline(d.batch)
	return ok && !d.at.now.Before(deadline)
}

// provisionDeadline is when a batch that is Pending has taken too long.
func provisionDeadline(b *v1alpha1.BatchSandbox) (time.Time, bool) {
	if b.Spec.ProvisionTimeoutSeconds == nil || b.Status.Phase != v1alpha1.PhasePending &&
		b.Status.Phase != "" {
		return time.Time{}, false
	}
	return b.CreationTimestamp.Add(time.Duration(*b.Spec.ProvisionTimeoutSeconds) * time.Second),
		true
}

func taskReason(t TaskState) string {
	switch t.Reason {
	case "", "EXITED", "SIGNALED":
		return v1alpha1.ReasonEntrypointExited
	}
	return t.Reason
}

func (d *decision) tallyTask(stats *v1alpha1.TaskStats, number int, letter byte) {
	phase := TaskPending
	if d.at.tasks != nil && letter == outcomeActive {
		phase = d.at.tasks[number].Phase
	}
	switch letter {
	case outcomeSucceeded, outcomeSucceededPodKept:
		phase = TaskSucceeded
	case outcomeFailed, outcomeFailedPodKept:
		phase = TaskFailed
	}
	switch phase {
	case TaskRunning:
		stats.Running++
	case TaskSucceeded:
		stats.Succeed++
	case TaskFailed:
		stats.Failed++
	case TaskUnknown:
		stats.Unknown++
	default:
		stats.Pending++
	}
}

// trimmed drops the empty strings at the end.
func trimmed(texts []string) []string {
	for len(texts) > 0 && texts[len(texts)-1] == "" {
		texts = texts[:len(texts)-1]
	}
	if len(texts) == 0 {
		return nil
	}
	return texts
}
