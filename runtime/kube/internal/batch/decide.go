package batch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// maxHistory is how many changes of phase a status keeps (BatchSandboxStatus.History).
const maxHistory = 32

// maxOutcomes is how many letters a status takes (BatchSandboxStatus.Outcomes). There are no more
// replicas.
const maxOutcomes = 10000

// maxMessage keeps what a pod said from filling the status, in bytes.
const maxMessage = 4096

// The letters of BatchSandboxStatus.Outcomes.
const (
	lives       = v1alpha1.OutcomeLives
	endedWell   = v1alpha1.OutcomeEndedWell
	endedFailed = v1alpha1.OutcomeEndedFailed
	keptWell    = v1alpha1.OutcomeKeptWell
	keptFailed  = v1alpha1.OutcomeKeptFailed
	givenBack   = v1alpha1.OutcomeGivenBack
)

// situation is all that a decision depends on, besides the batch itself.
type situation struct {
	now time.Time
	// by number; of those that have ended before, only what the letter says is true
	sandboxes []sandbox
	tasks     []TaskState // by number; nil without a task template
	// by number, also those that are not wanted: a pod exists, or the allocation names one
	held     []bool
	existing int      // pods there are, whatever their state
	kept     int      // of these, those that stay after the end of the batch, for their logs
	lack     *refusal // why pods are missing, where something refuses to give them
	frozen   freezing // what a try to freeze or thaw made of it
	stopped  bool     // nothing of the batch runs any more, as far as can be known
	silent   string   // a node that does not report whether a pod that it has runs
}

// holds reports whether a number has a pod.
func (at *situation) holds(number int) bool { return number < len(at.held) && at.held[number] }

// refusal is why a pod cannot be had.
type refusal struct {
	reason, message string
	invalid         bool // by a rule: waiting does not help
}

// freezing is the result of a try to freeze or thaw all sandboxes of a batch.
type freezing struct {
	tried   bool
	err     error         // of the first sandbox that was not frozen or thawed
	refused map[int]error // what execds answered instead of doing it, by the sandboxes' numbers
}

// outcome returns the letter of a sandbox.
func outcome(status *v1alpha1.BatchSandboxStatus, number int) byte {
	if number < len(status.Outcomes) {
		return status.Outcomes[number]
	}
	return lives
}

// over reports whether a sandbox has ended, so that its pod is given back.
func over(letter byte) bool { return letter == endedWell || letter == endedFailed }

// released reports whether the pod of a number is given back: its sandbox has ended, or the number
// was not wanted.
func released(letter byte) bool { return over(letter) || letter == givenBack }

// stopReason returns why the batch must stop now, empty when it need not.
func stopReason(b *v1alpha1.BatchSandbox, now time.Time) (reason, message string) {
	switch {
	case b.Status.Phase == v1alpha1.PhaseStopping:
		return b.Status.Reason, b.Status.Message
	case b.DeletionTimestamp != nil:
		return v1alpha1.ReasonUserDelete, "the BatchSandbox is being deleted"
	case b.Annotations[v1alpha1.AnnotationStop] != "":
		return b.Annotations[v1alpha1.AnnotationStop], ""
	case b.Spec.ExpireTime != nil && !now.Before(b.Spec.ExpireTime.Time):
		return v1alpha1.ReasonExpired, "expired at " + b.Spec.ExpireTime.UTC().Format(time.RFC3339)
	}
	return "", ""
}

// decide returns the status that the batch has in this situation. It changes nothing.
func decide(b *v1alpha1.BatchSandbox, at situation) v1alpha1.BatchSandboxStatus {
	d := decision{batch: b, at: at, status: *b.Status.DeepCopy()}
	d.count()
	if d.status.Phase == "" {
		d.enter(v1alpha1.PhasePending, v1alpha1.ReasonProvisioning, "")
	}
	d.move()
	d.conditions()
	d.status.ObservedGeneration = b.Generation
	return d.status
}

// decision is a status on its way.
type decision struct {
	batch  *v1alpha1.BatchSandbox
	at     situation
	status v1alpha1.BatchSandboxStatus

	live, usable int
	problem      *sandbox // what keeps the first sandbox that is not usable
	problemAt    int
}

