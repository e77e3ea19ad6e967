package kube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// testSleepWithoutController: requests wake a sandbox while no controller runs, and the next
// controller finds that it was woken, and lets it sleep again.
func testSleepWithoutController(t *testing.T) {
	b, namespace := onKubernetes(), ""
	var gateway string // the kubeconfig of the ingress
	var start func() func()
	stop := func() {}
	b.Settings = func(t *testing.T, instance string, p conformance.Plan) string {
		text := settings(t, instance, p)
		namespace = instance
		made := accounts(t, instance)
		kubeconfig := made.Controller
		gateway = made.Gateway
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
	daemon := s.Endpoint(t, id, conformance.DaemonPort)
	ingress, path := startIngress(t, gateway, namespace), fmt.Sprintf("/%s/%d", id, conformance.DaemonPort)
	daemon.Endpoint = ingress + path
	through := conformance.EnterAt(t, daemon)
	plain := s.Below(t, path, daemon.Headers)
	plain.Host = ingress
	var last conformance.Answer
	wait.Until(t, "the ingress has the route", func() bool {
		last = plain.Send(t, http.MethodGet, "/ping", nil)
		return last.Status == http.StatusOK
	}, func() any { return last })
	before := s.Await(t, id, "Paused")
	through.Want(t, "echo ingress", "ingress\n")
	eventually(t, "the sandbox sleeps again", func(context.Context) error {
		now := s.Get(t, id).Status
		if now.State != "Paused" || !now.LastTransitionAt.After(before.Status.LastTransitionAt) {
			return fmt.Errorf("the status is %+v", now)
		}
		return nil
	})
	stop()
	before = s.Get(t, id)
	for range 3 {
		through.Want(t, "echo ingress", "ingress\n")
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
		if n := len(history); n < 12 || history[n-4].Reason != v1alpha1.ReasonWoken ||
			history[n-1].Reason != v1alpha1.ReasonIdle || batch.Status.Phase != v1alpha1.PhasePaused {
			return fmt.Errorf("the history is %+v", history)
		}
		return nil
	})
	s.Delete(t, id)
}

// startIngress starts an ingress that follows the sandboxes of a namespace, and returns its
// address.
func startIngress(t *testing.T, kubeconfig, namespace string) string {
	t.Helper()
	command := exec.Command(conformance.Build(t, "sandbox.internal/server/cmd/sandbox-ingress"), "--mode", "uri",
		"--kubernetes", "--kubeconfig-path", kubeconfig, "--kubernetes-namespace", namespace,
		"--listen", "127.0.0.1:0", "--admin", "")
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	found, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct{ Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Address != "" {
				select {
				case found <- line.Address:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill() // its only error is that the process has ended
		wait.For(t, "the end of the ingress's log", ended)
		_ = command.Wait() // killed
	})
	return wait.For(t, "the address of the ingress", found)
}
