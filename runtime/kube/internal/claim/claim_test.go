package claim

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"sandbox.internal/test/loopback"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/internal/claims"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/runtime/kube/internal/batch"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

// binaries is where execd and execd-init are.
var binaries string

func TestMain(m *testing.M) {
	var err error
	if binaries, err = os.MkdirTemp("", "claim-"); err == nil {
		err = program.Build(context.Background(), binaries, "sandbox.internal/execd/cmd/execd",
			"sandbox.internal/execd/cmd/execd-init")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(binaries)
		os.Exit(code)
	}))
}

// secrets is an API server that has Secrets alone.
type secrets map[string]map[string][]byte

func (s secrets) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	data, ok := s[key.Name]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	object.(*corev1.Secret).Data = data
	return nil
}

func (secrets) List(context.Context, client.ObjectList, ...client.ListOption) error {
	panic("Secrets are never listed")
}

// world is a controller's claims and the pods that they are of.
type world struct {
	*testing.T
	claims *Claims
	key    ed25519.PrivateKey
	asked  atomic.Int64 // signatures
}

func newWorld(t *testing.T, reader client.Reader) *world {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, key: private}
	w.claims = w.controller(reader)
	return w
}

// controller is a process of the controller, which ends with the test.
func (w *world) controller(reader client.Reader) *Claims {
	c := New(func(string, string) {}, w, reader, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	w.Cleanup(func() { cancel(); wait.For(w, "the end of the controller", done) })
	return c
}

func (w *world) SignClaim(_ context.Context, _ string, pod types.UID, token, digest string) (string, error) {
	w.asked.Add(1)
	return claims.Prove(w.key, string(pod), token, digest), nil
}

func (w *world) SidecarToken(context.Context, string, string) (string, error) {
	return "", fmt.Errorf("no pod here has a sidecar")
}

// pod starts an execd that waits for the claim of a pod, and has the claims use its port.
func (w *world) pod(uid string, key ed25519.PrivateKey) (pod *corev1.Pod, dir string) {
	w.Helper()
	w.claims.port = loopback.Port(w)
	command := exec.Command(filepath.Join(binaries, "execd-init"), "await", "--host=127.0.0.1",
		fmt.Sprintf("--port=%d", w.claims.port), "--graceful-shutdown-timeout=0s")
	command.Dir = w.TempDir()
	command.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "EXECD_") }),
		claims.KeyVariable+"="+tasks.FormatKey(key.Public().(ed25519.PublicKey)), claims.PodVariable+"="+uid)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	})
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)},
		Status: corev1.PodStatus{PodIP: "127.0.0.1"}}, command.Dir
}

func (w *world) batch(name, token string) *v1alpha1.BatchSandbox {
	b := &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
	b.Spec.Claim = &v1alpha1.Claim{
		Container: "main", Token: v1alpha1.SecretKeySelector{Name: token, Key: "execd"},
		Entrypoint: []string{"/bin/sh", "-c", `echo "$WHO" >>ran; exec sleep 1000`},
		Env:        []v1alpha1.EnvVar{{Name: "WHO", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: token, Key: "who"}}}},
	}
	return b
}

// becomes syncs until the state is as wanted.
func (w *world) becomes(c *Claims, b *v1alpha1.BatchSandbox, pod *corev1.Pod, what string, want func(batch.ClaimState) bool) batch.ClaimState {
	w.Helper()
	var state batch.ClaimState
	wait.Until(w, "the pod is "+what, func() bool {
		state = c.Sync(b, pod)
		return want(state)
	}, func() any { return state })
	return state
}

func done(s batch.ClaimState) bool   { return s.Done }
func broken(s batch.ClaimState) bool { return s.Failed }

func ran(dir string) string {
	data, _ := os.ReadFile(filepath.Join(dir, "ran")) // empty while it is not there
	return string(data)
}

var tokens = secrets{
	"a": {"execd": []byte("token-a"), "who": []byte("alice")},
	"b": {"execd": []byte("token-b"), "who": []byte("bob")},
}

