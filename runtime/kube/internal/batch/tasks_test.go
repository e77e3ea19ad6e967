package batch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// withTasks gives a batch with a template a task.
func withTasks(b *v1alpha1.BatchSandbox) {
	b.Spec.TaskTemplate = &v1alpha1.TaskTemplate{Command: []string{"work"}}
	b.Spec.Template.Spec.ShareProcessNamespace = ptr.To(true)
	b.Spec.Template.Spec.Containers = append(b.Spec.Template.Spec.Containers, corev1.Container{
		Name: v1alpha1.ContainerTaskExecutor, Image: "sandbox/execd:dev",
		SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE"}}},
	})
}

func TestTasks(t *testing.T) {
	p := newPlace(t)
	tasks := new(script)
	p.control(nil, tasks)
	for name, policy := range map[string]v1alpha1.TaskResourcePolicy{"retain": v1alpha1.TaskRetain,
		"release": v1alpha1.TaskRelease} {
		b := p.batch(name, 4)
		withTasks(b)
		b.Spec.TaskResourcePolicyWhenCompleted = policy
		p.must(p.Create(t.Context(), b))
	}
	p.has("retain", "waiting for its tasks", func(b *v1alpha1.BatchSandbox) bool {
		return b.Status.Allocated == 4 && b.Status.Ready == 0 && b.Status.TaskStats.Pending == 4
	})
	up := batch.TaskState{Phase: batch.TaskRunning, Ready: true}
	well, badly := batch.TaskState{Phase: batch.TaskSucceeded},
		batch.TaskState{Phase: batch.TaskFailed, Reason: "EXITED", Message: "exit code 3"}
	tasks.say(p.namespace, "retain", up, up, up, up)
	p.has("retain", "running", running(4))
	tasks.say(p.namespace, "retain", up, well, badly, batch.TaskState{Phase: batch.TaskUnknown})
	t.Run("row lifecycle/cluster/BatchSandbox status.taskStats", func(t *testing.T) {
		b := p.has("retain", "counted", func(b *v1alpha1.BatchSandbox) bool {
			return *b.Status.TaskStats == v1alpha1.TaskStats{Running: 1, Succeed: 1, Failed: 1,
				Unknown: 1}
		})
		if b.Status.Outcomes != "-sf" || len(p.pods("retain")) != 4 {
			t.Errorf("outcomes %q, pods %q", b.Status.Outcomes, p.pods("retain"))
		}
	})
	t.Run("row lifecycle/cluster/BatchSandbox columns: of tasks", func(t *testing.T) {
		out, err := p.kubectl("", "get", "bsbx", "retain", "-o", "wide", "--no-headers")
		p.must(err)
		header, err := p.kubectl("", "get", "bsbx", "retain", "-o", "wide")
		p.must(err)
		// EXPIRE is empty here, so the columns are compared in order.
		if fields := strings.Fields(out); len(fields) < 9 ||
			!slices.Equal(fields[5:9], []string{"1", "1", "1", "1"}) {
			t.Errorf("the line is %q", out)
		}
		if names := strings.Fields(header); !slices.Equal(names[5:9],
			[]string{"TASK_RUNNING", "TASK_SUCCEED", "TASK_FAILED", "TASK_UNKNOWN"}) {
			t.Errorf("the columns are %q", header)
		}
	})

	// Release: a sandbox goes with its task, and the batch with the last of them.
	p.has("release", "there",
		func(b *v1alpha1.BatchSandbox) bool { return b.Status.Allocated == 4 })
	tasks.say(p.namespace, "release", up, well, well, up)
	p.eventually(func() error {
		if pods := p.pods("release"); !slices.Equal(pods, []string{"release-0", "release-3"}) {
			return fmt.Errorf("the pods are %q", pods)
		}
		return nil
	})
	p.stop() // what has ended is on record: another controller neither repeats nor loses it
	p.control(nil, tasks)
	tasks.say(p.namespace, "release", well, well, well, badly)
	b := p.reaches("release", v1alpha1.PhaseFailed)
	if *b.Status.TaskStats != (v1alpha1.TaskStats{Succeed: 3, Failed: 1}) ||
		b.Status.Reason != v1alpha1.ReasonEntrypointExited ||
		!strings.Contains(b.Status.Message, "sandbox 3: exit code 3") ||
		len(p.pods("release")) > 0 {
		t.Errorf("%+v", b.Status)
	}
}

