package kube_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// TestClaimsSurviveKills kills the controller in the middle of claims, and the service while a
// sandbox is created: each sandbox becomes what it was asked for, in a pod of its own, and nothing
// else is left.
func TestClaimsSurviveKills(t *testing.T) {
	backend := onKubernetes()
	backend.Settings = settings
	s := conformance.Start(t, backend, conformance.Plan{Program: true})
	enforce(t, s.Instance, "baseline")
	c := newKilledController(t, s)
	kubectl(t, s.Instance, apiPool("warm", 4, 12, ""), "apply", "-f", "-")
	greets := func(i int) lifecycle.CreateSandboxRequest {
		return fromPool("warm", fmt.Sprintf("echo %d >> /tmp/greeting; exec sleep 1000", i))
	}
	var ids []string
	for _, point := range []string{"claim-send", "claim-sent"} {
		available(t, s.Instance, "warm", 1)
		if err := c.armed.Arm(point, 1); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, createPooled(t, s, greets(len(ids))))
		c.await()
		c.start()
		s.Await(t, ids[len(ids)-1], "Running")
	}

	// The service ends while it creates a sandbox, and the client repeats its request.
	available(t, s.Instance, "warm", 1)
	request := conformance.Encode(t, greets(len(ids)))
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		_, _ = s.Try("POST", "/v1/sandboxes", request, "Idempotency-Key", "cut") // it may have no answer
	}()
	s.Kill()
	wait.For(t, "the end of the request", cut)
	s.Boot(t)
	created, err := conformance.Decode[lifecycle.CreatedSandbox](s.Send(t, "POST", "/v1/sandboxes", request, "Idempotency-Key", "cut"))
	if err != nil {
		t.Fatal(err)
	}
	ids = append(ids, created.ID)

	// Several at the same time.
	available(t, s.Instance, "warm", 4)
	var all sync.WaitGroup
	more := make([]string, 4)
	for i := range more {
		all.Go(func() {
			got, err := s.Try("POST", "/v1/sandboxes", conformance.Encode(t, greets(len(ids)+i)))
			if err != nil {
				t.Error(err)
				return
			}
			if created, err := conformance.Decode[lifecycle.CreatedSandbox](got); err != nil {
				t.Error(err)
			} else {
				more[i] = created.ID
			}
		})
	}
	all.Wait()
	ids = append(ids, more...)
	pods := make(map[string]string)
	for i, id := range ids {
		s.Await(t, id, "Running")
		pod := podOf(t, s, id)
		if other := pods[pod]; other != "" {
			t.Errorf("pod %s is that of %s and of %s", pod, other, id)
		}
		pods[pod] = id
		inside := s.Enter(t, id)
		wait.Until(t, "its entrypoint has run", func() bool { return inside.Run(t, "cat /tmp/greeting").Stdout != "" })
		inside.Want(t, "cat /tmp/greeting", fmt.Sprintf("%d\n", i))
	}
	var secrets corev1.SecretList
	if err := admin.List(t.Context(), &secrets, client.InNamespace(s.Instance), client.HasLabels{"sandbox.internal/secret-of"}); err != nil {
		t.Fatal(err)
	}
	var owned int
	for i := range secrets.Items {
		owned += len(secrets.Items[i].OwnerReferences)
	}
	if owned != len(ids) || len(secrets.Items) > len(ids)+1 { // the one of the create that was cut is left for the sweep
		t.Errorf("there are %d Secrets, %d of them owned, for %d sandboxes", len(secrets.Items), owned, len(ids))
	}
	for _, id := range ids {
		s.Delete(t, id)
	}
	for _, id := range ids {
		s.Await(t, id, "Terminated")
	}
	kubectl(t, s.Instance, "", "delete", "pool", "warm")
}

// killedController is a controller that a failpoint kills, and that is started again.
type killedController struct {
	t       *testing.T
	armed   program.Failpoints
	program string
	args    []string
	log     string
	command *exec.Cmd
}

func newKilledController(t *testing.T, s *conformance.Service) *killedController {
	t.Helper()
	directory := t.TempDir()
	c := &killedController{t: t, armed: program.Failpoints(filepath.Join(directory, "armed")),
		program: filepath.Join(directory, "sandbox-controller"), log: filepath.Join(directory, "log"),
		args: []string{"--kubeconfig", accounts(t, s.Instance).Controller, "--namespace", s.Instance,
			"--metrics-bind-address", "0", "--health-probe-bind-address", "0"}}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	if err := program.BuildWithFailpoints(ctx, directory, c.armed, "sandbox.internal/server/cmd/sandbox-controller"); err != nil {
		t.Fatal(err)
	}
	c.start()
	t.Cleanup(func() {
		emptied(t, s.Instance)
		_ = c.command.Process.Kill()
		_ = c.command.Wait() // killed
		if t.Failed() {
			text, _ := os.ReadFile(c.log)
			t.Logf("the controller's log:\n%s", text)
		}
	})
	return c
}

func (c *killedController) start() {
	c.t.Helper()
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	c.command = exec.Command(c.program, c.args...)
	c.command.Stderr = log
	if err := c.command.Start(); err != nil {
		c.t.Fatal(err)
	}
}

// await waits until a failpoint has killed it.
func (c *killedController) await() {
	c.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- c.command.Wait() }()
	select {
	case <-ended:
	case <-time.After(wait.Patience()):
		_ = c.command.Process.Kill()
		<-ended
		c.t.Fatal("the controller did not come to the failpoint")
	}
}
