// Package task runs the tasks of batches through the task-executors in their pods, and follows
// them.
package task

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
)

const (
	// waitTime is how long an executor holds a request for news.
	waitTime = 30 * time.Second
	// answerTime is how long any other answer may take, and one for news longer than waitTime.
	answerTime = 10 * time.Second
	// unknownAfter is how long an executor that has answered before may not answer until its task
	// is Unknown.
	unknownAfter = 5 * time.Second
	// first and last bound the pause between tries.
	firstPause, lastPause = 50 * time.Millisecond, 2 * time.Second

	// askEvery is how often an executor is asked at most, once it was asked askAtOnce times: one
	// that always has news would otherwise keep the controller and the API server busy.
	askEvery  = time.Second
	askAtOnce = 8

	// maxMessage bounds what is kept of an executor's message, in bytes.
	maxMessage = 4096
)

// Tasks follows the task of each pod with a request that the executor answers when the task has
// changed. It keeps nothing that an executor does not have: after a restart the executors are asked
// for the same tasks again.
type Tasks struct {
	enqueue func(namespace, name string)
	sign    Sign
	live    client.Reader
	client  *http.Client
	port    int

	ctx    context.Context // ends all followers
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	batches map[types.NamespacedName]*followed
}

// followed is a batch.
type followed struct {
	uid       types.UID
	followers map[int]*follower // by the sandboxes' numbers
	secrets   *secrets          // that its tasks name
}

// Sign returns what makes the proofs that open the executor of a pod (tasks.Client).
type Sign func(namespace string, pod types.UID) func(ctx context.Context, challenge string) (string,
	error)

// New returns a Tasks that calls enqueue, which must not block, when the task of a batch has
// changed. It reads the Secrets that tasks name with live, which must not be a cache; sign may be
// nil. The end of Start ends it.
func New(enqueue func(namespace, name string), sign Sign, live client.Reader) *Tasks {
	t := &Tasks{
		enqueue: enqueue, sign: sign, live: live, port: tasks.Port,
		batches: make(map[types.NamespacedName]*followed),
		client:  tasks.NewHTTP(2),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Start waits for the end of the context and then ends everything that goes on. It makes Tasks a
// part of a manager.
func (t *Tasks) Start(ctx context.Context) error {
	<-ctx.Done()
	t.mu.Lock()
	t.cancel()
	t.mu.Unlock()
	t.done.Wait()
	t.client.CloseIdleConnections()
	return nil
}

// Sync asks for the task of every pod that is there, once, and returns what is known of each: how
// it ended, also when its pod is gone. It never waits for an executor.
func (t *Tasks) Sync(_ context.Context, b *v1alpha1.BatchSandbox,
	pods []*corev1.Pod) ([]batch.TaskState, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	f := t.batches[key]
	if f != nil && f.uid != b.UID {
		f.end()
		f = nil
	}
	if f == nil {
		f = &followed{uid: b.UID, followers: make(map[int]*follower),
			secrets: &secrets{reader: t.live, namespace: b.Namespace}}
		t.batches[key] = f
	}
	states := make([]batch.TaskState, len(pods))
	for number, pod := range pods {
		old := f.followers[number]
		if old != nil && (pod == nil && !old.ended() || pod != nil && old.pod != pod.UID) {
			old.cancel()
			delete(f.followers, number)
			old = nil
		}
		states[number] = batch.TaskState{Phase: batch.TaskPending, Message: "waits for its pod"}
		if pod == nil && old != nil {
			states[number] = old.state()
		}
		if pod == nil || pod.Status.PodIP == "" || t.ctx.Err() != nil {
			continue
		}
		// A pod gets another address when its node was started again, and the old one may be
		// another pod's by then.
		if old == nil || old.address != pod.Status.PodIP && !old.ended() {
			body, sources, err := body(b, number)
			if err != nil {
				states[number] = batch.TaskState{Phase: batch.TaskFailed,
					Reason: v1alpha1.ReasonInvalidTemplate, Message: err.Error()}
				continue
			}
			if old != nil {
				old.cancel()
			}
			old = t.follow(key, fmt.Sprintf("%s-%d", b.UID, number), f.secrets.fill(body, sources),
				pod, old)
			f.followers[number] = old
		}
		states[number] = old.state()
	}
	for _, number := range slices.Collect(maps.Keys(f.followers)) {
		if number >= len(pods) {
			f.followers[number].cancel()
			delete(f.followers, number)
		}
	}
	return states, nil
}

// Forget ends the following of a batch's tasks. The tasks go on until their pods are taken away.
func (t *Tasks) Forget(namespace, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if f := t.batches[key]; f != nil {
		f.end()
		delete(t.batches, key)
	}
}

func (f *followed) end() {
	for _, follower := range f.followers {
		follower.cancel()
	}
}

// body is the task of a sandbox: the template with the sandbox's patch. sources has, for each
// variable whose value is in a Secret, where.
func body(b *v1alpha1.BatchSandbox,
	number int) (task tasks.Task, sources map[int]v1alpha1.SecretKeySelector, err error) {
	template, err := batch.TaskTemplate(b, number)
	if err != nil {
		return tasks.Task{}, nil, err
	}
	task = tasks.Task{
		Command: template.Command, Args: template.Args, WorkingDir: template.WorkingDir,
		TimeoutSeconds: template.TimeoutSeconds,
	}
	sources = make(map[int]v1alpha1.SecretKeySelector)
	for i, variable := range template.Env {
		task.Env = append(task.Env, tasks.EnvVar{Name: variable.Name, Value: variable.Value})
		if from := variable.ValueFrom; from != nil {
			sources[i] = from.SecretKeyRef
		}
	}
	if r := template.Readiness; r != nil {
		task.Readiness = &tasks.Readiness{Port: int(r.Port), Path: r.Path}
	}
	if err := task.Validate(); err != nil {
		return task, nil, fmt.Errorf("the task of sandbox %d: %w", number, err)
	}
	return task, sources, nil
}

func (t *Tasks) executor(pod *corev1.Pod) *tasks.Client {
	executor := &tasks.Client{BaseURL: "http://" + net.JoinHostPort(pod.Status.PodIP,
		strconv.Itoa(t.port)), HTTP: t.client}
	if t.sign != nil {
		executor.Sign = t.sign(pod.Namespace, pod.UID)
	}
	return executor
}
