package cluster_test

import (
	"strings"
	"testing"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestEndedSandboxesAreBounded: a key that creates and deletes has its own oldest records forgotten
// before their time, and no other key's; also by a replica that is started with less room.
func TestEndedSandboxesAreBounded(t *testing.T) {
	t.Parallel()
	const (
		room = 3
		each = 86 << 10 // of a record with this metadata, about
	)
	s := newSpace(t)
	c := s.replica(t, func(o *cluster.Options) { o.EndedBudget = room*each + each/2 })
	end := func(owner string) string {
		t.Helper()
		spec := sampleSpec()
		spec.Metadata = map[string]string{}
		for _, key := range strings.Split("abcdefgh", "") {
			spec.Metadata[key] = strings.Repeat("x", 4<<10)
		}
		created, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{Owner: owner, MaxSandboxes: 1})
		must(t, err)
		s.play(t, created.ID, v1alpha1.PhaseTerminated, v1alpha1.ReasonEntrypointExited, "it has ended")
		awaitEnd(t, c, created.ID)
		return created.ID
	}
	stays := func(id string) bool { return *s.batch(t, id).Spec.TTLSecondsAfterFinished > 0 }
	modest := end("modest")
	if size := s.batch(t, modest).Annotations[view.AnnotationSize]; len(size) < 4 {
		t.Errorf("the size of the spec is recorded as %q", size)
	}
	var greedy []string
	for range 3 * room {
		greedy = append(greedy, end("greedy"))
	}
	kept := func(want int) {
		t.Helper()
		wait.Until(t, "the oldest records of the key that has the most are forgotten", func() bool {
			for i, id := range greedy {
				if stays(id) != (i >= len(greedy)-want) {
					return false
				}
			}
			return true
		})
		if !stays(modest) {
			t.Error("the record of another key is forgotten")
		}
	}
	kept(room - 1)
	c.Close()
	s.replica(t, func(o *cluster.Options) { o.EndedBudget = 2*each + each/2 })
	kept(1)
}
