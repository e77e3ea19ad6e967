package cluster_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestCreateIsRepeated: an answer with Retry-After makes the client of the API server repeat a
// request, which may have been carried out. The sandbox that is found then is the one that was
// asked for, and keeps its Secret.
func TestCreateIsRepeated(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"without a key": "", "with a key": "key"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			var carriedOut sync.Map // the paths of requests
			c := s.replica(t, behind(t, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
				if r.Method != http.MethodPost {
					pass.ServeHTTP(w, r)
					return
				}
				if _, repeated := carriedOut.LoadOrStore(r.URL.Path, true); repeated {
					pass.ServeHTTP(w, r)
					return
				}
				pass.ServeHTTP(httptest.NewRecorder(), r)
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusServiceUnavailable)
			}))
			sandbox, err := c.Create(t.Context(), sampleSpec(), lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: key})
			must(t, err)
			b := s.batch(t, sandbox.ID)
			var secret corev1.Secret
			must(t, s.api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: b.Annotations[view.AnnotationSecret]}, &secret))
			if !metav1.IsControlledBy(&secret, b) {
				t.Errorf("the Secret belongs to %v", secret.OwnerReferences)
			}
		})
	}
}

// TestQuota: a sandbox beyond it is refused, and a repeated create returns the sandbox that it
// made.
func TestQuota(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t, func(o *cluster.Options) { o.MaxSandboxes = 2 })
	create := func(owner, key string) (lifecycle.Sandbox, error) {
		return c.Create(t.Context(), sampleSpec(), lifecycle.CreateOptions{Owner: owner, IdempotencyKey: key, MaxSandboxes: 1})
	}
	first, err := create("alice", "k")
	must(t, err)
	again, err := create("alice", "k")
	if err != nil || again.ID != first.ID {
		t.Errorf("the repetition returns %s (%v), not %s", again.ID, err, first.ID)
	}
	_, err = create("alice", "another")
	refuses(t, err, lifecycle.KindConflict, `API key "alice" that have not ended: 1`, "server.keys.max_sandboxes is 1")
	_, err = create("bob", "")
	must(t, err)
	_, err = create("carol", "")
	refuses(t, err, lifecycle.KindConflict, "that have not ended: 2", "server.max_sandboxes is 2")
	s.play(t, first.ID, v1alpha1.PhaseFailed, "CONTAINER_ERROR", "")
	wait.Until(t, "there is room again", func() bool {
		_, err := create("alice", "later")
		return err == nil
	})
}

// TestRepeatedAfterAChange: a create with the Idempotency-Key of an earlier one returns that one's
// sandbox, also where it would be refused today.
func TestRepeatedAfterAChange(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	s.pool(t, "warm")
	spec := fromPool("warm")
	created, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "k"})
	must(t, err)
	s.claim(t, "mine", func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"sandbox.internal/owner": "alice"} })
	mounting := sampleSpec()
	mounting.Volumes = []lifecycle.Volume{{Name: "x", ClaimName: "mine", MountPath: "/x"}}
	mounted, err := c.Create(t.Context(), mounting, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "l"})
	must(t, err)
	must(t, s.api.Delete(t.Context(), &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "warm"}}))
	must(t, s.api.Patch(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "mine"}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":null}}`))))
	for key, tc := range map[string]struct {
		spec lifecycle.Spec
		want lifecycle.Sandbox
	}{"k": {spec, created}, "l": {mounting, mounted}} {
		again, err := c.Create(t.Context(), tc.spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: key})
		if err != nil || again.ID != tc.want.ID {
			t.Errorf("key %s: the repetition returns %s (%v), not %s", key, again.ID, err, tc.want.ID)
		}
	}
	_, err = c.Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "another"})
	refuses(t, err, lifecycle.KindInvalid, "extensions.poolRef", "warm")
	spec.Timeout += time.Second
	_, err = c.Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "k"})
	refuses(t, err, lifecycle.KindConflict, "Idempotency-Key", "another request body")
}
