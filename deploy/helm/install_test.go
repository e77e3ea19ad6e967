package helm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

// TestInstalledServiceWorks installs everything on a cluster with a node, and takes a sandbox
// through its life with the rights that the chart gives and no others.
func TestInstalledServiceWorks(t *testing.T) {
	i := install(t)
	servers := i.podsOf("server")
	if len(servers) != 2 {
		t.Fatalf("servers: %q", servers)
	}

	var created struct{ ID string }
	i.call(http.MethodPost, servers[0], "/v1/sandboxes", `{"image": {"uri": "sandbox/busybox:dev"}, "timeout": 600,
		"resourceLimits": {"cpu": "200m", "memory": "64Mi"}, "entrypoint": ["sleep", "3600"], "metadata": {"by": "helm"}}`, http.StatusAccepted, &created)
	i.reaches(servers[1], created.ID, "Running")

	// Through the gateway, which learns of it from the cluster.
	var endpoint struct{ Headers map[string]string }
	i.call(http.MethodGet, servers[1], "/v1/sandboxes/"+created.ID+"/endpoints/44772", "", http.StatusOK, &endpoint)
	gateway := i.podsOf("gateway")[0]
	wait.Succeeds(i.t, "the gateway leads to the sandbox", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gateway+":8081/"+created.ID+"/44772/command", strings.NewReader(`{"command": "echo inside"}`))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		for name, value := range endpoint.Headers {
			request.Header.Set(name, value)
		}
		status, body, err := do(request)
		if err == nil && (status != http.StatusOK || !strings.Contains(string(body), "inside")) {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		return err
	})

	// Each replica may die.
	i.kubectl("-n", "system", "delete", "pod", "--force", "--grace-period=0", "-l", "app.kubernetes.io/name=sandbox-controller")
	i.kubectl("-n", "system", "delete", "pod", "--force", "--grace-period=0", "--field-selector", "status.podIP="+servers[0])
	i.call(http.MethodDelete, servers[1], "/v1/sandboxes/"+created.ID, "", http.StatusNoContent, nil)
	i.reaches(servers[1], created.ID, "Terminated")
	wait.Succeeds(i.t, "no pod runs any more", func() error {
		if left := i.kubectl("-n", "boxes", "get", "pods", "--field-selector", "status.phase!=Failed,status.phase!=Succeeded", "-o", "name"); left != "" {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	})

	i.servesFromTheDocumentedPool(servers[1])
	i.separatesPods()

	// A refusal would be in a log.
	for _, component := range []string{"server", "controller", "gateway"} {
		for _, line := range strings.Split(i.kubectl("-n", "system", "logs", "--tail=-1", "--prefix", "-l", "app.kubernetes.io/name=sandbox-"+component), "\n") {
			if strings.Contains(line, "forbidden") || strings.Contains(line, "cannot list resource") {
				t.Errorf("%s", line)
			}
		}
	}
	i.namespaceGoes(servers[1])
	i.removesAll(servers[1])
}

// deletions is how often the namespace of the sandboxes is deleted.
var deletions = flag.Int("deletions", 3, "how often TestInstalledServiceWorks deletes the namespace of the sandboxes")

// goneWithin is how long the deletion of a namespace with running sandboxes may take.
const goneWithin = time.Minute

// namespaceGoes deletes the namespace of the sandboxes again and again, with sandboxes, Pools and
// tasks that run in it, and has it made again by an upgrade.
func (i *installed) namespaceGoes(server string) {
	i.t.Helper()
	for round := range *deletions {
		if round > 0 {
			i.helm("upgrade", "sandbox", chart, "--namespace", "system", "--reuse-values", "--wait", "--timeout", "4m")
		}
		i.populate(server)
		began := time.Now()
		i.kubectl("delete", "namespace", "boxes", "--wait=false")
		wait.Succeeds(i.t, "the namespace of the sandboxes is gone", func() error {
			if left := i.kubectl("get", "namespace", "boxes", "--ignore-not-found", "-o", "jsonpath={.status.conditions[*].message}{.metadata.name}"); left != "" {
				return fmt.Errorf("after %v: %s", time.Since(began), left)
			}
			return nil
		})
		took := time.Since(began)
		i.t.Logf("deletion %d: the namespace was gone after %.1f s", round+1, took.Seconds())
		if took > goneWithin {
			i.t.Errorf("deletion %d: the namespace was gone after %v, want at most %v", round+1, took, goneWithin)
		}
	}
}

