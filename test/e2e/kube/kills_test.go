package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/cluster"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

const (
	operations = 200 // creations and deletions
	killEvery  = 10  // operations
	most       = 10  // batches at a time
)

// TestKills creates and deletes batches and sandboxes while the controller, the service, the
// kubelet and the API server are killed, one after the other and at random moments. Afterwards
// everything is as it was asked for, and nothing else is there. The last two are left alone in a
// cluster of KUBECONFIG.
func TestKills(t *testing.T) {
	backend := onKubernetes()
	backend.Settings = settings // without a controller of its own
	s := conformance.Start(t, backend, conformance.Plan{Program: true})
	p := &player{
		t: t, Service: s, directory: t.TempDir(), kubeconfig: accounts(t, s.Instance).Controller,
		random: random.New(t), expected: map[string]*v1alpha1.BatchSandbox{},
	}
	p.startController()
	t.Cleanup(func() {
		p.revive()
		emptied(t, s.Instance)
		p.killController()
	})
	p.create(plainPoolIn(s.Instance, 4, 16))

	for n := range operations {
		if n%killEvery == killEvery/2 {
			p.kill(n / killEvery)
		}
		if n%killEvery == killEvery/2+3 { // meanwhile three operations were done without it
			p.revive()
		}
		p.operate(n)
	}
	p.revive()
	t.Logf("%d made, %d of them over HTTP, %d deleted; killed: %v", p.made, len(p.sandboxes),
		p.deleted, p.kills)
	p.check()
}

// player makes changes in a cluster and records their expected results.
type player struct {
	t *testing.T
	*conformance.Service
	random     *rand.Rand
	directory  string // of the controller's log
	kubeconfig string // of the controller
	controller *exec.Cmd
	restore    func() // starts what was killed; nil when everything runs

	expected  map[string]*v1alpha1.BatchSandbox // what must be there in the end
	expiring  []*v1alpha1.BatchSandbox          // what must not, for its time is up
	sandboxes []string                          // of the service, the deleted ones among them

	made, deleted int
	kills         map[string]int
}

func (p *player) startController() {
	p.t.Helper()
	program := conformance.Build(p.t, "sandbox.internal/server/cmd/sandbox-controller")
	log, err := os.OpenFile(filepath.Join(p.directory, "controller.log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.controller = exec.Command(program, "--kubeconfig", p.kubeconfig, "--namespace", p.Instance,
		"--metrics-bind-address", "0", "--health-probe-bind-address", "0")
	p.controller.Stderr = log
	if err := p.controller.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *player) killController() {
	_ = p.controller.Process.Kill() // its only error is that the process has ended
	_ = p.controller.Wait()         // killed
}

// revive starts what was killed.
func (p *player) revive() {
	if p.restore != nil {
		p.restore()
		p.restore = nil
	}
}

// kill kills one of the four. The controller and the kubelet stay down until restore; without the
// others no request is answered.
func (p *player) kill(turn int) {
	if p.kills == nil {
		p.kills = map[string]int{}
	}
	component := func(name cluster.Component) func() {
		if kubernetes.Directory == "" {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
		defer cancel()
		if err := kubernetes.Kill(ctx, name); err != nil {
			p.t.Fatal(err)
		}
		p.kills[string(name)]++
		return func() {
			ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
			defer cancel()
			if err := kubernetes.Restore(ctx, name); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	switch turn % 4 {
	case 0:
		p.killController()
		p.kills["controller"]++
		p.restore = p.startController
	case 1:
		p.Kill()
		p.kills["server"]++
		p.Boot(p.t)
	case 2:
		p.restore = component(cluster.Kubelet)
	case 3:
		p.restore = component(cluster.APIServer)
		p.revive()
	}
}

// operate creates or deletes something.
func (p *player) operate(n int) {
	p.t.Helper()
	if len(p.expected) >= most || len(p.expected) > 0 && p.random.IntN(5) < 2 {
		names := make([]string, 0, len(p.expected))
		for name := range p.expected {
			names = append(names, name)
		}
		slices.Sort(names)
		p.delete(names[p.random.IntN(len(names))])
		return
	}
	p.made++
	if p.random.IntN(4) == 0 {
		var id string
		eventually(p.t, "the service creates a sandbox", func(context.Context) error {
			got, err := p.Try("POST", "/v1/sandboxes", conformance.Encode(p.t, p.Idle()),
				"Idempotency-Key", fmt.Sprint("operation ", n))
			if err != nil {
				return err
			}
			created, err := conformance.Decode[struct{ ID string }](got)
			id = created.ID
			return err
		})
		p.sandboxes = append(p.sandboxes, id)
		p.expected[id] = nil
		return
	}
	batch := &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Instance, Name: fmt.Sprintf("batch-%d", n)},
		Spec:       v1alpha1.BatchSandboxSpec{Replicas: 1 + p.random.Int32N(2)},
	}
	if p.random.IntN(2) == 0 {
		batch.Spec.PoolRef = "plain"
	} else {
		batch.Spec.Template = &corev1.PodTemplateSpec{Spec: plainPod()}
	}
	if p.random.IntN(5) == 0 {
		batch.Spec.ExpireTime = &metav1.Time{Time: time.Now().Add(
			time.Duration(5+p.random.IntN(20)) * time.Second)}
		p.expiring = append(p.expiring, batch)
	} else {
		p.expected[batch.Name] = batch
	}
	p.create(batch)
}

func (p *player) create(object client.Object) {
	p.t.Helper()
	eventually(p.t, object.GetName()+" is accepted", func(ctx context.Context) error {
		err := admin.Create(ctx, object)
		if apierrors.IsAlreadyExists(err) { // an answer was lost
			err = nil
		}
		return err
	})
}

func (p *player) delete(name string) {
	p.t.Helper()
	batch := p.expected[name]
	delete(p.expected, name)
	p.deleted++
	eventually(p.t, name+" is deleted", func(ctx context.Context) error {
		if batch != nil {
			return client.IgnoreNotFound(admin.Delete(ctx,
				&v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: p.Instance,
					Name: name}}))
		}
		got, err := p.Try("DELETE", "/v1/sandboxes/"+name, "")
		switch {
		case err != nil || got.Status == 204 || got.Status == 404:
		case got.Status == 409: // it has ended by itself
			status := p.Get(p.t, name).Status
			p.endedByItself(name, status.Reason, status.Message)
		default:
			err = fmt.Errorf("%s", got)
		}
		return err
	})
}

