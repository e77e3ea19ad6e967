package host_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sandboxhttp"
)

var errRefused = fmt.Errorf("the engine refuses")

// gate is a fault that reports a call and blocks it until the gate is opened or the caller
// gives up.
type gate struct {
	entered chan string
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan string, 100), open: make(chan struct{})} }

func (g *gate) fault(ctx context.Context, name string) error {
	g.entered <- name
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) await(t testing.TB) {
	t.Helper()
	wait.For(t, "a call of the engine", g.entered)
}

// times is a fault that fails so many calls.
func times(n int32, err error) fault {
	var calls atomic.Int32
	return func(context.Context, string) error {
		if calls.Add(1) <= n {
			return err
		}
		return nil
	}
}

func TestDeleteDuringPullCancelsThePull(t *testing.T) {
	m := newMachine(t).start()
	pull := newGate()
	m.engine.failBefore(callEnsureImage, pull.fault)
	id := m.create()
	pull.await(t)
	wait.Until(t, "the image is pulled", func() bool { return m.get(id).Status.Reason == lifecycle.ReasonImagePulling }, func() any { return m.get(id).Status })
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// the gate never opens: only a cancelled pull gets here
	m.awaitReason(id, lifecycle.StateTerminated, lifecycle.ReasonUserDelete)
	// Nothing was made, so there is nothing to look for and to remove.
	for _, call := range []string{callCreate, callInspect, callStop, callOpenLog, callRemove} {
		if n := m.engine.count(call); n != 0 {
			t.Errorf("the engine was asked %d times: %s", n, call)
		}
	}
	m.awaitEmpty()
}

// What an earlier service began is not known: the engine may have a container, or make one at this
// moment.
func TestRecordOfAnEarlierServiceMayHaveAContainer(t *testing.T) {
	m := newMachine(t)
	r := m.record("pending", lifecycle.StatePending)
	r.Sandbox.ExpiresAt = m.clock.now().UTC().Add(-time.Second)
	m.had(r, engine.StatusCreated)
	m.start()
	m.awaitReason("pending", lifecycle.StateTerminated, lifecycle.ReasonExpired)
	m.awaitEmpty()
}

