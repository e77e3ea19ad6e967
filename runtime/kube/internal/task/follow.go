package task

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/internal/batch"
)

// follower follows the task of one pod.
type follower struct {
	pod     types.UID
	address string // of the pod when this began
	cancel  context.CancelFunc

	mu    sync.Mutex
	last  batch.TaskState
	known bool // the executor has the task
}

func (f *follower) state() batch.TaskState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// ended reports whether there is nothing more to learn of the task.
func (f *follower) ended() bool {
	phase := f.state().Phase
	return phase == batch.TaskSucceeded || phase == batch.TaskFailed
}

// know records that the executor has the task.
func (f *follower) know() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = true
}

// set reports whether the state is another one than before.
func (f *follower) set(state batch.TaskState) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.last
	f.last = state
	return before.Phase != state.Phase || before.Ready != state.Ready ||
		before.Reason != state.Reason || before.Message != state.Message
}

// errNoTask is returned when an executor does not have the task any more.
var errNoTask = errors.New("the task-executor has no record of the task: it is not run again")

// follow starts following. before is the follower of the same task at an earlier address of the
// pod, nil when there was none. The caller holds t.mu.
func (t *Tasks) follow(key types.NamespacedName, name string, body source, pod *corev1.Pod,
	before *follower) *follower {
	ctx, cancel := context.WithCancel(t.ctx)
	f := &follower{pod: pod.UID, address: pod.Status.PodIP, cancel: cancel,
		last: batch.TaskState{Phase: batch.TaskPending, Message: "waits for its task-executor"}}
	if before != nil {
		before.mu.Lock()
		f.last, f.known = before.last, before.known
		before.mu.Unlock()
	}
	known := f.known
	executor := t.executor(pod)
	t.done.Go(func() {
		defer cancel()
		report := func(state batch.TaskState) {
			if f.set(state) && ctx.Err() == nil {
				t.enqueue(key.Namespace, key.Name)
			}
		}
		follow(ctx, executor, name, body, known, f.know, report)
	})
	return f
}

// follow asks an executor for the task until it has it, and then for news until the task has ended.
// known says that it has it already, and know is called once it has.
func follow(ctx context.Context, executor *tasks.Client, name string, body source, known bool,
	know func(), report func(batch.TaskState)) {
	var (
		version  int64
		answered = time.Now() // when it last did
		pause    = firstPause
		pace     = rate.NewLimiter(rate.Every(askEvery), askAtOnce)
	)
	for pace.Wait(ctx) == nil {
		var status tasks.Status
		var err error
		if !known {
			status, err = begin(ctx, executor, name, body)
		} else {
			status, version, err = nextStatus(ctx, executor, name, version)
		}
		var refused *tasks.Error
		switch {
		case err == nil:
			known, answered, pause = true, time.Now(), firstPause
			know()
			report(translate(status))
			if status.Ended() {
				return
			}
			continue
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNoTask):
			report(batch.TaskState{Phase: batch.TaskFailed, Reason: tasks.ReasonExecutorLost,
				Message: err.Error()})
			return
		case errors.As(err, &refused) &&
			slices.Contains([]string{tasks.CodeInvalidRequest, tasks.CodeTaskDiffers,
				tasks.CodeBodyTooLarge}, refused.Code):
			report(batch.TaskState{Phase: batch.TaskFailed, Reason: refused.Code,
				Message: text(refused.Message)})
			return
		case errors.Is(err, errNoSecret):
			report(batch.TaskState{Phase: batch.TaskPending, Message: err.Error()})
		case !known && refused == nil: // its container may still be starting
			report(batch.TaskState{Phase: batch.TaskPending,
				Message: "its task-executor does not answer yet"})
		case !known:
			report(batch.TaskState{Phase: batch.TaskPending, Message: text(refused.Message)})
		case time.Since(answered) > unknownAfter:
			report(batch.TaskState{Phase: batch.TaskUnknown, Message: err.Error()})
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
		}
	}
}

// begin returns the status of the task, which an executor that does not have it is given. It may
// have it from a controller before this one, and with other values: Secrets change.
func begin(ctx context.Context, executor *tasks.Client, name string,
	body source) (tasks.Status, error) {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	status, err := executor.Get(asking, name)
	if !tasks.HasCode(err, tasks.CodeNotFound) {
		return status, err
	}
	task, err := body(ctx)
	if err != nil {
		return tasks.Status{}, err
	}
	putting, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return executor.Put(putting, name, task)
}

// nextStatus returns the task's status when anything has changed in the pod since a version, or
// after a while.
func nextStatus(ctx context.Context, executor *tasks.Client, name string,
	since int64) (tasks.Status, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTime+answerTime)
	defer cancel()
	list, err := executor.Wait(ctx, since, waitTime)
	if err != nil {
		return tasks.Status{}, since, err
	}
	for _, status := range list.Items {
		if status.Name == name {
			return status, list.Version, nil
		}
	}
	return tasks.Status{}, since, errNoTask
}

func translate(status tasks.Status) batch.TaskState {
	state := batch.TaskState{Ready: status.Ready, Reason: reason(status.Reason),
		Message: text(status.Message)}
	switch status.State {
	case tasks.Running:
		state.Phase = batch.TaskRunning
	case tasks.Succeeded:
		state.Phase = batch.TaskSucceeded
	case tasks.Failed:
		state.Phase = batch.TaskFailed
	case tasks.Pending:
		state.Phase = batch.TaskPending
	default:
		state.Phase = batch.TaskUnknown
	}
	if status.ExitCode != nil {
		code := int32(*status.ExitCode)
		state.ExitCode = &code
	}
	return state
}

// reason returns an executor's reason if it is in upper snake case, and else REASON_UNKNOWN: it
// becomes part of conditions and metrics.
func reason(word string) string {
	const unknown, longest = "REASON_UNKNOWN", 64
	if len(word) > longest {
		return unknown
	}
	for _, c := range word {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return unknown
		}
	}
	return word
}

// text returns what is shown of an executor's message: valid UTF-8 of at most maxMessage bytes, and
// no control characters but new lines.
func text(message string) string {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "..."
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(message, ""))
}