// populate leaves in the namespace what keeps it: sandboxes of the API that run, a Pool with pods
// that wait, a batch with running tasks in others of its pods, and a batch with pods of its own.
func (i *installed) populate(server string) {
	i.t.Helper()
	i.apply(taskPool("tasks", 3))
	i.apply(`
apiVersion: sandbox.internal/v1alpha1
kind: BatchSandbox
metadata: {name: parts, namespace: boxes}
spec: {replicas: 2, poolRef: tasks, taskTemplate: {command: [sleep, "3600"]}}
---
apiVersion: sandbox.internal/v1alpha1
kind: BatchSandbox
metadata: {name: own, namespace: boxes}
spec:
  replicas: 1
  template:
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 5 # which process 1 uses up: it has no handler of SIGTERM
      containers: [{name: main, image: "sandbox/busybox:dev", command: [sleep, "3600"]}]
`)
	var created struct{ ID string }
	for range 2 {
		wait.Succeeds(i.t, "the service makes a sandbox", func() error { // it may not have its rights in the new namespace yet
			status, answer, err := i.try(http.MethodPost, server, "/v1/sandboxes", `{"image": {"uri": "sandbox/busybox:dev"}, "timeout": 600,
				"resourceLimits": {"cpu": "100m", "memory": "64Mi"}, "entrypoint": ["sleep", "3600"]}`)
			if err == nil && status != http.StatusAccepted {
				err = fmt.Errorf("status %d: %s", status, answer)
			}
			if err != nil {
				return err
			}
			return json.Unmarshal(answer, &created)
		})
		i.reaches(server, created.ID, "Running")
	}
	wait.Succeeds(i.t, "batches run", func() error {
		phases := i.kubectl("-n", "boxes", "get", "bsbx", "parts", "own", "-o", "jsonpath={range .items[*]}{.status.phase}:{.status.ready} {end}")
		if phases != "Running:2 Running:1 " {
			return errors.New(phases)
		}
		return nil
	})
}

// removesAll runs the commands of the documentation that remove everything, while sandboxes run:
// nothing of the release is left.
func (i *installed) removesAll(server string) {
	i.t.Helper()
	i.helm("upgrade", "sandbox", chart, "--namespace", "system", "--reuse-values", "--wait", "--timeout", "4m")
	i.populate(server)
	var remove string
	for _, block := range blocks(i.t, "kubernetes-operations.md", "sh") {
		if strings.Contains(block, "helm uninstall") {
			remove = strings.NewReplacer("-n sandboxes", "-n boxes", "namespace sandboxes", "namespace boxes", "sandbox-system", "system").Replace(block)
		}
	}
	if remove == "" {
		i.t.Fatal("docs/kubernetes-operations.md does not show how to remove everything")
	}
	ctx, cancel := context.WithTimeout(i.t.Context(), wait.Patience())
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", remove)
	directory := i.t.TempDir()
	shell.Env = append(i.c.Command(ctx, "kubectl").Env, "PATH="+filepath.Join(i.c.Directory, "bin")+":"+os.Getenv("PATH"),
		"HELM_CACHE_HOME="+directory, "HELM_CONFIG_HOME="+directory, "HELM_DATA_HOME="+directory)
	if out, err := shell.CombinedOutput(); err != nil {
		i.t.Fatalf("%s%v\n%s", remove, err, out)
	}
	const kinds = "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,clusterroles,clusterrolebindings,flowschemas,namespaces"
	if left := i.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/part-of=sandbox", "-o", "name"); left != "" {
		i.t.Errorf("after the documented commands there are still\n%s", left)
	}
}

