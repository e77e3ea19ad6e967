package host_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

func TestPauseAndResume(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	ctx := t.Context()
	if err := m.host.Resume(ctx, id); kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "Running") {
		t.Errorf("resume while Running: %v", err)
	}
	if err := m.host.Pause(ctx, id); err != nil {
		t.Fatal(err)
	}
	if status := m.get(id).Status; status.State != lifecycle.StatePaused || status.Reason != lifecycle.ReasonUserPause {
		t.Errorf("right after the pause: %+v", status)
	}
	if err := m.host.Pause(ctx, id); kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "Paused") {
		t.Errorf("pause while Paused: %v", err)
	}
	if err := m.host.Resume(ctx, id); err != nil {
		t.Fatal(err)
	}
	if state := m.get(id).Status.State; state != lifecycle.StateRunning {
		t.Errorf("right after the resume: %s", state)
	}
}

func TestPauseAnswersThoughTheEngineHangs(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	slow := newGate()
	m.engine.failBefore(callFreeze, slow.fault)
	began := time.Now()
	if err := m.host.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("answered after %v, want a second", took)
	}
	if state := m.get(id).Status.State; state != lifecycle.StatePausing {
		t.Errorf("state: %s", state)
	}
	close(slow.open)
	m.await(id, lifecycle.StatePaused)
}

func TestDeleteWhileTheEngineHangs(t *testing.T) {
	m := newMachine(t)
	m.had(m.record("pausing", lifecycle.StatePausing), engine.StatusRunning)
	slow := newGate()
	m.engine.failBefore(callFreeze, slow.fault)
	m.start()
	slow.await(t)
	if err := m.host.Delete(t.Context(), "pausing"); err != nil {
		t.Fatal(err)
	}
	m.await("pausing", lifecycle.StateTerminated)
	m.awaitEmpty()
}

func TestDeleteOfASandboxThatIsFoundGone(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	slow := newGate()
	m.engine.failBefore(callInspect, func(context.Context, string) error {
		// the engine answers after the caller has given up
		return slow.fault(context.Background(), id)
	})
	m.engine.happen(container(id), engine.EventRemoved, nil)
	slow.await(t)
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	close(slow.open)
	m.awaitReason(id, lifecycle.StateTerminated, lifecycle.ReasonUserDelete)
}

func TestEngineThatIsAwayIsWaitedFor(t *testing.T) {
	tests := []struct {
		name  string
		state lifecycle.State
		had   engine.Status
		call  string
		want  lifecycle.State
	}{
		{"pause", lifecycle.StatePausing, engine.StatusRunning, callFreeze, lifecycle.StatePaused},
		{"resume", lifecycle.StateResuming, engine.StatusFrozen, callThaw, lifecycle.StateRunning},
		{"remove", lifecycle.StateStopping, engine.StatusRunning, callRemove, lifecycle.StateTerminated},
		{"stop", lifecycle.StateStopping, engine.StatusRunning, callStop, lifecycle.StateTerminated},
		{"clean", lifecycle.StateFailed, engine.StatusRunning, callRemove, lifecycle.StateFailed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.had(m.record("s", tt.state), tt.had)
			away := times(3, fmt.Errorf("%w: connection refused", engine.ErrUnavailable))
			m.engine.failBefore(tt.call, func(ctx context.Context, name string) error {
				err := away(ctx, name)
				if err != nil {
					m.clock.advance(20 * time.Second) // longer in all than a refusal may last
				}
				return err
			})
			m.start()
			m.await("s", tt.want)
			if tt.want.Final() {
				m.awaitEmpty()
			}
		})
	}
}

// Only refusals count: the time for which the engine was away in between says nothing about the
// container.
func TestEngineThatRefusesNowAndThen(t *testing.T) {
	m := newMachine(t)
	m.had(m.record("s", lifecycle.StatePausing), engine.StatusRunning)
	answers := []error{errRefused, engine.ErrUnavailable, engine.ErrUnavailable, errRefused, nil}
	m.engine.failBefore(callFreeze, func(context.Context, string) error {
		m.clock.advance(20 * time.Second)
		return answers[m.engine.count(callFreeze)-1]
	})
	m.start()
	m.await("s", lifecycle.StatePaused)
}

