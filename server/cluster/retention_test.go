package cluster_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/test/wait"
)

// TestRetentionOfEachEnd: at no time does a resource say that its record stays for less than its
// end asks for, and soon it says just that; a write that failed is repeated.
func TestRetentionOfEachEnd(t *testing.T) {
	t.Parallel()
	const brief, long = 0, int32(3600)
	for name, tc := range map[string]struct {
		terminated, pending time.Duration
		ran                 bool
		want                int32
	}{
		"failed while Pending, which stays longer": {0, time.Hour, false, long},
		"failed while Pending, which stays less":   {time.Hour, 0, false, brief},
		"ran, which stays longer":                  {time.Hour, 0, true, long},
		"ran, which stays less":                    {0, time.Hour, true, brief},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			var failures atomic.Int32
			c := s.replica(t, func(o *cluster.Options) { o.TerminatedRetention, o.PendingFailureTTL = tc.terminated, tc.pending },
				behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
					if r.Method == http.MethodPatch && failures.Add(-1) >= 0 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					pass.ServeHTTP(w, r)
				}))
			id := create(t, c, sampleSpec()).ID
			if ttl := *s.batch(t, id).Spec.TTLSecondsAfterFinished; ttl != long {
				t.Errorf("created with %d s", ttl)
			}
			failures.Store(2)
			if tc.ran {
				s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
				s.play(t, id, v1alpha1.PhaseTerminated, v1alpha1.ReasonEntrypointExited, "it has ended")
			} else {
				s.play(t, id, v1alpha1.PhaseFailed, v1alpha1.ReasonImagePullError, "no such image")
			}
			if tc.want == long {
				awaitEnd(t, c, id)
				c.Close() // what it began has ended
			}
			wait.Until(t, "the retention is that of the end", func() bool { return *s.batch(t, id).Spec.TTLSecondsAfterFinished == tc.want })
		})
	}
}

func awaitEnd(t *testing.T, c *cluster.Cluster, id string) {
	t.Helper()
	wait.Until(t, "the replica has seen the end", func() bool {
		got, err := c.Get(t.Context(), id)
		return err == nil && got.Status.State.Final()
	})
}
