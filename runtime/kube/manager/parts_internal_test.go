package manager

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/internal/executor"
	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/wait"
)

// seed is a client.Reader of the Secret with the controller's key.
type seed []byte

func (s seed) Get(_ context.Context, _ client.ObjectKey, object client.Object,
	_ ...client.GetOption) error {
	object.(*corev1.Secret).Data = map[string][]byte{v1alpha1.EntryExecutorKey: s}
	return nil
}

func (s seed) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("listing is not supported")
}

// TestNoProofsWithoutTheLease: a controller that may lead no longer neither resets a pod nor sends
// a task into it.
func TestNoProofsWithoutTheLease(t *testing.T) {
	secret := seed(make([]byte, ed25519.SeedSize))
	public := ed25519.NewKeyFromSeed(secret).Public().(ed25519.PublicKey)
	var served []string // requests with a proof
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !tasks.Proven(public, "uid", "challenge", r.Header.Get(tasks.TokenHeader)) {
			w.Header().Set(tasks.ChallengeHeader, "challenge")
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(tasks.Error{Code: tasks.CodeUnauthorized})
			return
		}
		served = append(served, r.Method+" "+r.URL.Path)
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	caller := &http.Client{Timeout: wait.Patience(), Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
		},
	}}
	pod := new(corev1.Pod)
	pod.UID, pod.Status.PodIP = "uid", "192.0.2.1"
	for name, test := range map[string]struct {
		lease *pool.Lease
		want  error
	}{
		"no election": {nil, nil},
		"not renewed": {pool.NewLease(nil, 0), pool.ErrNotLeading},
	} {
		served = nil
		sign := signer(executor.NewKeys(secret, nil, time.Now), test.lease)
		resetter := &pool.Executor{HTTP: caller, Sign: sign}
		if err := resetter.Reset(t.Context(), pod); !errors.Is(err, test.want) {
			t.Errorf("%s: a reset is answered with %v", name, err)
		}
		follower := &tasks.Client{BaseURL: server.URL, HTTP: caller, Sign: sign("n", pod.UID)}
		if _, err := follower.Put(t.Context(), "t", tasks.Task{}); !errors.Is(err, test.want) {
			t.Errorf("%s: a task is answered with %v", name, err)
		}
		want := []string{"POST /reset", "PUT /tasks/t"}
		if test.want != nil {
			want = nil
		}
		if !slices.Equal(served, want) {
			t.Errorf("%s: the executor has served %q, not %q", name, served, want)
		}
	}
}