func TestEngineThatKeepsRefusing(t *testing.T) {
	tests := []struct {
		name  string
		state lifecycle.State
		had   engine.Status
		call  string
		err   error
		says  string
	}{
		{"pause", lifecycle.StatePausing, engine.StatusRunning, callFreeze, errRefused, "cannot pause"},
		{"resume", lifecycle.StateResuming, engine.StatusFrozen, callThaw, errRefused, "cannot resume"},
		{"remove", lifecycle.StateStopping, engine.StatusRunning, callRemove, errRefused, "cannot remove the container"},
		// The engine contradicts itself: inspect says that the container runs.
		{"pause, contradicting itself", lifecycle.StatePausing, engine.StatusRunning, callFreeze, engine.ErrNotRunning, "cannot pause"},
		{"resume, contradicting itself", lifecycle.StateResuming, engine.StatusFrozen, callThaw, engine.ErrNotFound, "cannot resume"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.had(m.record("s", tt.state), tt.had)
			m.engine.failBefore(tt.call, func(context.Context, string) error {
				m.clock.advance(16 * time.Second)
				return tt.err
			})
			m.start()
			status := m.awaitReason("s", lifecycle.StateFailed, lifecycle.ReasonContainerError)
			if !strings.Contains(status.Message, tt.says) {
				t.Errorf("message %q does not say %q", status.Message, tt.says)
			}
			m.engine.failBefore(tt.call, nil)
			m.awaitEmpty() // a Failed sandbox leaves nothing behind, however late
		})
	}
}

func TestEndOfARunningSandbox(t *testing.T) {
	tests := []struct {
		name   string
		code   int
		oom    bool
		state  lifecycle.State
		reason lifecycle.Reason
		says   string
	}{
		{"exit 0", 0, false, lifecycle.StateTerminated, lifecycle.ReasonEntrypointExited, "exit code 0"},
		{"exit 1", 1, false, lifecycle.StateFailed, lifecycle.ReasonEntrypointExited, "exit code 1; the last lines of its log:\nlast words"},
		{"killed", 137, false, lifecycle.StateFailed, lifecycle.ReasonEntrypointExited, "exit code 137"},
		{"out of memory", 137, true, lifecycle.StateFailed, lifecycle.ReasonOOMKilled, "memory"},
		{"only a child was out of memory", 0, true, lifecycle.StateTerminated, lifecycle.ReasonEntrypointExited, "exit code 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.engine.logs = "last words"
			m.start()
			for id, end := range map[string]func(string){
				m.running(): func(name string) { m.engine.exit(name, tt.code, tt.oom) },
				m.paused():  func(name string) { m.engine.exit(name, tt.code, tt.oom) },
			} {
				end(container(id))
				status := m.awaitReason(id, tt.state, tt.reason)
				if !strings.Contains(status.Message, tt.says) {
					t.Errorf("message %q does not say %q", status.Message, tt.says)
				}
				exits := tt.reason == lifecycle.ReasonEntrypointExited
				if code := status.ExitCode; (code != nil) != exits || exits && *code != tt.code {
					t.Errorf("%s: exit code %v, want %d for an entrypoint that exited", tt.reason, code, tt.code)
				}
			}
			m.awaitEmpty()
		})
	}
}

func TestWhatOthersDoToContainers(t *testing.T) {
	m := newMachine(t).start()
	set := func(status engine.Status) func(*engine.Container) {
		return func(c *engine.Container) { c.Status = status }
	}
	id := m.running()
	m.engine.happen(container(id), engine.EventFrozen, set(engine.StatusFrozen))
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonExternalPause)
	m.engine.happen(container(id), engine.EventThawed, set(engine.StatusRunning))
	m.await(id, lifecycle.StateRunning)
	m.engine.happen(container(id), engine.EventRemoved, nil)
	m.awaitReason(id, lifecycle.StateFailed, lifecycle.ReasonRemovedExternally)

	paused := m.paused()
	m.engine.happen(container(paused), engine.EventRemoved, nil)
	m.awaitReason(paused, lifecycle.StateFailed, lifecycle.ReasonRemovedExternally)
}