// check waits until everything is as it was asked for, and nothing else is there.
func (p *player) check() {
	p.t.Helper()
	eventually(p.t, "every batch is as it was asked for, and nothing else is there",
		func(ctx context.Context) error {
			for _, id := range p.sandboxes {
				if status := p.Get(p.t, id).Status; status.State == "Failed" {
					p.endedByItself(id, status.Reason, status.Message)
				}
			}
			var batches v1alpha1.BatchSandboxList
			var pods corev1.PodList
			for _, list := range []client.ObjectList{&batches, &pods} {
				if err := admin.List(ctx, list, client.InNamespace(p.Instance)); err != nil {
					return err
				}
			}
			return p.compare(batches.Items, pods.Items)
		})
	for _, id := range p.sandboxes {
		want := "Terminated"
		if _, lives := p.expected[id]; lives {
			want = "Running"
		}
		if got := p.Get(p.t, id).Status; got.State != want {
			p.t.Errorf("sandbox %s is %s (%s: %s), want %s", id, got.State, got.Reason, got.Message,
				want)
		}
	}
}

// endedByItself fails the test, with what the kubelet reported of the pods.
func (p *player) endedByItself(name, reason, message string) {
	p.t.Helper()
	var pods corev1.PodList
	err := admin.List(wait.Context(p.t), &pods, client.InNamespace(p.Instance),
		client.MatchingLabels{v1alpha1.LabelBatch: name})
	for _, pod := range pods.Items {
		status, _ := json.Marshal(pod.Status)
		p.t.Logf("pod %s: %s", pod.Name, status)
	}
	p.t.Fatalf("%s has ended by itself: %s: %s (pods: %v)", name, reason, message, err)
}

func (p *player) compare(batches []v1alpha1.BatchSandbox, pods []corev1.Pod) error {
	missing := map[string]bool{}
	for name := range p.expected {
		missing[name] = true
	}
	holder := map[string]string{} // of each pod that belongs to a batch
	for _, batch := range batches {
		_, wanted := p.expected[batch.Name]
		switch {
		case !wanted && slices.Contains(p.sandboxes, batch.Name) && batch.Status.Phase.Finished():
			continue // the record
		case !wanted:
			return fmt.Errorf("batch %s is there: %s, expires %v", batch.Name, batch.Status.Phase,
				batch.Spec.ExpireTime)
		case batch.Status.Phase == v1alpha1.PhaseFailed:
			p.endedByItself(batch.Name, batch.Status.Reason, batch.Status.Message)
		case batch.Status.Phase != v1alpha1.PhaseRunning ||
			batch.Status.Ready != batch.Spec.Replicas:
			return fmt.Errorf("batch %s is %s (%s), %d of %d are ready", batch.Name,
				batch.Status.Phase, batch.Status.Reason, batch.Status.Ready, batch.Spec.Replicas)
		}
		delete(missing, batch.Name)
		held := []string{}
		if batch.Spec.PoolRef != "" {
			allocation, err := batch.Allocation()
			if err != nil {
				return err
			}
			held = allocation.Pods
		} else {
			for number := range batch.Spec.Replicas {
				held = append(held, fmt.Sprintf("%s-%d", batch.Name, number))
			}
		}
		if len(held) != int(batch.Spec.Replicas) {
			return fmt.Errorf("batch %s holds %v, want %d pods", batch.Name, held,
				batch.Spec.Replicas)
		}
		for _, pod := range held {
			if other, given := holder[pod]; given {
				p.t.Fatalf("pod %s is in two allocations: of %s and of %s", pod, other, batch.Name)
			}
			holder[pod] = batch.Name
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("batches are missing: %v", missing)
	}
	for _, pod := range pods {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if holder[pod.Name] == "" && pod.Labels[v1alpha1.LabelPool] == "" &&
			!(ended && slices.Contains(p.sandboxes, strings.TrimSuffix(pod.Name, "-0"))) {
			return fmt.Errorf("pod %s is an orphan (%s)", pod.Name, pod.Status.Phase)
		}
		delete(holder, pod.Name)
	}
	if len(holder) > 0 {
		return fmt.Errorf("pods are missing: %v", holder)
	}
	return nil
}

// plainPoolIn is a Pool that keeps a few pods ready.
func plainPoolIn(namespace string, buffer, most int32) *v1alpha1.Pool {
	pool := plainPool(buffer)
	pool.Namespace, pool.Name = namespace, "plain"
	pool.Spec.CapacitySpec = v1alpha1.CapacitySpec{BufferMin: buffer, BufferMax: buffer,
		PoolMin: buffer, PoolMax: most}
	return pool
}
