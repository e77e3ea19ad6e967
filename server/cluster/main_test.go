package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/egress"
	"sandbox.internal/server/lifecycle"
	testcluster "sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

// apiServer is the API server of all tests: each has a namespace of its own, and plays the
// controller there.
var apiServer *testcluster.Cluster

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if apiServer, err = testcluster.Start(ctx, testcluster.Options{Mode: testcluster.API}); err != nil {
		return 1, err
	}
	defer func() {
		if stopped := apiServer.Stop(); err == nil {
			err = stopped
		}
	}()
	definitions, err := filepath.Abs("../../runtime/kube/config/crd")
	if err != nil {
		return 1, err
	}
	if err = apiServer.Define(ctx, definitions); err != nil {
		return 1, err
	}
	if code = m.Run(); code == 0 {
		if left := testcluster.Goroutines(); left != "" {
			err = fmt.Errorf("goroutines are left:\n%s", left)
		}
	}
	return code, err
}

// space is a namespace of a test, with an administrator's client.
type space struct {
	name string
	api  client.Client
}

func newSpace(t *testing.T) *space {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", apiServer.Kubeconfig)
	must(t, err)
	config.QPS, config.Burst = 1000, 1000
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	transport, err := rest.HTTPClientFor(config)
	must(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(transport.Transport) })
	api, err := client.New(config, client.Options{Scheme: scheme, HTTPClient: transport})
	must(t, err)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	must(t, api.Create(t.Context(), namespace))
	return &space{name: namespace.Name, api: api}
}

// replica starts a replica of the service's backend.
func (s *space) replica(t *testing.T, change ...func(*cluster.Options)) *cluster.Cluster {
	t.Helper()
	options := cluster.Options{
		Kubeconfig: apiServer.Kubeconfig, Namespace: s.name, ExecdImage: "sandbox/execd:dev",
		NewSidecarClient:    func(host string) cluster.SidecarClient { return egress.New(host) },
		Security:            cluster.Security{DropCapabilities: []string{"SYS_ADMIN"}, NoNewPrivileges: true},
		TerminatedRetention: time.Hour,
		PendingFailureTTL:   time.Hour,
		Clock:               time.Now,
		Logger:              zerolog.New(logOf{t}),
	}
	for _, c := range change {
		c(&options)
	}
	replica, err := cluster.Start(t.Context(), options)
	must(t, err)
	t.Cleanup(replica.Close)
	return replica
}

// batch returns a sandbox's resource.
func (s *space) batch(t *testing.T, id string) *v1alpha1.BatchSandbox {
	t.Helper()
	var b v1alpha1.BatchSandbox
	must(t, s.api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: id}, &b))
	return &b
}

// play does what the controller does: it writes a phase into the status.
func (s *space) play(t *testing.T, id string, phase v1alpha1.Phase, reason, message string) {
	t.Helper()
	b := s.batch(t, id)
	now := metav1.NewMicroTime(time.Now())
	b.Status.Phase, b.Status.Reason, b.Status.Message = phase, reason, message
	b.Status.History = append(b.Status.History, v1alpha1.PhaseChange{Phase: phase, Reason: reason, Message: message, Time: now})
	if phase == v1alpha1.PhaseRunning {
		b.Status.Addresses = []string{"192.0.2.7"}
	}
	if phase.Finished() {
		b.Status.FinishedAt = &now
	}
	must(t, s.api.Status().Update(t.Context(), b))
}

// remove deletes a resource, whose pods the controller would release.
func (s *space) remove(t *testing.T, id string) {
	t.Helper()
	must(t, s.api.Delete(t.Context(), s.batch(t, id)))
	b := s.batch(t, id)
	if !slices.Contains(b.Finalizers, v1alpha1.Finalizer) {
		t.Errorf("a new resource lacks the finalizer: it has %q", b.Finalizers)
	}
	released := b.DeepCopy()
	released.Finalizers = nil
	must(t, s.api.Patch(t.Context(), released, client.MergeFrom(b)))
}

func sampleSpec() lifecycle.Spec {
	return lifecycle.Spec{
		Image:      "registry.example/team/tool:1",
		Timeout:    time.Hour,
		Entrypoint: []string{"sleep", "$(HOME)", "infinity"},
		Env:        map[string]string{"GREETING": "costs $5 and $(PATH)"},
		Metadata:   map[string]string{"team": "red", "schlüssel": "wert\n"},
		Resources:  lifecycle.ResourceLimits{"cpu": "500m", "memory": "256Mi", "gpu": "1"},
		Extensions: []byte(`{"a" : 1.0, "b":"\u0041"}`),
	}
}

func create(t *testing.T, c *cluster.Cluster, spec lifecycle.Spec) lifecycle.Sandbox {
	t.Helper()
	sandbox, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice"})
	must(t, err)
	return sandbox
}

// awaitState waits until a replica shows a state.
func awaitState(t *testing.T, c *cluster.Cluster, id string, want lifecycle.State) lifecycle.Sandbox {
	t.Helper()
	var last lifecycle.Sandbox
	wait.Until(t, fmt.Sprintf("sandbox %s is %s", id, want), func() bool {
		var err error
		last, err = c.Get(t.Context(), id)
		return err == nil && last.Status.State == want
	})
	return last
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refuses expects an error of a kind whose message holds the parts.
func refuses(t *testing.T, err error, kind lifecycle.Kind, parts ...string) {
	t.Helper()
	known, ok := err.(*lifecycle.Error)
	if !ok || known.Kind != kind {
		t.Errorf("the error is %v (%T), want kind %q", err, err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(known.Message, part) {
			t.Errorf("the message %q does not say %q", known.Message, part)
		}
	}
}

type logOf struct{ t *testing.T }

func (l logOf) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