// enter changes the phase and writes it into the history.
func (d *decision) enter(phase v1alpha1.Phase, reason, message string) {
	message = cut(message)
	now := metav1.NewMicroTime(d.at.now)
	d.status.Phase, d.status.Reason, d.status.Message = phase, reason, message
	d.status.History = append(d.status.History,
		v1alpha1.PhaseChange{Phase: phase, Reason: reason, Message: message, Time: now})
	if extra := len(d.status.History) - maxHistory; extra > 0 {
		d.status.History = d.status.History[extra:]
	}
	if phase.Finished() {
		d.status.FinishedAt = &now
		d.status.Replicas = int32(d.at.kept)
	}
}

// explain changes what is said about the phase, which stays.
func (d *decision) explain(reason, message string) {
	d.status.Reason, d.status.Message = reason, cut(message)
}

func cut(message string) string {
	if len(message) > maxMessage {
		return strings.ToValidUTF8(message[:maxMessage], "") + "..."
	}
	return message
}

// count takes stock of the sandboxes: numbers, addresses and letters.
func (d *decision) count() {
	replicas := int(d.batch.Spec.Replicas)
	letters := make([]byte, max(replicas, min(len(d.at.held), maxOutcomes)))
	addresses := make([]string, replicas)
	var tasks v1alpha1.TaskStats
	d.status.Allocated, d.status.Ready = 0, 0
	finishing := d.status.Phase == v1alpha1.PhaseStopping || d.status.Phase.Finished()
	for i := range replicas {
		s := &d.at.sandboxes[i]
		letters[i] = outcome(&d.status, i)
		if letters[i] == givenBack && !d.at.holds(i) {
			letters[i] = lives // it is wanted again
		}
		if !finishing {
			letters[i] = d.next(i, s, letters[i])
		}
		if !over(letters[i]) {
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
			} else if d.problem == nil || weight(s.reason) > weight(d.problem.reason) {
				d.problem, d.problemAt = s, i
			}
		}
		d.countTask(&tasks, i, letters[i])
	}
	for i := replicas; i < len(letters); i++ {
		letters[i] = lives
		if d.at.holds(i) {
			letters[i] = givenBack
		}
	}
	d.status.Replicas = int32(d.at.existing)
	d.status.Outcomes = strings.TrimRight(string(letters), string(rune(lives)))
	d.status.Addresses = trimmed(addresses)
	// What failed may have gone with its number. What is invalid fails, so that the reason is gone
	// with it.
	if !strings.ContainsAny(d.status.Outcomes, "Ff") {
		d.clear(v1alpha1.ConditionDegraded, "NoneFailed")
		d.clear(v1alpha1.ConditionInvalid, "Valid")
	}
	switch {
	case d.batch.Spec.TaskTemplate == nil:
		d.status.TaskStats = nil
	case d.at.tasks != nil || d.status.TaskStats == nil: // else it stops, and nothing new is learned
		d.status.TaskStats = &tasks
	}
}

// next returns a sandbox's letter, and records how the first one failed.
func (d *decision) next(number int, s *sandbox, letter byte) byte {
	if released(letter) {
		return letter
	}
	release := d.batch.Spec.TaskResourcePolicyWhenCompleted == v1alpha1.TaskRelease
	if letter == lives && d.at.tasks != nil {
		switch task := d.at.tasks[number]; task.Phase {
		case TaskSucceeded:
			letter = keptWell
		case TaskFailed:
			letter = keptFailed
			d.fail(number, taskReason(task), task.Message)
		}
	}
	if release || s.ended {
		switch letter {
		case keptWell:
			return endedWell
		case keptFailed:
			return endedFailed
		}
	}
	switch {
	case s.ended && !s.failed:
		if d.batch.Spec.TaskTemplate != nil { // its pod ended before its task did
			d.fail(number, s.reason, s.message)
			return endedFailed
		}
		return endedWell
	case s.ended:
		d.fail(number, s.reason, s.message)
		return endedFailed
	case letter == lives && !s.usable && d.overdue(s):
		reason := s.reason
		if reason == v1alpha1.ReasonProvisioning || reason == v1alpha1.ReasonImagePulling ||
			reason == v1alpha1.ReasonContainerStarting {
			reason = v1alpha1.ReasonProvisionTimeout
			if s.pod != nil && lacksNetwork(s.pod) {
				reason = v1alpha1.ReasonNetworkError
			}
		}
		d.fail(number, reason, s.message)
		return endedFailed
	}
	return letter
}

