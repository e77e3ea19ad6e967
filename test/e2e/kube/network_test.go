package kube_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// testNetworkPolicy: through the sidecar in the pod a sandbox reaches what its policy allows and
// nothing else; a change of it holds at once, and after the death of the sidecar, too.
func testNetworkPolicy(t *testing.T) {
	s := conformance.Start(t, onKubernetes(),
		conformance.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
	served := conformance.Request(baseImage, "python3", "-m", "http.server", "8000")
	one, other := addressOf(t, s, s.Running(t, served)), addressOf(t, s, s.Running(t, served))

	deny := lifecycle.NetworkActionDeny
	r := conformance.Request(baseImage, "sleep", "infinity")
	r.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: &deny,
		Egress: []lifecycle.EgressRule{{Action: lifecycle.NetworkActionAllow, Target: one}}}
	id := s.Running(t, r)
	inside := s.Enter(t, id)
	reaches := func(address string) bool {
		return inside.Run(t,
			"curl --silent --noproxy '*' --output /dev/null --connect-timeout 10 --max-time 20 http://"+address+":8000/").Code == 0
	}
	want := func(allowed, denied string) {
		t.Helper()
		wait.Until(t, "the sandbox reaches "+allowed, func() bool { return reaches(allowed) })
		if reaches(denied) {
			t.Errorf("the sandbox reaches %s, which its policy denies", denied)
		}
	}
	want(one, other)

	policy := fmt.Sprintf(
		`{"defaultAction": "deny", "egress": [{"action": "allow", "target": %q}]}`, other)
	if got := s.Send(t, http.MethodPut, "/v1/sandboxes/"+id+"/network-policy", policy,
		"Content-Type", "application/json"); got.Status != http.StatusOK {
		t.Fatalf("change the policy: %s", got)
	}
	want(other, one)

	if kubernetes.Directory == "" {
		return // the processes of other nodes cannot be killed
	}
	killSidecar(t, s.Instance, id+"-0", 1)
	want(other, one) // what holds is the policy that was set last, not the one of its creation

	// Nor are the name servers others, although root in the sandbox writes the file that they were
	// read from.
	rogue := addressOf(t, s,
		s.Running(t, conformance.Request(baseImage, "python3", "-c", conformance.NameServer,
			"allowed.test="+one)))
	policy = `{"defaultAction": "deny", "egress": [{"action": "allow", "target": "allowed.test"}]}`
	if got := s.Send(t, http.MethodPut, "/v1/sandboxes/"+id+"/network-policy", policy,
		"Content-Type", "application/json"); got.Status != http.StatusOK {
		t.Fatalf("change the policy: %s", got)
	}
	inside.Want(t, "echo nameserver "+rogue+" > /etc/resolv.conf && cat /etc/resolv.conf",
		"nameserver "+rogue+"\n")
	killSidecar(t, s.Instance, id+"-0", 2)
	if got := inside.Run(t, "getent ahostsv4 allowed.test"); strings.Contains(got.Stdout, one) {
		t.Errorf("the name server that root has written into resolv.conf is asked: %+v", got)
	}
	if reaches(one) {
		t.Errorf("root has made an allowed name of %s, which the policy denies", one)
	}
}

// killSidecar kills all processes of a pod's egress container, and waits until the kubelet has
// started it as often as said.
func killSidecar(t *testing.T, namespace, name string, restarts int32) {
	t.Helper()
	sidecar := func() (status corev1.ContainerStatus) {
		var pod corev1.Pod
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name},
			&pod); err != nil {
			t.Fatal(err)
		}
		for _, s := range pod.Status.InitContainerStatuses {
			if s.Name == "egress" {
				status = s
			}
		}
		return status
	}
	_, container, _ := strings.Cut(sidecar().ContainerID, "://")
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil || container == "" {
		t.Fatalf("the egress container %q, %v", container, err)
	}
	killed := 0
	for _, path := range groups {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), container) { // an error: it has ended
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // its first process takes the others with it
		killed++
	}
	if killed == 0 {
		t.Fatalf("no process of container %s", container)
	}
	wait.Until(t, "the sidecar is started again", func() bool {
		status := sidecar()
		return status.RestartCount >= restarts && status.Started != nil && *status.Started
	})
}

// addressOf returns the address of a sandbox's pod.
func addressOf(t *testing.T, s *conformance.Service, id string) string {
	t.Helper()
	var batch v1alpha1.BatchSandbox
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.Instance, Name: id},
		&batch); err != nil {
		t.Fatal(err)
	}
	if len(batch.Status.Addresses) != 1 || batch.Status.Addresses[0] == "" {
		t.Fatalf("the addresses of %s are %q", id, batch.Status.Addresses)
	}
	return batch.Status.Addresses[0]
}