// TestClaim: a pod becomes the sandbox of the batch that claims it, once, and of no other; a
// controller that comes later finds that without a claim.
func TestClaim(t *testing.T) {
	w := newWorld(t, tokens)
	pod, dir := w.pod("pod", w.key)
	b := w.batch("alice", "a")
	w.becomes(w.claims, b, pod, "claimed", done)
	next := w.controller(tokens)
	next.port = w.claims.port
	asked := w.asked.Load()
	w.becomes(next, b, pod, "claimed, for the next controller", done)
	if w.asked.Load() != asked {
		t.Error("the next controller has claimed it again")
	}
	if state := w.becomes(next, w.batch("bob", "b"), pod, "refused to another batch", broken); !strings.Contains(state.Message, "another sandbox's") {
		t.Errorf("the refusal says %q", state.Message)
	}
	wait.Until(t, "the entrypoint has run", func() bool { return ran(dir) != "" })
	if got := ran(dir); got != "alice\n" {
		t.Errorf("the entrypoint has left %q", got)
	}
}

// TestTwoControllers: of two that claim a pod for two batches at the same time one has it.
func TestTwoControllers(t *testing.T) {
	w := newWorld(t, tokens)
	pod, dir := w.pod("pod", w.key)
	other := w.controller(tokens)
	other.port = w.claims.port
	first, second := w.batch("alice", "a"), w.batch("bob", "b")
	end := func(s batch.ClaimState) bool { return s.Done || s.Failed }
	w.claims.Sync(first, pod)
	other.Sync(second, pod)
	one, two := w.becomes(w.claims, first, pod, "decided", end), w.becomes(other, second, pod, "decided", end)
	if one.Done == two.Done {
		t.Errorf("the controllers find %+v and %+v", one, two)
	}
	wait.Until(t, "an entrypoint has run", func() bool { return ran(dir) != "" })
	if got := ran(dir); got != map[bool]string{true: "alice\n", false: "bob\n"}[one.Done] {
		t.Errorf("the entrypoint has left %q", got)
	}
}

// TestRefusedClaims: a pod that another controller made, and values that are not there.
func TestRefusedClaims(t *testing.T) {
	w := newWorld(t, tokens)
	_, foreign, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	pod, dir := w.pod("pod", foreign)
	if state := w.becomes(w.claims, w.batch("alice", "a"), pod, "refused", broken); state.Reason != v1alpha1.ReasonContainerError ||
		!strings.Contains(state.Message, "401") {
		t.Errorf("the claim is %+v", state)
	}
	for name, says := range map[string]string{"none": "not found", "a": "no entry"} {
		b := w.batch("missing-"+name, name)
		b.Spec.Claim.Token.Key = "other"
		w.becomes(w.claims, b, pod, "waiting for its Secret", func(s batch.ClaimState) bool {
			return !s.Done && !s.Failed && strings.Contains(s.Message, says)
		})
		w.claims.Forget("n", b.Name)
	}
	if ran(dir) != "" {
		t.Error("an entrypoint has run")
	}
}

// TestLostAnswer: a claim whose answer is lost was made, and is not made again.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t, tokens)
	pod, dir := w.pod("pod", w.key)
	sent := make(chan struct{}, 10)
	w.claims.http.Transport = cutting{w.claims.http.Transport, sent}
	w.becomes(w.claims, w.batch("alice", "a"), pod, "claimed", done)
	if len(sent) == 0 {
		t.Error("no answer was lost")
	}
	wait.Until(t, "the entrypoint has run", func() bool { return ran(dir) != "" })
	if got := ran(dir); got != "alice\n" {
		t.Errorf("the entrypoint has left %q", got)
	}
}

// cutting loses the answers to claims.
type cutting struct {
	http.RoundTripper
	sent chan<- struct{}
}

func (c cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err != nil || r.URL.Path != "/claim" {
		return response, err
	}
	response.Body.Close()
	select {
	case c.sent <- struct{}{}:
	default:
	}
	return nil, fmt.Errorf("the connection is lost")
}
