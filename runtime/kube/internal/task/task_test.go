package task

import (
	"fmt"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

func TestLife(t *testing.T) {
	w := newWorld(t)
	w.batch.Spec.ShardTaskPatches = []runtime.RawExtension{{Raw: []byte(
		`{"args":["a"],"timeoutSeconds":7}`)}}
	put := func() int {
		w.executor.mu.Lock()
		defer w.executor.mu.Unlock()
		return w.executor.puts
	}
	w.becomes("asked for",
		func(s batch.TaskState) bool { return s.Phase == batch.TaskPending && put() > 0 })
	w.executor.change(func() { w.executor.task.State = tasks.Running })
	if s := w.becomes("running", in(batch.TaskRunning)); s.Ready {
		t.Errorf("%+v", s)
	}
	w.executor.change(func() { w.executor.task.Ready = true })
	w.becomes("ready", func(s batch.TaskState) bool { return s.Ready })

	// No executor answers for a while, and then one does.
	w.executor.change(func() { w.executor.down = true })
	w.becomes("unknown", in(batch.TaskUnknown))
	w.executor.change(func() { w.executor.down = false })
	w.becomes("running again", in(batch.TaskRunning))

	code := 3
	w.executor.change(func() {
		w.executor.task.State, w.executor.task.Reason, w.executor.task.ExitCode = tasks.Failed,
			tasks.ReasonExited, &code
	})
	if s := w.becomes("failed", in(batch.TaskFailed)); s.ExitCode == nil || *s.ExitCode != 3 ||
		s.Reason != tasks.ReasonExited {
		t.Errorf("%+v", s)
	}
	if n := put(); n != 1 {
		t.Errorf("the task was asked for %d times", n)
	}
	if body := w.executor.body; fmt.Sprint(body.Command, body.Args,
		body.TimeoutSeconds) != "[work] [a] 7" {
		t.Errorf("the task is %+v", body)
	}
}

// TestForgotten: a task that its executor has lost is not run a second time.
func TestForgotten(t *testing.T) {
	w := newWorld(t)
	w.becomes("asked for", func(batch.TaskState) bool {
		w.executor.mu.Lock()
		defer w.executor.mu.Unlock()
		return w.executor.task != nil
	})
	w.executor.change(func() { w.executor.task.State = tasks.Running })
	w.becomes("running", in(batch.TaskRunning))
	w.executor.change(func() { w.executor.task = nil })
	if s := w.becomes("lost", in(batch.TaskFailed)); s.Reason != tasks.ReasonExecutorLost ||
		w.executor.puts != 1 {
		t.Errorf("%+v after %d requests", s, w.executor.puts)
	}
}

// TestAnotherAddress: a pod whose node was started again has another address. The task is asked for
// there, where its executor has it, and not started a second time.
func TestAnotherAddress(t *testing.T) {
	w := newWorld(t)
	w.becomes("asked for", func(batch.TaskState) bool {
		w.executor.mu.Lock()
		defer w.executor.mu.Unlock()
		return w.executor.task != nil
	})
	w.executor.change(func() { w.executor.task.State = tasks.Running })
	w.becomes("running", in(batch.TaskRunning))

	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(w.tasks.port)))
	if err != nil {
		t.Fatal(err)
	}
	code := 0
	moved := &executor{changed: make(chan struct{}), version: 1, task: &tasks.Status{
		Name: w.executor.task.Name, State: tasks.Succeeded, ExitCode: &code}}
	server := httptest.NewUnstartedServer(moved)
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	w.executor.change(func() { w.executor.down = true })
	w.pod.Status.PodIP = "127.0.0.2"
	w.becomes("succeeded", in(batch.TaskSucceeded))
	moved.mu.Lock()
	defer moved.mu.Unlock()
	if moved.puts != 0 {
		t.Errorf("the task was asked for %d times at the new address", moved.puts)
	}
}

func TestWithoutAnAnswer(t *testing.T) {
	w := newWorld(t)
	w.pod.Status.PodIP = ""
	w.becomes("waiting for the pod",
		func(s batch.TaskState) bool {
			return s.Phase == batch.TaskPending &&
				s.Message == "waits for its pod"
		})
	w.pod.Status.PodIP = "127.0.0.1"
	w.executor.change(func() { w.executor.down = true })
	w.becomes("waiting for the executor", func(s batch.TaskState) bool {
		return s.Phase == batch.TaskPending && s.Message == "its task-executor does not answer yet"
	})
	w.pod.UID = "another" // a pod of the same number: it is followed from the beginning
	w.executor.change(func() { w.executor.down = false })
	w.becomes("asked for", func(batch.TaskState) bool {
		w.executor.mu.Lock()
		defer w.executor.mu.Unlock()
		return w.executor.task != nil &&
			w.executor.task.Name == "00000000-0000-0000-0000-000000000001-0"
	})
	w.tasks.Forget("n", "b")
	if len(w.tasks.batches) != 0 {
		t.Error("the batch is kept")
	}
	w.batch.UID = types.UID("00000000-0000-0000-0000-000000000002")
	w.batch.Spec.TaskTemplate.Command = []string{""}
	if s := w.becomes("refused", in(batch.TaskFailed)); s.Reason != v1alpha1.ReasonInvalidTemplate {
		t.Errorf("%+v", s)
	}
}

