package kube_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/conformance"
)

// TestLeaderKilled: of two controllers one works; when it is killed, the other one goes on with the
// same Pool and gives no pod twice.
func TestLeaderKilled(t *testing.T) {
	const namespace = "leader"
	var controllers []func()
	space(t, namespace)
	t.Cleanup(func() {
		emptied(t, namespace)
		for _, kill := range controllers {
			kill()
		}
	})
	kubeconfig := accounts(t, namespace).Controller
	directory := t.TempDir()
	program := conformance.Build(t, "sandbox.internal/server/cmd/sandbox-controller")
	start := func(name string) (kill func()) {
		log, err := os.Create(filepath.Join(directory, name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		controller := exec.Command(program, "--kubeconfig", kubeconfig, "--namespace", namespace,
			"--leader-elect",
			"--metrics-bind-address", "0", "--health-probe-bind-address", "0")
		controller.Stderr = log
		if err := controller.Start(); err != nil {
			t.Fatal(err)
		}
		kill = sync.OnceFunc(func() {
			_ = controller.Process.Kill() // its only error is that the process has ended
			_ = controller.Wait()         // killed
		})
		controllers = append(controllers, kill)
		return kill
	}
	holders := map[string]string{} // of each pod
	serve := func(name string) {
		t.Helper()
		batch := &v1alpha1.BatchSandbox{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       v1alpha1.BatchSandboxSpec{Replicas: 1, PoolRef: "plain"},
		}
		if err := admin.Create(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" is Running", func(ctx context.Context) error {
			err := admin.Get(ctx, client.ObjectKeyFromObject(batch), batch)
			if err == nil && batch.Status.Phase != v1alpha1.PhaseRunning {
				err = fmt.Errorf("phase is %s (%s)", batch.Status.Phase, batch.Status.Message)
			}
			return err
		})
		allocation, err := batch.Allocation()
		if err != nil || len(allocation.Pods) != 1 {
			t.Fatalf("%s has the pods %q (%v)", name, allocation.Pods, err)
		}
		if other, given := holders[allocation.Pods[0]]; given {
			t.Errorf("%s has the pod of %s", name, other)
		}
		holders[allocation.Pods[0]] = name
	}

	if err := admin.Create(t.Context(), plainPoolIn(namespace, 2, 8)); err != nil {
		t.Fatal(err)
	}
	killFirst := start("first")
	serve("a")
	killSecond := start("second")
	killFirst()
	serve("b")
	start("third")
	killSecond()
	serve("c")
}
