package task

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/runtime/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take on a machine that does other things, too.
const patience = time.Minute

// executor serves the interface of a task-executor for one task. The real one is tested in
// execd/task, with the client that is used here.
type executor struct {
	mu      sync.Mutex
	changed chan struct{}
	version int64
	task    *tasks.Status
	body    tasks.Task
	puts    int
	down    bool
	news    bool // every answer has news
	asked   int  // for news
	padding int  // bytes of spaces behind every list
}

func (e *executor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		panic(http.ErrAbortHandler)
	}
	switch r.Method {
	case http.MethodPut:
		e.puts++
		if e.task == nil {
			_ = json.NewDecoder(r.Body).Decode(&e.body)
			e.task = &tasks.Status{Name: r.URL.Path[len("/tasks/"):], State: tasks.Pending}
			e.version++
		}
		_ = json.NewEncoder(w).Encode(e.task)
	default:
		e.asked++
		if e.news {
			e.version++
			e.task.Ready = !e.task.Ready
		}
		since, _ := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
		for e.version == since && !e.down && r.Context().Err() == nil {
			changed := e.changed
			e.mu.Unlock()
			select {
			case <-changed:
			case <-r.Context().Done():
			}
			e.mu.Lock()
		}
		if e.down {
			panic(http.ErrAbortHandler)
		}
		list := tasks.List{Version: e.version}
		if e.task != nil {
			list.Items = append(list.Items, *e.task)
		}
		_ = json.NewEncoder(w).Encode(list)
		_, _ = w.Write(bytes.Repeat([]byte(" "), e.padding))
	}
}

func (e *executor) change(do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do()
	e.version++
	close(e.changed)
	e.changed = make(chan struct{})
}

// world is a Tasks and the executor of its only pod.
type world struct {
	*testing.T
	tasks    *Tasks
	executor *executor
	batch    *v1alpha1.BatchSandbox
	pod      *corev1.Pod
	woken    chan struct{}
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, executor: &executor{changed: make(chan struct{})},
		woken: make(chan struct{}, 1)}
	server := httptest.NewServer(w.executor)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	w.tasks = New(func(string, string) {
		select {
		case w.woken <- struct{}{}:
		default:
		}
	}, nil, nil)
	w.tasks.port, _ = strconv.Atoi(port)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.tasks.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		server.CloseClientConnections()
		server.Close()
	})
	w.batch = &v1alpha1.BatchSandbox{Spec: v1alpha1.BatchSandboxSpec{Replicas: 1,
		TaskTemplate: &v1alpha1.TaskTemplate{Command: []string{"work"}}}}
	w.batch.Namespace, w.batch.Name, w.batch.UID = "n", "b", "00000000-0000-0000-0000-000000000001"
	w.pod = &corev1.Pod{Status: corev1.PodStatus{PodIP: host}}
	w.pod.UID = "p"
	return w
}

// becomes waits for requests to reconcile until Sync returns what is wanted.
func (w *world) becomes(what string, wanted func(s batch.TaskState) bool) batch.TaskState {
	w.Helper()
	late := time.After(patience)
	for {
		states, err := w.tasks.Sync(w.Context(), w.batch, []*corev1.Pod{w.pod})
		if err != nil {
			w.Fatal(err)
		}
		if wanted(states[0]) {
			return states[0]
		}
		select {
		case <-w.woken:
		case <-late:
			w.Fatalf("the task is not %s: %+v", what, states[0])
		}
	}
}

func in(phase batch.TaskPhase) func(s batch.TaskState) bool {
	return func(s batch.TaskState) bool { return s.Phase == phase }
}

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
