package kube_test

import (
	"context"
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/conformance"
)

// testSleepWithoutController: requests wake a sandbox while no controller runs, and the next
// controller finds that it was woken, and lets it sleep again.
func testSleepWithoutController(t *testing.T) {
	b, namespace := onKubernetes(), ""
	var start func() func()
	stop := func() {}
	b.Settings = func(t *testing.T, instance string, p conformance.Plan) string {
		text := settings(t, instance, p)
		namespace = instance
		kubeconfig := accounts(t, instance).Controller
		start = func() func() {
			config, err := manager.Load(kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			return manage(t, manager.Options{Config: config, Namespace: instance})
		}
		stop = start()
		t.Cleanup(func() {
			emptied(t, instance)
			stop()
		})
		return text
	}
	s := conformance.Start(t, b, conformance.Plan{})
	r := s.Idle()
	r.Lifecycle = &lifecycle.SandboxLifecycle{OnIdle: new("pause"), IdleSeconds: new(0.2)}
	id := s.Create(t, r)
	before := s.Await(t, id, "Paused")
	stop()
	for range 3 {
		s.Enter(t, id).Want(t, "echo direct", "direct\n")
		conformance.ExecdThroughTheService(t, s.Inside(t, id, conformance.DaemonPort)).Want(t, "echo service", "service\n")
	}
	if after := s.Get(t, id); after.Status != before.Status {
		t.Errorf("without a controller the status is %+v, and was %+v", after.Status, before.Status)
	}
	stop = start()
	eventually(t, "the sandbox was Running, and sleeps again", func(ctx context.Context) error {
		var batch v1alpha1.BatchSandbox
		if err := admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: id}, &batch); err != nil {
			return err
		}
		history := batch.Status.History
		if n := len(history); n < 8 || history[4].Reason != v1alpha1.ReasonWoken ||
			history[n-1].Reason != v1alpha1.ReasonIdle || batch.Status.Phase != v1alpha1.PhasePaused {
			return fmt.Errorf("the history is %+v", history)
		}
		return nil
	})
	s.Delete(t, id)
}
