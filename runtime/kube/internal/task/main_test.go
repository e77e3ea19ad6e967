package task

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// executor serves the interface of a task-executor for one task. The real one is tested in
// taskexecutor, with the client that is used here.
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
	name, one := strings.CutPrefix(r.URL.Path, "/tasks/")
	switch {
	case r.Method == http.MethodPut:
		var body tasks.Task
		_ = json.NewDecoder(r.Body).Decode(&body)
		e.puts++
		if e.task == nil {
			e.body, e.task = body, &tasks.Status{Name: name, State: tasks.Pending}
			e.version++
		}
		if !reflect.DeepEqual(e.body, body) {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(tasks.Error{Code: tasks.CodeTaskDiffers})
			return
		}
		_ = json.NewEncoder(w).Encode(e.task)
	case one && e.task == nil:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(tasks.Error{Code: tasks.CodeNotFound})
	case one:
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
	stop     func()
	port     int
	secrets  secretStore
}

// secretStore has the Secrets that there are, by their names: a client.Reader of nothing else.
type secretStore struct {
	mu      sync.Mutex
	entries map[string]map[string][]byte
}

func (s *secretStore) set(name string, entries map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = map[string]map[string][]byte{name: entries}
}

func (s *secretStore) Get(_ context.Context, key client.ObjectKey, object client.Object,
	_ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, ok := s.entries[key.Name]
	if !ok {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	object.(*corev1.Secret).Data = entries
	return nil
}

func (s *secretStore) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("listing is not supported")
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, executor: &executor{changed: make(chan struct{})},
		woken: make(chan struct{}, 1)}
	server := httptest.NewServer(w.executor)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	w.port, _ = strconv.Atoi(port)
	w.start()
	w.batch = &v1alpha1.BatchSandbox{Spec: v1alpha1.BatchSandboxSpec{Replicas: 1,
		TaskTemplate: &v1alpha1.TaskTemplate{Command: []string{"work"}}}}
	w.batch.Namespace, w.batch.Name, w.batch.UID = "n", "b", "00000000-0000-0000-0000-000000000001"
	w.pod = &corev1.Pod{Status: corev1.PodStatus{PodIP: host}}
	w.pod.UID = "p"
	return w
}

// start makes the controller's part, and stop ends it.
func (w *world) start() {
	w.tasks = New(func(string, string) {
		select {
		case w.woken <- struct{}{}:
		default:
		}
	}, nil, &w.secrets)
	w.tasks.port = w.port
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.tasks.Start(ctx) })
	w.stop = func() {
		cancel()
		running.Wait()
	}
	w.Cleanup(w.stop)
}

// becomes waits for requests to reconcile until Sync returns what is wanted.
func (w *world) becomes(what string, wanted func(s batch.TaskState) bool) batch.TaskState {
	w.Helper()
	late := time.After(wait.Patience())
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

// isAskedFor waits until the executor has the task.
func (w *world) isAskedFor() {
	w.Helper()
	w.becomes("asked for", func(batch.TaskState) bool {
		w.executor.mu.Lock()
		defer w.executor.mu.Unlock()
		return w.executor.task != nil
	})
}