// overdue reports whether a sandbox that is not usable must be given up.
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

// fail records, in the condition Degraded, how the first sandbox failed.
func (d *decision) fail(number int, reason, message string) {
	if meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionDegraded) {
		return
	}
	if d.batch.Spec.Replicas > 1 {
		message = fmt.Sprintf("sandbox %d: %s", number, message)
	}
	d.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, reason, cut(message))
}

func (d *decision) countTask(stats *v1alpha1.TaskStats, number int, letter byte) {
	phase := TaskPending
	if d.at.tasks != nil && letter == lives {
		phase = d.at.tasks[number].Phase
	}
	switch letter {
	case endedWell, keptWell:
		phase = TaskSucceeded
	case endedFailed, keptFailed:
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

// move changes the phase as the lifecycle document's table of transitions allows.
func (d *decision) move() {
	b, at := d.batch, d.at
	if d.status.Phase.Finished() {
		return
	}
	if reason, message := stopReason(b, at.now); reason != "" {
		if d.status.Phase != v1alpha1.PhaseStopping {
			d.enter(v1alpha1.PhaseStopping, reason, message)
		} else if at.stopped {
			d.terminate(reason, message)
		}
		return
	}
	if d.live == 0 && b.Spec.Replicas > 0 {
		d.finish()
		return
	}
	switch d.status.Phase {
	case v1alpha1.PhasePending:
		if d.usable == d.live {
			d.enter(v1alpha1.PhaseRunning, d.runningReason(), d.summary())
		} else {
			d.explainPending()
		}
	case v1alpha1.PhaseRunning:
		if b.Spec.Pause {
			d.enter(v1alpha1.PhasePausing, v1alpha1.ReasonUserPause, "")
		} else if d.status.Reason == v1alpha1.ReasonContainerRunning ||
			d.status.Reason == v1alpha1.ReasonReplicasZero {
			d.explain(d.runningReason(), d.summary())
		}
	case v1alpha1.PhasePaused:
		if !b.Spec.Pause {
			d.enter(v1alpha1.PhaseResuming, v1alpha1.ReasonUserResume, "")
		}
	}
	switch d.status.Phase {
	case v1alpha1.PhasePausing:
		d.completeToggle(b.Spec.Pause, v1alpha1.PhasePaused, v1alpha1.PhaseResuming)
	case v1alpha1.PhaseResuming:
		d.completeToggle(!b.Spec.Pause, v1alpha1.PhaseRunning, v1alpha1.PhasePausing)
	}
}

// completeToggle ends Pausing or Resuming once the sandboxes are frozen or thawed, or turns round when that
// is wanted no more.
func (d *decision) completeToggle(wanted bool, done, back v1alpha1.Phase) {
	reason := v1alpha1.ReasonUserPause
	if done == v1alpha1.PhaseRunning {
		reason = v1alpha1.ReasonContainerRunning
	}
	switch {
	case !wanted && back == v1alpha1.PhaseResuming:
		d.enter(back, v1alpha1.ReasonUserResume, "")
	case !wanted:
		d.enter(back, v1alpha1.ReasonUserPause, "")
	case d.at.frozen.tried && d.at.frozen.err == nil:
		d.enter(done, reason, "")
	case d.at.frozen.err != nil:
		d.explain(d.status.Reason, d.at.frozen.err.Error())
	}
}

// finish ends a batch all of whose sandboxes have ended by themselves.
func (d *decision) finish() {
	if c := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionDegraded); c != nil &&
		c.Status == metav1.ConditionTrue {
		if d.at.stopped {
			d.enter(v1alpha1.PhaseFailed, c.Reason, c.Message)
		}
		return
	}
	message := "every sandbox ended with exit code 0"
	if d.batch.Spec.Replicas == 1 {
		message = "ended with exit code 0"
	}
	d.enter(v1alpha1.PhaseStopping, v1alpha1.ReasonEntrypointExited, message)
	if d.at.stopped {
		d.terminate(v1alpha1.ReasonEntrypointExited, message)
	}
}

// terminate ends Stopping: in Failed where it is not known whether everything has ended.
func (d *decision) terminate(reason, message string) {
	if d.at.silent == "" {
		d.enter(v1alpha1.PhaseTerminated, reason, message)
		return
	}
	d.enter(v1alpha1.PhaseFailed, v1alpha1.ReasonRemovedExternally, fmt.Sprintf(
		"node %s does not answer: processes of the sandbox may still run there", d.at.silent))
}

func (d *decision) runningReason() string {
	if d.batch.Spec.Replicas == 0 {
		return v1alpha1.ReasonReplicasZero
	}
	return v1alpha1.ReasonContainerRunning
}

// summary says what a phase of many sandboxes does not.
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

// weight orders reasons by their importance for a client that waits.
func weight(reason string) int {
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

// conditions says Ready and Invalid.
func (d *decision) conditions() {
	switch {
	case d.status.Phase == v1alpha1.PhaseRunning && d.usable == d.live &&
		d.live == int(d.batch.Spec.Replicas):
		d.condition(v1alpha1.ConditionReady, metav1.ConditionTrue, d.runningReason(), "")
	default:
		d.condition(v1alpha1.ConditionReady, metav1.ConditionFalse, d.status.Reason, "")
	}
	if d.at.lack != nil && d.at.lack.invalid {
		d.condition(v1alpha1.ConditionInvalid, metav1.ConditionTrue, d.at.lack.reason,
			cut(d.at.lack.message))
	}
}

// clear makes a condition that was true false.
func (d *decision) clear(kind, reason string) {
	if meta.IsStatusConditionTrue(d.status.Conditions, kind) {
		d.condition(kind, metav1.ConditionFalse, reason, "")
	}
}

func (d *decision) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: conditionReason(reason), Message: message,
		ObservedGeneration: d.batch.Generation, LastTransitionTime: metav1.NewTime(d.at.now),
	})
}