// Another program freezes and thaws the container so quickly that the look which the first one
// asked for is overtaken by the second.
func TestNewsDuringALook(t *testing.T) {
	m := newMachine(t).start()
	set := func(status engine.Status) func(*engine.Container) {
		return func(c *engine.Container) { c.Status = status }
	}
	id := m.running()
	looked := newGate()
	m.engine.failAfter(callInspect, looked.fault)
	m.engine.happen(container(id), engine.EventFrozen, set(engine.StatusFrozen))
	looked.await(t) // it has seen the container frozen
	m.engine.failAfter(callInspect, nil)
	m.engine.happen(container(id), engine.EventThawed, set(engine.StatusRunning))
	close(looked.open)
	wait.Until(t, "the status says that another process thawed the container", func() bool {
		status := m.get(id).Status
		return status.State == lifecycle.StateRunning && status.Message == "another process thawed the container"
	}, func() any { return m.get(id).Status })
	if frozen, thawed := m.engine.count(callFreeze), m.engine.count(callThaw); frozen+thawed != 0 {
		t.Errorf("the service froze it %d times and thawed it %d times", frozen, thawed)
	}
}

func TestWhatHappensWhileTheEngineIsSilent(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	wait.Until(t, "the engine is watched", func() bool { return m.engine.count(callWatch) == 1 })
	down := newGate()
	m.engine.failBefore(callWatch, func(ctx context.Context, name string) error { return down.fault(ctx, name) })
	m.engine.hangUp()
	down.await(t)
	m.engine.exit(container(id), 7, false) // without an event
	close(down.open)
	m.awaitReason(id, lifecycle.StateFailed, lifecycle.ReasonEntrypointExited)
}

// An event may be lost, and the look that it asked for may fail.
func TestSweepFindsWhatNoEventReported(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	failed := newGate()
	m.engine.failBefore(callInspect, func(context.Context, string) error {
		failed.entered <- ""
		return errRefused
	})
	m.engine.exit(container(id), 7, false)
	failed.await(t)
	m.engine.failBefore(callInspect, nil)
	m.host.Sweep()
	m.awaitReason(id, lifecycle.StateFailed, lifecycle.ReasonEntrypointExited)
}

func TestRequestsThatCannotBeMadeDurable(t *testing.T) {
	m := newMachine(t).start()
	running, paused := m.running(), m.paused()
	pull := newGate()
	m.engine.failBefore(callEnsureImage, pull.fault)
	pending := m.create()
	pull.await(t)
	expiry := m.get(running).ExpiresAt
	ctx := t.Context()

	m.store.fail(callSave, errDisk)
	requests := map[string]error{
		"pause":          m.host.Pause(ctx, running),
		"resume":         m.host.Resume(ctx, paused),
		"delete":         m.host.Delete(ctx, running),
		"delete pending": m.host.Delete(ctx, pending),
		"renew":          errorOf(m.host.Renew(ctx, running, expiry.Add(time.Minute))),
	}
	for name, err := range requests {
		if err == nil || kindOf(err) != "" {
			t.Errorf("%s: error %v, want an internal one", name, err)
		}
	}
	for id, want := range map[string]lifecycle.State{running: "Running", paused: "Paused", pending: "Pending"} {
		if state := m.get(id).Status.State; state != want {
			t.Errorf("a refused request moved a sandbox from %s to %s", want, state)
		}
	}
	if got := m.get(running).ExpiresAt; !got.Equal(expiry) {
		t.Errorf("a refused renewal moved the expiry to %v", got)
	}
	if status := m.engine.status(container(running)); status != engine.StatusRunning {
		t.Errorf("the container is %s", status)
	}
	m.store.fail(callSave, nil)
	close(pull.open)
	m.await(pending, lifecycle.StateRunning)
	if n := m.engine.count(callEnsureImage); n != 4 { // execd's, and one for each sandbox
		t.Errorf("%d pulls: the refused delete broke off the pull", n)
	}
	if err := m.host.Delete(ctx, running); err != nil {
		t.Error(err)
	}
	m.await(running, lifecycle.StateTerminated)
}

func TestRequestsOfTheEnded(t *testing.T) {
	m := newMachine(t)
	m.had(m.record("ended", lifecycle.StateTerminated), "")
	m.start()
	ctx := t.Context()
	for name, request := range map[string]func(id string) error{
		"pause":    func(id string) error { return m.host.Pause(ctx, id) },
		"resume":   func(id string) error { return m.host.Resume(ctx, id) },
		"delete":   func(id string) error { return m.host.Delete(ctx, id) },
		"endpoint": func(id string) error { return errorOf(m.host.Locate(ctx, id, 80)) },
	} {
		if err := request("ended"); kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "Terminated") {
			t.Errorf("%s: %v", name, err)
		}
		if err := request("unknown"); kindOf(err) != lifecycle.KindNotFound {
			t.Errorf("%s of nothing: %v", name, err)
		}
	}
}