// TestLostExecutor: a task ends with its executor's container, when that is not started again.
func TestLostExecutor(t *testing.T) {
	p := newPlace(t)
	tasks := new(script)
	p.control(nil, tasks)
	b := p.batch("b", 3)
	withTasks(b)
	b.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	p.must(p.Create(t.Context(), b))
	p.has("b", "there", func(b *v1alpha1.BatchSandbox) bool { return b.Status.Allocated == 3 })
	up, unknown := batch.TaskState{Phase: batch.TaskRunning, Ready: true},
		batch.TaskState{Phase: batch.TaskUnknown}
	tasks.say(p.namespace, "b", up, up, up)
	p.has("b", "running", running(3))
	for number, code := range []int32{0, 1} { // the second is started again
		status := p.pod(fmt.Sprintf("b-%d", number)).Status
		for i := range status.ContainerStatuses {
			if c := &status.ContainerStatuses[i]; c.Name == v1alpha1.ContainerTaskExecutor {
				c.State = corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
			}
		}
		p.show(fmt.Sprintf("b-%d", number), status, false)
	}
	tasks.say(p.namespace, "b", unknown, unknown, up)
	b = p.has("b", "without a task", func(b *v1alpha1.BatchSandbox) bool {
		return *b.Status.TaskStats == v1alpha1.TaskStats{Failed: 1, Unknown: 1, Running: 1}
	})
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionDegraded); c == nil ||
		c.Reason != "EXECUTOR_LOST" || b.Status.Outcomes != "f" {
		t.Errorf("outcomes %q, condition %+v", b.Status.Outcomes, c)
	}
}

// TestTasksEndBeforePodsGo: no task is sent to a pod that is given back, whatever it is given back
// for.
func TestTasksEndBeforePodsGo(t *testing.T) {
	p := newPlace(t)
	tasks, wrong := new(script), make(chan string, 10)
	pools := &heap{releasing: func(b *v1alpha1.BatchSandbox, shards []int) {
		if tasks.follows(b, shards) {
			wrong <- b.Name
		}
	}}
	p.ahead.Store(int64(time.Hour))
	p.control(pools, tasks)
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Name: "warm", Namespace: p.namespace}}
	withTask := p.batch("x", 1)
	withTasks(withTask)
	pool.Spec.Template = withTask.Spec.Template
	p.must(p.Create(t.Context(), pool))
	up := batch.TaskState{Phase: batch.TaskRunning, Ready: true}
	for name, end := range map[string]func(*v1alpha1.BatchSandbox){
		"deleted": func(b *v1alpha1.BatchSandbox) { p.must(p.Delete(t.Context(), b)) },
		"stopped": func(b *v1alpha1.BatchSandbox) {
			p.change(b.Name, func(b *v1alpha1.BatchSandbox) {
				b.Annotations[v1alpha1.AnnotationStop] = v1alpha1.ReasonUserDelete
			})
		},
		"overdue": nil,
	} {
		pools.stock(p, name, 1)
		b := p.batch(name, 1)
		b.Spec.Template, b.Spec.PoolRef, b.Spec.TaskTemplate = nil, "warm", withTask.Spec.TaskTemplate
		if end == nil {
			b.Spec.ProvisionTimeoutSeconds = ptr.To[int32](1)
		}
		p.must(p.Create(t.Context(), b))
		if end != nil {
			tasks.say(p.namespace, name, up)
			end(p.has(name, "running", running(1)))
		}
		p.losesWarmPod(name)
	}
	p.stop()
	close(wrong)
	for name := range wrong {
		t.Errorf("the pod of the batch %s was given back while its task was followed", name)
	}
}