// servesFromTheDocumentedPool applies the Pool that the documentation shows for sandboxes of the
// API, with images that this machine has, and takes a sandbox from it.
func (i *installed) servesFromTheDocumentedPool(server string) {
	i.t.Helper()
	pool := documentedPool(i.t)
	for from, to := range map[string]string{
		`example.com/sandbox/execd:[0-9.]+`: "sandbox/execd:dev",
		`python:3.12-slim`:                  "sandbox/base:dev", `namespace: sandboxes`: "namespace: boxes", `(bufferMin|poolMin): [0-9]+`: "$1: 1", `bufferMax: [0-9]+`: "bufferMax: 1",
	} {
		pool = regexp.MustCompile(from).ReplaceAllString(pool, to)
	}
	i.apply(pool)
	var created struct{ ID string }
	i.call(http.MethodPost, server, "/v1/sandboxes", `{"image": {"uri": "sandbox/base:dev"}, "timeout": 600, "resourceLimits": {}, "env": {"GREETING": "from-the-request"},
		"entrypoint": ["sh", "-c", "echo $GREETING > /tmp/greeting; exec sleep 3600"], "extensions": {"poolRef": "python"}}`, http.StatusAccepted, &created)
	i.reaches(server, created.ID, "Running")
	pod := allocated(i.t, i.kubectl("-n", "boxes", "get", "bsbx", created.ID, "-o", `jsonpath={.metadata.annotations.sandbox\.internal/allocation}`))
	wait.Succeeds(i.t, "the entrypoint has its variable", func() error {
		if out := i.kubectl("-n", "boxes", "exec", pod, "-c", "main", "--", "sh", "-c", "cat /tmp/greeting || true"); out != "from-the-request\n" {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	if shown := i.kubectl("-n", "boxes", "get", "bsbx", "-o", "yaml"); strings.Contains(shown, "from-the-request") {
		i.t.Error("list batchsandboxes shows a variable of the sandbox")
	}
	i.call(http.MethodDelete, server, "/v1/sandboxes/"+created.ID, "", http.StatusNoContent, nil)
	i.reaches(server, created.ID, "Terminated")
	i.kubectl("-n", "boxes", "delete", "pool", "python")
}

// separatesPods: root in one pod of a Pool cannot command the task-executor of another one, with
// nothing and with all that it can read in its own pod; and no pod has a token for the API server.
func (i *installed) separatesPods() {
	i.t.Helper()
	i.apply(taskPool("pair", 2))
	var pods []string
	wait.Succeeds(i.t, "two pods wait", func() error {
		if i.kubectl("-n", "boxes", "get", "pool", "pair", "-o", "jsonpath={.status.available}") != "2" {
			return errors.New("not yet")
		}
		pods = strings.Fields(i.kubectl("-n", "boxes", "get", "pods", "-l", "sandbox.internal/pool=pair", "-o", "jsonpath={.items[*].metadata.name}"))
		return nil
	})
	inside := func(script string) string {
		return i.kubectl("-n", "boxes", "exec", pods[0], "-c", "main", "--", "sh", "-c", script)
	}
	other := i.kubectl("-n", "boxes", "get", "pod", pods[1], "-o", "jsonpath={.status.podIP}")
	attack := "curl -s -o /dev/null -w '%{http_code}' --noproxy '*' -X PUT http://" + other + `:5758/tasks/x -d '{"command": ["id"]}'`
	if status := inside(attack); status != "401" {
		i.t.Errorf("a neighbour's task is answered with %s", status)
	}
	if status := inside("curl -s -o /dev/null -w '%{http_code}' --noproxy '*' -X POST http://" + other + ":5758/reset"); status != "401" {
		i.t.Errorf("a neighbour's reset is answered with %s", status)
	}
	// What root can read in its own pod: every environment that the kernel lets it read.
	readable := inside(`for f in /proc/[0-9]*/environ; do tr '\0' '\n' < $f; done 2>/dev/null | sed -n 's/^TASK_EXECUTOR_[A-Z_]*=//p' | sort -u`)
	for _, value := range strings.Fields(readable) {
		if status := inside(attack + " -H 'X-Task-Executor-Token: " + value + "'"); status != "401" {
			i.t.Errorf("with %q, read in its own pod, a neighbour's task is answered with %s", value, status)
		}
	}
	if mounted := inside("ls /var/run/secrets/kubernetes.io 2>/dev/null || true"); mounted != "" {
		i.t.Errorf("there is a token for the API server: %s", mounted)
	}
	i.kubectl("-n", "boxes", "delete", "pool", "pair")
}

// taskPool is a Pool that has so many pods, which take tasks.
func taskPool(name string, pods int) string {
	return strings.NewReplacer("NAME", name, "COUNT", strconv.Itoa(pods)).Replace(`
apiVersion: sandbox.internal/v1alpha1
kind: Pool
metadata: {name: NAME, namespace: boxes}
spec:
  capacitySpec: {bufferMin: COUNT, bufferMax: COUNT, poolMin: COUNT, poolMax: COUNT}
  template:
    spec:
      shareProcessNamespace: true
      containers:
      - {name: main, image: "sandbox/base:dev", command: [sleep, infinity], env: [{name: SANDBOX_MAIN, value: "1"}]}
      - name: task-executor
        image: sandbox/task-executor:dev
        readinessProbe: {httpGet: {path: /healthz, port: 5758}, periodSeconds: 1}
        securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE]}}
`)
}

// allocated is the only pod in an allocation.
func allocated(t *testing.T, annotation string) string {
	t.Helper()
	var allocation struct{ Pods []string }
	if err := json.Unmarshal([]byte(annotation), &allocation); err != nil || len(allocation.Pods) != 1 {
		t.Fatalf("the allocation is %q", annotation)
	}
	return allocation.Pods[0]
}

// apply applies a manifest.
func (i *installed) apply(manifest string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), wait.Patience())
	defer cancel()
	if _, err := i.c.Kubectl(ctx, strings.NewReader(manifest), "apply", "-f", "-"); err != nil {
		i.t.Fatalf("%v\n%s", err, manifest)
	}
}

// installed is the chart on a cluster with a node.
type installed struct {
	t   *testing.T
	c   *cluster.Cluster
	key string
}

func install(t *testing.T) *installed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Private: true, Images: []string{
		"sandbox/server:dev", "sandbox/controller:dev", "sandbox/ingress:dev", "sandbox/execd:dev", "sandbox/busybox:dev",
		"sandbox/base:dev", "sandbox/task-executor:dev",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	i := &installed{t: t, c: c}
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for _, args := range [][]string{
				{"get", "pods,bsbx,pools", "-A", "-o", "wide"}, {"describe", "bsbx,pools", "-A"},
				{"-n", "system", "logs", "--tail=40", "--prefix", "-l", "app.kubernetes.io/part-of=sandbox"},
			} {
				out, err := c.Kubectl(ctx, nil, args...)
				t.Logf("%s: %v\n%s", args, err, out)
			}
		}
	})
	if _, err := c.Helm(ctx, "install", "sandbox", chart, "--namespace", "system", "--create-namespace", "--wait", "--timeout", "4m",
		"--set", "sandboxes.namespace=boxes", "--set", "sandboxes.createNamespace=true"); err != nil {
		t.Fatal(err)
	}
	i.key = string(decoded(t, i.kubectl("-n", "system", "get", "secret", "sandbox", "-o", "jsonpath={.data}"))["api-key"])
	return i
}