// TestHostileExecutor: what an executor says is the sandbox's to say. It costs the controller a
// request a second, and a bound of bytes.
func TestHostileExecutor(t *testing.T) {
	w := newWorld(t)
	w.becomes("asked for", func(batch.TaskState) bool {
		w.executor.mu.Lock()
		defer w.executor.mu.Unlock()
		return w.executor.task != nil
	})
	began := time.Now()
	w.executor.change(func() { w.executor.task.State, w.executor.news = tasks.Running, true })
	asked := func() int {
		w.executor.mu.Lock()
		defer w.executor.mu.Unlock()
		return w.executor.asked
	}
	w.becomes("asked for often", func(batch.TaskState) bool { return asked() > askAtOnce+1 })
	if n, most := asked(), askAtOnce+2+int(time.Since(began)/askEvery); n > most {
		t.Errorf("the executor was asked %d times in %v, want at most %d", n, time.Since(began),
			most)
	}
	w.executor.change(func() { w.executor.news, w.executor.padding = false, tasks.MaxAnswer })
	w.becomes("unknown", in(batch.TaskUnknown))
	w.executor.change(func() {
		w.executor.padding, w.executor.task.State = 0, tasks.Failed
		w.executor.task.Reason, w.executor.task.Message = "no reason",
			"red \x1b[31m"+strings.Repeat("x", 2*maxMessage)
	})
	s := w.becomes("failed", in(batch.TaskFailed))
	if s.Reason != "REASON_UNKNOWN" || len(s.Message) > maxMessage+3 ||
		strings.Contains(s.Message, "\x1b") {
		t.Errorf("reason %q, message of %d bytes: %.20q", s.Reason, len(s.Message), s.Message)
	}
}

// TestSecretsChange: a task waits for its Secret, and once it was started the Secret may change or
// go: a controller that is started then follows the task as before.
func TestSecretsChange(t *testing.T) {
	w := newWorld(t)
	w.batch.Spec.TaskTemplate.Env = []v1alpha1.EnvVar{{Name: "A",
		ValueFrom: &v1alpha1.EnvVarSource{
			SecretKeyRef: v1alpha1.SecretKeySelector{Name: "s", Key: "k"}}}}
	w.secrets.set("s", map[string][]byte{"other": []byte("x")})
	w.becomes("waiting for its Secret", func(s batch.TaskState) bool {
		return s.Phase == batch.TaskPending && strings.Contains(s.Message, "no entry k in Secret s")
	})
	w.secrets.set("s", map[string][]byte{"k": []byte("1")})
	w.isAskedFor()
	w.executor.change(func() { w.executor.task.State = tasks.Running })
	w.becomes("running", in(batch.TaskRunning))
	for _, there := range []string{"s", "another"} {
		w.stop()
		w.secrets.set(there, map[string][]byte{"k": []byte("2")})
		w.start()
		w.becomes("running still", in(batch.TaskRunning))
	}
	w.executor.mu.Lock()
	defer w.executor.mu.Unlock()
	if env := w.executor.body.Env; w.executor.puts != 1 || len(env) != 1 || env[0].Value != "1" {
		t.Errorf("asked for %d times, with %v", w.executor.puts, env)
	}
}

// TestUnknownForAWhile: an executor that cannot read what is recorded may be able to later.
func TestUnknownForAWhile(t *testing.T) {
	w := newWorld(t)
	w.isAskedFor()
	w.executor.change(func() { w.executor.task.State = tasks.Unknown })
	w.becomes("unknown", in(batch.TaskUnknown))
	w.executor.change(func() { w.executor.task.State = tasks.Running })
	w.becomes("running", in(batch.TaskRunning))
}

// TestEndOfTaskAndPod: how a task ended is known, though its pod was gone when that was asked for.
func TestEndOfTaskAndPod(t *testing.T) {
	w := newWorld(t)
	w.isAskedFor()
	w.tasks.mu.Lock()
	followed := w.tasks.batches[types.NamespacedName{Namespace: "n", Name: "b"}].followers[0]
	w.tasks.mu.Unlock()
	w.executor.change(func() { w.executor.task.State = tasks.Succeeded })
	for late := time.After(wait.Patience()); !followed.ended(); {
		select {
		case <-w.woken:
		case <-late:
			t.Fatalf("the task has not ended: %+v", followed.state())
		}
	}
	another := w.pod.DeepCopy()
	another.UID, another.Status.PodIP = "another", ""
	for _, look := range []struct {
		pod  *corev1.Pod
		want batch.TaskPhase
	}{{nil, batch.TaskSucceeded}, {nil, batch.TaskSucceeded}, {another, batch.TaskPending}} {
		states, err := w.tasks.Sync(t.Context(), w.batch, []*corev1.Pod{look.pod})
		if err != nil || states[0].Phase != look.want {
			t.Errorf("%+v, %v; want %s", states, err, look.want)
		}
	}
}