func TestDeleteDuringStartLeavesNothing(t *testing.T) {
	for _, call := range []string{callCreate, callStart} {
		t.Run(call, func(t *testing.T) {
			m := newMachine(t).start()
			slow := newGate()
			m.engine.failBefore(call, func(ctx context.Context, name string) error {
				err := slow.fault(ctx, name)
				if err != nil {
					t.Error("a call was given up that the engine may carry out all the same")
				}
				return err
			})
			id := m.create()
			slow.await(t)
			if err := m.host.Delete(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if err := m.host.Delete(t.Context(), id); err != nil {
				t.Errorf("delete again while Stopping: %v", err)
			}
			if state := m.get(id).Status.State; state != lifecycle.StateStopping {
				t.Errorf("state while the engine is at work: %s", state)
			}
			close(slow.open)
			m.await(id, lifecycle.StateTerminated)
			m.awaitEmpty()
		})
	}
}

// A call that seems to have failed may be carried out all the same, however late.
func TestContainerThatComesAfterTheEndIsSwept(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	late, stranger := m.record(id, lifecycle.StatePending), m.record("stranger", lifecycle.StatePending)
	m.engine.put(m.containerOf(late, engine.StatusCreated))
	m.engine.put(m.containerOf(stranger, engine.StatusRunning))
	other := m.containerOf(stranger, engine.StatusRunning)
	other.Name = "of-another-service"
	other.Labels[lifecycle.LabelPrefix+"instance"] = "another"
	m.engine.put(other)
	living := m.running()
	m.host.Sweep()
	names := m.engine.names()
	if len(names) != 2 || m.engine.status(container(living)) != engine.StatusRunning || m.engine.status(other.Name) != engine.StatusRunning {
		t.Errorf("after the sweep there is %v, want %s and %s", names, container(living), other.Name)
	}
}

func TestCreateThatSucceedsAfterItsFailure(t *testing.T) {
	for _, call := range []string{callCreate, callStart} {
		t.Run(call, func(t *testing.T) {
			m := newMachine(t).start()
			m.engine.failAfter(call, times(1, fmt.Errorf("%w: no answer within 1s", engine.ErrUnavailable)))
			m.running()
			if names := m.engine.names(); len(names) != 1 {
				t.Errorf("containers: %v", names)
			}
		})
	}
}

func TestProvisioningWaitsForTheEngine(t *testing.T) {
	for _, call := range []string{callEnsureImage, callCreate, callStart, callInspect} {
		t.Run(call, func(t *testing.T) {
			m := newMachine(t).start()
			down := newGate()
			m.engine.failBefore(call, func(context.Context, string) error {
				select {
				case <-down.open:
					return nil
				default:
					return fmt.Errorf("%w: connection refused", engine.ErrUnavailable)
				}
			})
			id := m.create()
			wait.Until(t, "the status says that the engine is away", func() bool { return m.get(id).Status.Reason == lifecycle.ReasonEngineUnavailable },
				func() any { return m.get(id).Status })
			if status := m.get(id).Status; status.State != lifecycle.StatePending || !strings.Contains(status.Message, "connection refused") {
				t.Errorf("status while the engine is away: %+v", status)
			}
			close(down.open)
			m.await(id, lifecycle.StateRunning)
		})
	}
}

func TestProvisioningFailures(t *testing.T) {
	tests := []struct {
		name   string
		call   string
		err    error
		reason lifecycle.Reason
	}{
		{"image", callEnsureImage, fmt.Errorf("%w: manifest unknown", engine.ErrImage), lifecycle.ReasonImagePullError},
		{"image gone before create", callCreate, fmt.Errorf("%w: No such image", engine.ErrImage), lifecycle.ReasonImagePullError},
		{"spec", callCreate, fmt.Errorf("%w: bad mount", engine.ErrInvalid), lifecycle.ReasonContainerError},
		{"start", callStart, fmt.Errorf("%w: OCI runtime create failed", engine.ErrInvalid), lifecycle.ReasonContainerError},
		{"row lifecycle/codes/NETWORK_ERROR", callStart, fmt.Errorf("%w: port is already allocated", engine.ErrNetwork), lifecycle.ReasonNetworkError},
		{"unknown", callStart, errRefused, lifecycle.ReasonContainerError},
		{"removed before its start", callStart, fmt.Errorf("%w: gone", engine.ErrNotFound), lifecycle.ReasonRemovedExternally},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t).start()
			m.engine.failBefore(tt.call, func(_ context.Context, name string) error {
				if name == "execd" {
					return nil
				}
				return tt.err
			})
			id := m.create()
			status := m.awaitReason(id, lifecycle.StateFailed, tt.reason)
			if !strings.Contains(status.Message, tt.err.Error()) {
				t.Errorf("message %q does not say %q", status.Message, tt.err)
			}
			m.awaitEmpty()
		})
	}
}

func TestMoreThanTheHostHas(t *testing.T) {
	for key, quantity := range map[string]string{"cpu": "5", "memory": "9Gi"} {
		t.Run(key, func(t *testing.T) {
			m := newMachine(t).start()
			s := spec()
			s.Resources = lifecycle.ResourceLimits{key: quantity}
			sandbox, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			status := m.awaitReason(sandbox.ID, lifecycle.StateFailed, lifecycle.ReasonResourceLimit)
			if !strings.Contains(status.Message, "resourceLimits."+key) {
				t.Errorf("message: %q", status.Message)
			}
		})
	}
}

func TestProvisionTimeoutShowsTheLog(t *testing.T) {
	m := newMachine(t).start()
	m.engine.logs = "last words"
	m.engine.answerPing(func(w http.ResponseWriter, _ *http.Request) {
		m.clock.advance(31 * time.Second)
		w.WriteHeader(http.StatusTeapot)
	})
	id := m.create()
	status := m.awaitReason(id, lifecycle.StateFailed, lifecycle.ReasonProvisionTimeout)
	for _, part := range []string{"30s", "418", "last words"} {
		if !strings.Contains(status.Message, part) {
			t.Errorf("message %q lacks %q", status.Message, part)
		}
	}
	m.awaitEmpty()
}

