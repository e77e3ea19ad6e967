package cluster_test

import (
	"context"
	"strings"
	"testing"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// overtaken is the sidecar of a sandbox whose policy changes once more before the answer to the
// first change comes.
type overtaken struct{ cluster.SidecarClient }

func policyFor(host string) lifecycle.NetworkPolicy {
	return lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: host}}}
}

func (overtaken) Environment(lifecycle.Sidecar, *lifecycle.NetworkPolicy) (map[string]string, bool, error) {
	return map[string]string{}, true, nil
}

func (overtaken) Change(context.Context, lifecycle.Sidecar, lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error) {
	return policyFor("first.example"), nil
}

func (overtaken) Policy(context.Context, lifecycle.Sidecar) (lifecycle.NetworkPolicy, error) {
	return policyFor("second.example"), nil
}

// TestPolicyOnRecordIsInForce: of two changes at once, the one that the sidecar has taken last is
// on record, whichever is written last.
func TestPolicyOnRecordIsInForce(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t, func(o *cluster.Options) {
		o.EgressImage, o.NewSidecarClient = "sandbox/egress:dev", func(string) cluster.SidecarClient { return overtaken{} }
	})
	id := create(t, c, sampleSpec()).ID
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	awaitState(t, c, id, lifecycle.StateRunning)
	policy, err := c.ChangeNetworkPolicy(t.Context(), id, lifecycle.PolicyChange{})
	if must(t, err); policy.Egress[0].Target != "first.example" {
		t.Errorf("answered is %+v", policy)
	}
	if got := s.batch(t, id).Annotations[view.AnnotationPolicy]; !strings.Contains(got, "second.example") {
		t.Errorf("on record is %s", got)
	}
}