// conditionReason ensures the form that the API server requires of a reason: any client of
// the API server may write the stop annotation.
func conditionReason(reason string) string {
	for i, c := range reason {
		letter := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || !(c >= '0' && c <= '9') && c != '_') || i == len(reason)-1 &&
			c == '_' {
			return "Other"
		}
	}
	if reason == "" || len(reason) > 1024 {
		return "Other"
	}
	return reason
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

// urgent reports whether a change of the status must be written at once: everything but numbers,
// addresses and what is said about a phase that goes on.
func urgent(before, after *v1alpha1.BatchSandboxStatus) bool {
	for i, address := range before.Addresses {
		if address != "" && (i >= len(after.Addresses) || after.Addresses[i] == "") {
			return true // the pod may go now: it must not be missed when the number is wanted again
		}
	}
	for i := range max(len(before.Outcomes), len(after.Outcomes)) {
		was, is := outcome(before, i), outcome(after, i)
		if was != is && (was != givenBack || is != lives) { // pods that are given back go one by one
			return true
		}
	}
	return before.Phase != after.Phase ||
		len(before.History) != len(after.History) ||
		len(before.Conditions) != len(after.Conditions) || before.FinishedAt == nil &&
		after.FinishedAt != nil ||
		slices.ContainsFunc(after.Conditions, func(c metav1.Condition) bool {
			return !meta.IsStatusConditionPresentAndEqual(before.Conditions, c.Type, c.Status)
		})
}

// same reports whether nothing is to be written.
func same(before, after *v1alpha1.BatchSandboxStatus) bool {
	return equality.Semantic.DeepEqual(before, after)
}