// A sandbox with a hundredth of a core needs its time to answer.
func TestSlowAnswerOfExecd(t *testing.T) {
	t.Run("row lifecycle/codes/CONTAINER_STARTING", func(t *testing.T) {
		m := newMachine(t).start()
		answer := make(chan struct{})
		m.engine.answerPing(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-answer:
			case <-r.Context().Done():
			}
		})
		id := m.create()
		wait.Until(t, "the container starts", func() bool { return m.get(id).Status.Reason == lifecycle.ReasonContainerStarting }, func() any { return m.get(id).Status })
		close(answer)
		m.await(id, lifecycle.StateRunning)
	})
}

// A container that another process freezes before its execd has answered would never answer.
func TestFrozenWhilePending(t *testing.T) {
	m := newMachine(t).start()
	m.engine.answerPing(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	id := m.create()
	wait.Until(t, "the container is started", func() bool { return m.engine.count(callStart) == 1 })
	m.engine.happen(container(id), engine.EventFrozen, func(c *engine.Container) { c.Status = engine.StatusFrozen })
	wait.Until(t, "the container is thawed", func() bool { return m.engine.count(callThaw) == 1 })
	m.engine.answerPing(nil)
	m.await(id, lifecycle.StateRunning)
}

func TestEndWhilePending(t *testing.T) {
	tests := []struct {
		name   string
		happen func(m *machine, name string)
		state  lifecycle.State
		reason lifecycle.Reason
	}{
		{"exit 0", func(m *machine, name string) { m.engine.exit(name, 0, false) }, lifecycle.StateTerminated, lifecycle.ReasonEntrypointExited},
		{"exit 3", func(m *machine, name string) { m.engine.exit(name, 3, false) }, lifecycle.StateFailed, lifecycle.ReasonEntrypointExited},
		{"out of memory", func(m *machine, name string) { m.engine.exit(name, 137, true) }, lifecycle.StateFailed, lifecycle.ReasonOOMKilled},
		{"removed", func(m *machine, name string) { m.engine.happen(name, engine.EventRemoved, nil) }, lifecycle.StateFailed, lifecycle.ReasonRemovedExternally},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t).start()
			m.engine.answerPing(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
			id := m.create()
			wait.Until(t, "the container runs", func() bool { return m.engine.status(container(id)) == engine.StatusRunning },
				func() any { return m.get(id).Status })
			tt.happen(m, container(id))
			m.awaitReason(id, tt.state, tt.reason)
			m.awaitEmpty()
		})
	}
}

// TestAnotherAnswersForExecd: Running is proven by what only the holder of the token can say.
// Whoever else listens on execd's port makes the sandbox Failed, is not followed anywhere, and has
// no word in the message.
func TestAnotherAnswersForExecd(t *testing.T) {
	const foreign = "STOLEN"
	visited := make(chan string, 100)
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visited <- r.URL.Path
		w.Header().Set(sandboxhttp.ProofHeader, sandboxhttp.Proof("token", r.Header.Get(sandboxhttp.ChallengeHeader)))
	}))
	defer inside.Close()
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"200":  func(http.ResponseWriter, *http.Request) {},
		"text": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, foreign) },
		"redirection": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.URL+"/"+foreign, http.StatusFound)
		},
		"refusal": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, foreign, http.StatusInternalServerError) },
		"another token": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(sandboxhttp.ProofHeader, sandboxhttp.Proof(foreign, r.Header.Get(sandboxhttp.ChallengeHeader)))
		},
		"no HTTP": func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(connection, foreign+"\r\n\r\n")
			connection.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t).start()
			m.engine.answerPing(func(w http.ResponseWriter, r *http.Request) {
				m.clock.advance(200 * time.Millisecond)
				w.Header().Del(sandboxhttp.ProofHeader)
				if r.Header.Get("X-EXECD-ACCESS-TOKEN") != "" {
					t.Error("the token was sent to whoever listens")
				}
				answer(w, r)
			})
			status := m.awaitReason(m.create(), lifecycle.StateFailed, lifecycle.ReasonDaemonReplaced)
			if strings.Contains(status.Message, foreign) || !strings.Contains(status.Message, "does not have the sandbox's token") {
				t.Errorf("the message is %q", status.Message)
			}
			m.awaitEmpty()
		})
	}
	if len(visited) > 0 {
		t.Errorf("a redirection was followed to %s", wait.For(t, "the address", visited))
	}
}
