package cluster_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a cluster of the test's own and what it has of the host. The test fails if stopping
// it leaves anything behind.
func start(t *testing.T, options cluster.Options) (*cluster.Cluster, traces) {
	t.Helper()
	options.Private, options.Log = true, logOf{t}
	c, err := cluster.Start(wait.Context(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c, tracesOf(t, c)
}

// logOf is the log of a test as a writer.
type logOf struct{ t *testing.T }

func (l logOf) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

func kubectl(t *testing.T, c *cluster.Cluster, stdin string, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(wait.Context(t), strings.NewReader(stdin), args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// stopped stops the cluster and waits until nothing of it is left.
func stopped(t *testing.T, c *cluster.Cluster, seen traces) {
	t.Helper()
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	wait.Succeeds(t, "nothing is left of the cluster", func() error {
		if left := seen.left(t); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// webPod is a pod that answers HTTP requests with its name.
func webPod(name string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %[1]q}, "spec": {
		"terminationGracePeriodSeconds": 0,
		"containers": [{"name": "main", "image": "sandbox/busybox:dev",
			"command": ["sh", "-c", "echo %[1]s >/tmp/index.html && exec httpd -f -p 8080 -h /tmp"],
			"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}]}}`, name)
}

// runPod makes a pod and returns its address when it is Ready.
func runPod(t *testing.T, c *cluster.Cluster, name string) string {
	t.Helper()
	kubectl(t, c, webPod(name), "create", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=240s")
	return kubectl(t, c, "", "get", "pod", name, "-o", "jsonpath={.status.podIP}")
}

// answers checks that the pod at the address answers the host with its name.
func answers(t *testing.T, address, name string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		Timeout: 30 * time.Second}
	wait.Succeeds(t, "pod "+name+" answers", func() error {
		response, err := client.Get("http://" + net.JoinHostPort(address, "8080") + "/index.html")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && strings.TrimSpace(string(body)) != name {
			err = fmt.Errorf("response is %q", body)
		}
		return err
	})
}

func TestNode(t *testing.T) {
	c, _ := start(t, cluster.Options{Images: []string{"sandbox/busybox:dev"}})
	first := runPod(t, c, "first")
	answers(t, first, "first")

	// Pods reach each other, and the API server by the address that they are given.
	second := runPod(t, c, "second")
	script := fmt.Sprintf(`printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w 30 %s 8080 | tail -n 1
		nc -w 30 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo connected`, first)
	if out := kubectl(t, c, "", "exec", "second", "--", "sh", "-c",
		script); out != "first\nconnected\n" {
		t.Errorf("a pod reaches the other one and the API server: got %q", out)
	}

	// Processes of pods outlive those of the cluster, which come back and go on.
	for _, name := range []cluster.Component{cluster.Kubelet, cluster.APIServer,
		cluster.ControllerManager, cluster.Containerd} {
		if err := c.Kill(wait.Context(t), name); err != nil {
			t.Fatal(err)
		}
		answers(t, first, "first")
		if name == cluster.APIServer {
			if _, err := c.Kubectl(wait.Context(t), nil, "get", "pods"); err == nil {
				t.Error("the API server answers after it was killed")
			}
		}
		if err := c.Restore(wait.Context(t), name); err != nil {
			t.Fatal(err)
		}
	}
	answers(t, runPod(t, c, "third"), "third")
	kubectl(t, c, "", "delete", "pod", "first")
	answers(t, second, "second")
	if restarts := kubectl(t, c, "", "get", "pod", "second", "-o",
		"jsonpath={.status.containerStatuses[0].restartCount}"); restarts != "0" {
		t.Errorf("pod second was restarted %s times", restarts)
	}

	// A cluster with stopped components and a frozen pod is removed like any other.
	seen := tracesOf(t, c)
	for _, kind := range []string{"process", "mount", "link", "rule", "record of a network",
		"control group", "name of a log", "socket", "directory"} {
		if len(seen.left(t)[kind]) == 0 {
			t.Errorf("no %s of a running cluster is seen, so that none would be missed", kind)
		}
	}
	if err := c.Kill(wait.Context(t), cluster.Containerd); err != nil {
		t.Fatal(err)
	}
	freeze(t, seen)
	stopped(t, c, seen)
}

// freeze freezes all pods. Frozen processes do not exit on SIGKILL.
func freeze(t *testing.T, seen traces) {
	t.Helper()
	frozen := 0
	for _, group := range seen.cgroups() {
		for file, value := range map[string]string{"freezer.state": "FROZEN",
			"cgroup.freeze": "1"} {
			for _, pod := range glob(t, filepath.Join(group, "kubepods/*/pod*", file)) {
				if err := os.WriteFile(pod, []byte(value), 0); err != nil {
					t.Fatal(err)
				}
				frozen++
			}
		}
	}
	if frozen == 0 {
		t.Error("no pod's control group can be frozen")
	}
}

func TestAPIServersBesideEachOther(t *testing.T) {
	type result struct {
		c   *cluster.Cluster
		err error
	}
	results := make(chan result)
	for range 2 {
		go func() {
			c, err := cluster.Start(wait.Context(t), cluster.Options{Mode: cluster.API, Log: io.Discard})
			results <- result{c, err}
		}()
	}
	var clusters []*cluster.Cluster
	for range 2 {
		r := wait.For(t, "a cluster", results)
		if r.err != nil {
			t.Error(r.err)
			continue
		}
		t.Cleanup(func() { _ = r.c.Stop() }) // after a failure only
		clusters = append(clusters, r.c)
	}
	if t.Failed() {
		t.FailNow()
	}
	for i, c := range clusters {
		kubectl(t, c, "", "create", "configmap", fmt.Sprintf("of-%d", i))
	}
	for i, c := range clusters {
		// What was written outlives the processes.
		for _, name := range []cluster.Component{cluster.Etcd, cluster.APIServer} {
			if err := c.Restart(wait.Context(t), name); err != nil {
				t.Fatal(err)
			}
		}
		names := strings.Fields(kubectl(t, c, "", "get", "configmaps", "-o",
			"jsonpath={.items[*].metadata.name}"))
		if want := fmt.Sprintf("of-%d", i); !slices.Equal(names, []string{want}) {
			t.Errorf("cluster %d has %v", i, names)
		}
	}
	t.Run("KUBECONFIG", func(t *testing.T) { checkEnvironment(t, clusters[0]) })
	for _, c := range clusters {
		stopped(t, c, tracesOf(t, c))
		if err := c.Stop(); err != nil {
			t.Errorf("a second Stop: %v", err)
		}
	}
}

func TestFakeNodes(t *testing.T) {
	c, seen := start(t, cluster.Options{Mode: cluster.Fake, Nodes: 20})
	kubectl(t, c, "", "create", "deployment", "many", "--image=none", "--replicas=100")
	kubectl(t, c, "", "rollout", "status", "deployment/many", "--timeout=240s")
	nodes := strings.Fields(kubectl(t, c, "", "get", "pods", "-o",
		"jsonpath={.items[*].spec.nodeName}"))
	slices.Sort(nodes)
	if used := slices.Compact(slices.Clone(nodes)); len(nodes) != 100 || len(used) < 2 {
		t.Errorf("%d pods on the nodes %q, want 100 on several", len(nodes), used)
	}

	stopped(t, c, seen)
}

// TestOwner shows that a cluster goes with the process that it belongs to.
func TestOwner(t *testing.T) {
	owner := wait.Command(t, "sleep", "infinity")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(shortDirectory(t), "c")
	out, err := wait.Command(t, "./up.sh", "--mode", "api", "--owner",
		fmt.Sprint(owner.Process.Pid), directory).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen := tracesOf(t, &cluster.Cluster{Directory: directory})
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	wait.Succeeds(t, "nothing is left of the cluster", func() error {
		if left := seen.left(t); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// checkEnvironment checks that the cluster that KUBECONFIG names is used and left alone.
func checkEnvironment(t *testing.T, own *cluster.Cluster) {
	t.Setenv("KUBECONFIG", own.Kubeconfig)
	t.Setenv("PATH", filepath.Join(own.Directory, "bin")+":"+os.Getenv("PATH"))
	given, err := cluster.Start(wait.Context(t), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if given.Kubeconfig != own.Kubeconfig {
		t.Errorf("uses %s", given.Kubeconfig)
	}
	if err := given.Kill(wait.Context(t), cluster.APIServer); !errors.Is(err, cluster.ErrForeign) {
		t.Errorf("Kill: %v, want ErrForeign", err)
	}
	if err := given.Stop(); err != nil {
		t.Error(err)
	}
	kubectl(t, own, "", "get", "namespaces")

	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "nothing"))
	if _, err := cluster.Start(wait.Context(t), cluster.Options{}); err == nil ||
		!strings.Contains(err.Error(), "KUBECONFIG=") {
		t.Errorf("a KUBECONFIG that leads nowhere: %v", err)
	}
}

func TestErrorsExplainThemselves(t *testing.T) {
	exists := shortDirectory(t)
	directory := filepath.Join(exists, "c")
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"no directory", nil, "absolute path"},
		{"relative", []string{"x"}, "absolute path"},
		{"taken", []string{exists}, "exists"},
		{"long", []string{"/tmp/" + strings.Repeat("x", 70)}, "longer than 60 bytes"},
		{"mode", []string{"--mode", "big", directory}, "node, api or fake, not big"},
		{"option", []string{"--help-me", directory}, "no option --help-me"},
		{"images", []string{"--mode", "api", "--image", "sandbox/busybox:dev", directory},
			"mode api has no node"},
		{"image", []string{"--image", "sandbox/nothing:dev", directory},
			"no image sandbox/nothing:dev"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := wait.Command(t, "./up.sh", test.args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), test.want) {
				t.Errorf("up.sh %s: %v, said %q, want %q", test.args, err, out, test.want)
			}
			if _, err := os.Lstat(directory); err == nil {
				t.Error("the directory is left")
			}
		})
	}
	out, err := wait.Command(t, "./component.sh", "kill", "kubelet", exists).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "holds no cluster") {
		t.Errorf("component.sh without a cluster: %v, said %q", err, out)
	}
}

// shortDirectory returns a directory with a path short enough for a cluster in its subdirectory
// "c", unlike the test's own.
func shortDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "sandbox-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := wait.Command(t, "./down.sh",
			filepath.Join(directory, "c")).CombinedOutput(); err != nil {
			t.Errorf("down.sh: %v\n%s", err, out)
		}
		os.RemoveAll(directory)
	})
	return directory
}
