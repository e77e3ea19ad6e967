package manager_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

var theCluster *cluster.Cluster

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	manager.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var err error
	if theCluster, err = cluster.Start(ctx, cluster.Options{Mode: cluster.API}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := theCluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err := theCluster.Define(ctx, "../config/crd"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if left := cluster.Goroutines(); left != "" {
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
			return 1
		}
	}
	return code
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	wait.Succeeds(t, "the manager does what it should", check)
}

func options(t *testing.T, namespace string) manager.Options {
	t.Helper()
	config, err := manager.Load(theCluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	// client-go watches certificate files until the process exits, and the leak detector reports
	// that.
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	config.CAFile, config.CertFile, config.KeyFile = "", "", ""
	return manager.Options{Config: config, Namespace: namespace}
}

// start runs controllers until stop is called.
func start(t *testing.T, options manager.Options) (m *manager.Manager, stop func()) {
	t.Helper()
	m, err := manager.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the manager: %v", err)
		}
	})
	t.Cleanup(stop)
	return m, stop
}

func kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := theCluster.Kubectl(t.Context(), strings.NewReader(stdin), args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// apply makes a BatchSandbox of one pod.
func apply(t *testing.T, namespace, name string) {
	t.Helper()
	kubectl(t, fmt.Sprintf(`
apiVersion: sandbox.internal/v1alpha1
kind: BatchSandbox
metadata: {name: %s, namespace: %s}
spec:
  template:
    spec: {containers: [{name: main, image: x}]}
`, name, namespace), "apply", "-f", "-")
}

func hasPod(namespace, name string) func() error {
	return func() error {
		_, err := theCluster.Kubectl(context.Background(), nil, "-n", namespace, "get", "pod", name)
		return err
	}
}

func get(url string) (string, error) {
	response, err := wait.Client().Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// free returns an address on which nothing listens.
func free(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestLeaders: of two controllers one works, and the other one does when that stops. Both say how
// they are.
func TestLeaders(t *testing.T) {
	kubectl(t, "", "create", "namespace", "leaders")
	first, second := options(t, "leaders"), options(t, "leaders")
	for _, o := range []*manager.Options{&first, &second} {
		o.LeaderElection, o.LeaseDuration, o.MetricsAddress = true, 10*time.Second, "127.0.0.1:0"
	}
	first.HealthAddress = free(t)
	one, stopOne := start(t, first)
	apply(t, "leaders", "a")
	eventually(t, hasPod("leaders", "a-0"))
	for _, path := range []string{"/healthz", "/readyz"} {
		eventually(t, func() error {
			_,
				err := get("http://" + first.HealthAddress + path)
			return err
		})
	}
	eventually(t, func() error {
		text, err := get("http://" + one.MetricsAddress() + "/metrics")
		for _, name := range []string{"sandbox_batch_expiry_lateness_seconds_count",
			"controller_runtime_reconcile_total", "workqueue_depth"} {
			if err == nil && !strings.Contains(text, name) {
				err = fmt.Errorf("/metrics has no %s", name)
			}
		}
		return err
	})

	two, _ := start(t, second)
	eventually(t, func() error { // it waits, and is well
		_, err := get("http://" + two.MetricsAddress() + "/metrics")
		return err
	})
	select {
	case <-two.Elected():
		t.Fatal("both lead")
	default:
	}
	stopOne()
	apply(t, "leaders", "b")
	eventually(t, hasPod("leaders", "b-0"))
}

// TestNamespace: a controller for one namespace leaves the others alone, and needs no right there.
func TestNamespace(t *testing.T) {
	for _, name := range []string{"mine", "other"} {
		kubectl(t, "", "create", "namespace", name)
		apply(t, name, "a")
	}
	start(t, options(t, "mine"))
	eventually(t, hasPod("mine", "a-0"))
	if out := kubectl(t, "", "-n", "other", "get", "bsbx", "a", "-o",
		"jsonpath={.metadata.finalizers}{.status}"); out != "" {
		t.Errorf("the other namespace's has %s", out)
	}
	if out := kubectl(t, "", "-n", "other", "get", "pods", "-o", "name"); out != "" {
		t.Errorf("the other namespace has %s", out)
	}
}

func TestErrors(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	o := options(t, "")
	o.MetricsAddress = listener.Addr().String()
	if _, err := manager.New(o); err == nil || !strings.Contains(err.Error(), "metrics: ") {
		t.Errorf("an address that is taken: %v", err)
	}
	if _, err := manager.Load(filepath.Join(t.TempDir(), "missing")); err == nil ||
		!strings.Contains(err.Error(), "missing") {
		t.Errorf("a file that is not there: %v", err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := manager.Load(empty); err == nil || !strings.Contains(err.Error(), "no cluster") {
		t.Errorf("an empty file: %v", err)
	}
}

// TestPool: a batch gets a pod of a Pool, and gives it back.
func TestPool(t *testing.T) {
	kubectl(t, "", "create", "namespace", "pools")
	start(t, options(t, "pools"))
	kubectl(t, `
apiVersion: sandbox.internal/v1alpha1
kind: Pool
metadata: {name: warm, namespace: pools}
spec:
  capacitySpec: {bufferMin: 1, bufferMax: 1, poolMin: 0, poolMax: 1}
  template: {spec: {containers: [{name: main, image: x}]}}
---
apiVersion: sandbox.internal/v1alpha1
kind: BatchSandbox
metadata: {name: b, namespace: pools}
spec: {poolRef: warm}
`, "apply", "-f", "-")
	var pod string
	eventually(t, func() error {
		pod = strings.TrimSpace(kubectl(t, "", "-n", "pools", "get", "pods", "-o",
			"jsonpath={.items[*].metadata.name}"))
		if pod == "" {
			return fmt.Errorf("the pool makes no pod")
		}
		return nil
	})
	kubectl(t,
		fmt.Sprintf(
			`{"apiVersion":"v1","kind":"Binding","metadata":{"name":%q},"target":{"apiVersion":"v1","kind":"Node","name":"n"}}`, pod),
		"create", "--raw", "/api/v1/namespaces/pools/pods/"+pod+"/binding", "-f", "-")
	kubectl(t, "", "-n", "pools", "patch", "pod", pod, "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running","podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"}],"conditions":[{"type":"Ready","status":"True"}]}}`)
	eventually(t, func() error {
		out := kubectl(t, "", "-n", "pools", "get", "bsbx", "b", "-o",
			"jsonpath={.status.phase} {.status.addresses}")
		if out != `Running ["10.1.2.3"]` {
			return fmt.Errorf("the batch is %s", out)
		}
		return nil
	})
	kubectl(t, "", "-n", "pools", "delete", "bsbx", "b", "--wait=false")
	eventually(t, func() error {
		if kubectl(t, "", "-n", "pools", "get", "pod", pod, "-o",
			"jsonpath={.metadata.deletionTimestamp}") == "" {
			return fmt.Errorf("the pod is not deleted")
		}
		return nil
	})
	kubectl(t, "", "-n", "pools", "get", "bsbx", "b") // its processes may run still
	kubectl(t, "", "-n", "pools", "delete", "pod", pod, "--grace-period=0", "--force")
	eventually(t, func() error {
		if out := kubectl(t, "", "-n", "pools", "get", "bsbx", "-o", "name"); out != "" {
			return fmt.Errorf("there is %s", out)
		}
		return nil
	})
}