func decoded(t *testing.T, data string) map[string][]byte {
	t.Helper()
	var entries map[string][]byte
	if err := json.Unmarshal([]byte(data), &entries); err != nil {
		t.Fatal(err)
	}
	return entries
}

func (i *installed) kubectl(args ...string) string {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), wait.Patience())
	defer cancel()
	out, err := i.c.Kubectl(ctx, nil, args...)
	if err != nil {
		i.t.Fatal(err)
	}
	return string(out)
}

func (i *installed) helm(args ...string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), wait.Patience())
	defer cancel()
	if _, err := i.c.Helm(ctx, args...); err != nil {
		i.t.Fatal(err)
	}
}

// podsOf returns the addresses of a component's pods.
func (i *installed) podsOf(component string) []string {
	i.t.Helper()
	return strings.Fields(i.kubectl("-n", "system", "get", "pods", "-l", "app.kubernetes.io/name=sandbox-"+component,
		"--field-selector", "status.phase=Running", "-o", "jsonpath={.items[*].status.podIP}"))
}

// call sends a request to a replica of the service.
func (i *installed) call(method, address, path, body string, want int, into any) {
	i.t.Helper()
	status, answer, err := i.try(method, address, path, body)
	if err != nil || status != want {
		i.t.Fatalf("%s %s: %v, status %d, want %d: %s", method, path, err, status, want, answer)
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			i.t.Fatalf("%s %s: %v: %s", method, path, err, answer)
		}
	}
}

func (i *installed) try(method, address, path, body string) (int, []byte, error) {
	request, err := http.NewRequestWithContext(i.t.Context(), method, "http://"+address+":8080"+path, bytes.NewBufferString(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("SERVICE-API-KEY", i.key)
	request.Header.Set("Content-Type", "application/json")
	return do(request)
}

func do(request *http.Request) (int, []byte, error) {
	response, err := wait.Client().Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// reaches waits until a replica shows the sandbox in a state.
func (i *installed) reaches(address, id, state string) {
	i.t.Helper()
	wait.Succeeds(i.t, "the sandbox is "+state, func() error {
		status, answer, err := i.try(http.MethodGet, address, "/v1/sandboxes/"+id, "")
		if err != nil {
			return err
		}
		var shown struct{ Status struct{ State string } }
		if err := json.Unmarshal(answer, &shown); err != nil || shown.Status.State != state {
			return fmt.Errorf("status %d, %v: %s", status, err, answer)
		}
		return nil
	})
}
