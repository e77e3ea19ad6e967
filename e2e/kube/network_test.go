package kube_test

import (
	"fmt"
	"net/http"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/e2e/lives"
	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// testNetworkPolicy: the sidecar in the pod lets a sandbox reach what its policy allows and nothing else, and a change of it holds at once.
func testNetworkPolicy(t *testing.T) {
	s := lives.Start(t, onKubernetes(), lives.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
	served := lives.Request(baseImage, "python3", "-m", "http.server", "8000")
	one, other := addressOf(t, s, s.Running(t, served)), addressOf(t, s, s.Running(t, served))

	deny := lifecycle.NetworkActionDeny
	r := lives.Request(baseImage, "sleep", "infinity")
	r.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: &deny, Egress: []lifecycle.EgressRule{{Action: lifecycle.NetworkActionAllow, Target: one}}}
	id := s.Running(t, r)
	inside := s.Enter(t, id)
	reaches := func(address string) bool {
		return inside.Run(t, "curl --silent --noproxy '*' --output /dev/null --connect-timeout 10 --max-time 20 http://"+address+":8000/").Code == 0
	}
	want := func(allowed, denied string) {
		t.Helper()
		lives.Eventually(t, "the sandbox reaches "+allowed, func() bool { return reaches(allowed) })
		if reaches(denied) {
			t.Errorf("the sandbox reaches %s, which its policy denies", denied)
		}
	}
	want(one, other)

	policy := fmt.Sprintf(`{"defaultAction": "deny", "egress": [{"action": "allow", "target": %q}]}`, other)
	if got := s.Send(t, http.MethodPut, "/v1/sandboxes/"+id+"/network-policy", policy, "Content-Type", "application/json"); got.Status != http.StatusOK {
		t.Fatalf("change the policy: %s", got)
	}
	want(other, one)
}

// addressOf returns the address of a sandbox's pod.
func addressOf(t *testing.T, s *lives.Service, id string) string {
	t.Helper()
	var batch v1alpha1.BatchSandbox
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.Instance, Name: id}, &batch); err != nil {
		t.Fatal(err)
	}
	if len(batch.Status.Addresses) != 1 || batch.Status.Addresses[0] == "" {
		t.Fatalf("the addresses of %s are %q", id, batch.Status.Addresses)
	}
	return batch.Status.Addresses[0]
}
