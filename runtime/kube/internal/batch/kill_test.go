package batch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/random"
)

// The variables that make the test's program a controller, which another one kills.
const (
	envNamespace  = "BATCH_TEST_NAMESPACE"
	envKubeconfig = "BATCH_TEST_KUBECONFIG"
)

// beController runs a controller until the process is killed. It prints a line on standard output
// once it works.
func beController(namespace string) int {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(envKubeconfig))
	if err == nil {
		config.QPS = -1
		err = runController(context.Background(), config, namespace,
			func() { fmt.Println("works") })
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// life is what a batch of the test is meant to be in the end.
type life struct {
	replicas int32
	expires  bool
	deleted  bool
	scaled   bool
	first    map[string]string // the UIDs of its pods when all ran for the first time
}

// TestKilled ends controllers at random moments while batches are made, scaled and deleted. In the
// end all is as if none had been killed.
func TestKilled(t *testing.T) {
	numbers := random.New(t)
	p := newPlace(t)
	ctx, cancel := context.WithCancel(t.Context())
	var killing sync.WaitGroup
	defer killing.Wait()
	defer cancel()
	killing.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if err := p.oneShortLife(ctx, n%2 == 0, numbers); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})

	lives := make(map[string]*life)
	for i := range 24 {
		name := fmt.Sprintf("b%d", i)
		l := &life{replicas: 1 + numbers.Int32N(4)}
		lives[name] = l
		b := p.batch(name, l.replicas)
		p.must(p.Create(t.Context(), b))
		pause(numbers, 200)
		switch i % 4 {
		case 1:
			l.replicas, l.scaled = numbers.Int32N(7), true
			p.change(name, func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = l.replicas })
			if i%8 == 1 {
				pause(numbers, 300)
				l.replicas = numbers.Int32N(7)
				p.change(name, func(b *v1alpha1.BatchSandbox) { b.Spec.Replicas = l.replicas })
			}
		case 2:
			l.expires = true
			p.change(name, func(b *v1alpha1.BatchSandbox) {
				b.Spec.ExpireTime = ptr.To(metav1.NewTime(time.Now().Add(2 * time.Second)))
			})
		case 3:
			l.deleted = true
			p.must(p.Delete(t.Context(), b))
		}
	}
	// The undisturbed ones must keep the pods that they have got, whichever process is killed.
	for name, l := range lives {
		if !l.scaled && !l.expires && !l.deleted {
			p.has(name, "running", running(l.replicas))
			l.first = p.uids(name)
		}
	}
	for range 3 {
		pause(numbers, 600)
	}
	cancel()
	killing.Wait()
	p.control(nil, nil)
	for name, l := range lives {
		if l.expires || l.deleted {
			p.isCollected(name)
			continue
		}
		b := p.has(name, "running", running(l.replicas))
		if b.Status.Outcomes != "" {
			t.Errorf("%s has lost sandboxes: %+v", name, b.Status)
		}
		var want []string
		for i := range l.replicas {
			want = append(want, fmt.Sprintf("%s-%d", name, i))
		}
		if got := p.pods(name); !slices.Equal(got, want) {
			t.Errorf("%s has the pods %q", name, got)
		}
		if l.first != nil && fmt.Sprint(p.uids(name)) != fmt.Sprint(l.first) {
			t.Errorf("%s has other pods than in the beginning: %v and not %v", name, p.uids(name),
				l.first)
		}
	}
}

// isCollected waits until there is neither the batch nor a pod of it. A request for a pod that was
// under way when its controller was killed may reach the API server after the next controller has
// found no pod and removed the batch's finalizer. Such a pod names an owner that is gone, and in a
// whole cluster the garbage collector removes it; here the test does.
func (p *place) isCollected(name string) {
	p.Helper()
	p.eventually(func() error {
		if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: name},
			new(v1alpha1.BatchSandbox)); !apierrors.IsNotFound(err) {
			return fmt.Errorf("BatchSandbox %s is there (%v)", name, err)
		}
		left := p.pods(name)
		for _, late := range left {
			pod := new(corev1.Pod)
			if err := p.Get(p.Context(), client.ObjectKey{Namespace: p.namespace, Name: late},
				pod); apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return err
			}
			if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "BatchSandbox" ||
				owner.Name != name {
				p.Fatalf("%s is an orphan: %+v", late, pod.ObjectMeta)
			}
			p.Logf("%s was made after its batch was gone", late)
			p.must(client.IgnoreNotFound(p.Delete(p.Context(), pod, client.GracePeriodSeconds(0))))
		}
		if len(left) > 0 {
			return fmt.Errorf("%q were left", left)
		}
		return nil
	})
}

// pause waits a random time, so that a controller is killed at another moment each time. No
// assertion depends on it.
func pause(numbers *rand.Rand, milliseconds int) {
	time.Sleep(time.Duration(numbers.IntN(milliseconds)) * time.Millisecond) // see above
}

func (p *place) uids(name string) map[string]string {
	p.Helper()
	uids := make(map[string]string)
	for _, pod := range p.pods(name) {
		uids[pod] = string(p.pod(pod).UID)
	}
	return uids
}

// oneShortLife runs a controller and ends it a moment after it has begun to work: a process with
// SIGKILL, or one within the test by its context.
func (p *place) oneShortLife(ctx context.Context, process bool, numbers *rand.Rand) error {
	if !process {
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		return runController(inner, p.config, p.namespace, func() {
			time.AfterFunc(time.Duration(numbers.IntN(400))*time.Millisecond, cancel)
		})
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), envNamespace+"="+p.namespace,
		envKubeconfig+"="+theCluster.Kubeconfig)
	var complaints strings.Builder
	child.Stderr = &complaints
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = child.Process.Kill() })
	defer stop()
	if n, err := out.Read(make([]byte, 16)); n == 0 && ctx.Err() == nil {
		_ = child.Process.Kill()
		_ = child.Wait()
		return fmt.Errorf("the controller does not begin to work (%w): %s", err,
			complaints.String())
	}
	pause(numbers, 400)
	_ = child.Process.Kill()
	_ = child.Wait() // killed: that is an error, and meant
	return nil
}
