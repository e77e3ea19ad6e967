package cluster_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// TestCreateIsRepeated: an answer with Retry-After makes the client of the API server repeat a request, which may have been carried out. The
// sandbox that is found then is the one that was asked for, and keeps its Secret.
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
