package kube_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestPool has sandboxes served from a Pool over HTTP, in a namespace of the Pod Security level
// baseline.
func TestPool(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	enforce(t, s.Instance, "baseline")
	kubectl(t, s.Instance, apiPool("warm", 2, 4, ""), "apply", "-f", "-")
	available(t, s.Instance, "warm", 2)
	t.Run("row lifecycle/cluster/Pool capacitySpec", func(t *testing.T) {
		table := kubectl(t, s.Instance, "", "get", "pool", "-o", "wide")
		t.Logf("the pool is warm:\n%s", table)
		wantColumns(t, table, map[string]string{
			"NAME": "warm", "TOTAL": "2", "ALLOCATED": "0", "AVAILABLE": "2", "BUFFERMIN": "2",
			"BUFFERMAX": "2", "POOLMIN": "2", "POOLMAX": "4",
		})
	})
	for range 2 {
		available(t, s.Instance, "warm", 1)
		testPooled(t, s)
	}
	t.Logf("\n%s", kubectl(t, s.Instance, "", "get", "bsbx,pool", "-o", "wide"))

	// One that ends by itself ends like any other.
	for command, end := range map[string]struct{ state, reason, says string }{
		"echo last words; exit 3": {"Failed", "ENTRYPOINT_EXITED", "exit code 3:\nlast words"},
		"exit 0":                  {"Terminated", "ENTRYPOINT_EXITED", "exit code 0"},
		"kill -9 $$":              {"Failed", "ENTRYPOINT_EXITED", "exit code 137"},
	} {
		available(t, s.Instance, "warm", 1)
		created := createPooled(t, s, fromPool("warm", "sleep 2; "+command))
		if got := s.Await(t, created, end.state).Status; got.Reason != end.reason ||
			!strings.Contains(got.Message, end.says) {
			t.Errorf("%s: %+v", command, got)
		}
	}
	t.Run("no entrypoint", func(t *testing.T) {
		available(t, s.Instance, "warm", 1)
		r := fromPool("warm", "")
		r.Entrypoint = []string{"/no/such/program"}
		if got := s.Await(t, createPooled(t, s, r), "Failed").Status; !strings.Contains(got.Message, "127") {
			t.Errorf("the sandbox is %+v", got)
		}
	})
	kubectl(t, s.Instance, "", "delete", "pool", "warm")
}

// TestPoolResizes gives sandboxes of a Pool limits of their own, in the pods that wait.
func TestPoolResizes(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	enforce(t, s.Instance, "baseline")
	kubectl(t, s.Instance, apiPool("warm", 2, 4, ""), "apply", "-f", "-")
	available(t, s.Instance, "warm", 2)
	r := conformance.Limited(fromPool("warm", "exec sleep 1000"), "250m", "64Mi")
	began := time.Now()
	got := s.Send(t, "POST", "/v1/sandboxes", conformance.Encode(t, r), "Prefer", "wait=60")
	took := time.Since(began)
	created, err := conformance.Decode[lifecycle.CreatedSandbox](got)
	if err != nil || created.Status.State != "Running" {
		t.Fatalf("create: %v; %s", err, got)
	}
	t.Logf("Running, with limits of its own, %v after the request", took)
	inside := s.Enter(t, created.ID)
	inside.Want(t, "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true", fmt.Sprintln(64<<20))
	inside.Want(t, "if [ -e /sys/fs/cgroup/cpu.max ]; then cut -d' ' -f1 /sys/fs/cgroup/cpu.max; else cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us; fi", "25000\n")

	// A node that never can says so, and so does the sandbox.
	r = conformance.Limited(fromPool("warm", "exec sleep 1000"), "250m", "4Ti")
	if status := s.Await(t, createPooled(t, s, r), "Failed").Status; status.Reason != "RESOURCE_LIMIT_EXCEEDED" ||
		!strings.Contains(status.Message, "cannot resize the pod") {
		t.Errorf("a sandbox of 4 TiB: %+v", status)
	}
	s.Delete(t, created.ID)
	s.Await(t, created.ID, "Terminated")
	kubectl(t, s.Instance, "", "delete", "pool", "warm")
}

// TestPoolRestricted has a sandbox served under the Pod Security level restricted: as a user that
// is not root, without any capability.
func TestPoolRestricted(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	enforce(t, s.Instance, "restricted")
	kubectl(t, s.Instance, apiPool("warm", 1, 2, "runAsNonRoot: true, runAsUser: 1000, allowPrivilegeEscalation: false, "+
		"capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}"), "apply", "-f", "-")
	available(t, s.Instance, "warm", 1)
	id := createPooled(t, s, fromPool("warm", "exec sleep 1000"))
	s.Await(t, id, "Running")
	inside := s.Enter(t, id)
	inside.Want(t, "id -u; grep -E 'CapBnd|NoNewPrivs' /proc/self/status", "1000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n")
	inside.Upload(t, "/tmp/file", "content")
	inside.Want(t, "cat /tmp/file", "content")
	s.Pause(t, id)
	s.Resume(t, id)
	s.Delete(t, id)
	s.Await(t, id, "Terminated")
	kubectl(t, s.Instance, "", "delete", "pool", "warm")
}

// TestPoolPolicy: the policy of a request holds in a pod of a Pool with a sidecar before its
// program runs, and can be changed; no other sandbox of the Pool has it, or its token.
func TestPoolPolicy(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	pool := strings.NewReplacer(busyboxImage, baseImage, "      initContainers:\n", fmt.Sprintf(`      initContainers:
        - name: egress
          image: %s
          restartPolicy: Always
          startupProbe: {httpGet: {path: /healthz, port: 18080}, periodSeconds: 1, failureThreshold: 60}
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [NET_ADMIN]}}
          volumeMounts: [{name: egress, mountPath: /run/egress}]
`, egressImage), "volumes: [", "volumes: [{name: egress, emptyDir: {}}, ").Replace(apiPool("filtered", 3, 4, "capabilities: {drop: [NET_ADMIN, NET_RAW]}"))
	kubectl(t, s.Instance, pool, "apply", "-f", "-")
	available(t, s.Instance, "filtered", 3)
	request := func(words ...string) lifecycle.CreateSandboxRequest {
		r := fromPool("filtered", "")
		r.Image.URI, r.Entrypoint = baseImage, words
		return r
	}
	target := addressOf(t, s, s.Running(t, request("python3", "-m", "http.server", "8000")))
	reaching := "curl --silent --noproxy '*' --output /dev/null --connect-timeout 10 --max-time 20 http://" + target + ":8000/"
	free := s.Running(t, request("sleep", "infinity"))
	wait.Until(t, "a sandbox without a policy reaches the other one", func() bool { return s.Enter(t, free).Run(t, reaching).Code == 0 })
	deny := lifecycle.NetworkActionDeny
	r := request("sh", "-c", reaching+"; echo $? > /tmp/first; exec sleep infinity")
	r.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: &deny}
	id := s.Running(t, r)
	inside := s.Enter(t, id)
	wait.Until(t, "its program has tried", func() bool { return inside.Run(t, "cat /tmp/first").Stdout != "" })
	if first := inside.Run(t, "cat /tmp/first").Stdout; first == "0\n" {
		t.Error("the first thing that its program does passes the policy")
	}
	if policy := s.Policy(t, "GET", id, ""); policy.DefaultAction == nil || *policy.DefaultAction != deny {
		t.Errorf("the policy is %+v", policy)
	}
	s.Policy(t, "PUT", id, fmt.Sprintf(`{"defaultAction":"deny","egress":[{"action":"allow","target":%q}]}`, target))
	wait.Until(t, "it reaches what is allowed now", func() bool { return inside.Run(t, reaching).Code == 0 })
	mine, other := s.Endpoint(t, id, 18080), s.Endpoint(t, free, 18080)
	if len(mine.Headers) == 0 || fmt.Sprint(mine.Headers) == fmt.Sprint(other.Headers) {
		t.Errorf("the sidecars have the same token: %v", mine.Headers)
	}
	emptied(t, s.Instance)
}

// TestTasks runs tasks of a batch in pods of a Pool with task-executors.
func TestTasks(t *testing.T) {
	s := conformance.Start(t, onKubernetes(), conformance.Plan{})
	kubectl(t, s.Instance, taskPool("executors", 2, 2), "apply", "-f", "-")
	available(t, s.Instance, "executors", 2)
	batch := &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.Instance, Name: "parts"}}
	batch.Spec = v1alpha1.BatchSandboxSpec{Replicas: 2, PoolRef: "executors",
		TaskTemplate:     &v1alpha1.TaskTemplate{Command: []string{"sh", "-c", "exit $CODE"}, Env: []v1alpha1.EnvVar{{Name: "CODE", Value: "0"}}},
		ShardTaskPatches: []runtime.RawExtension{{Raw: []byte(`{}`)}, {Raw: []byte(`{"env":[{"name":"CODE","value":"3"}]}`)}}}
	if err := admin.Create(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both tasks have ended as their commands do", func(ctx context.Context) error {
		err := admin.Get(ctx, client.ObjectKeyFromObject(batch), batch)
		if stats := batch.Status.TaskStats; err == nil && (stats == nil || stats.Succeed != 1 || stats.Failed != 1) {
			err = fmt.Errorf("the tasks are %+v", stats)
		}
		return err
	})
	wantColumns(t, kubectl(t, s.Instance, "", "get", "bsbx", "parts", "-o", "wide"),
		map[string]string{"NAME": "parts", "TASK_SUCCEED": "1", "TASK_FAILED": "1"})
	kubectl(t, s.Instance, "", "delete", "bsbx", "parts")
	kubectl(t, s.Instance, "", "delete", "pool", "executors")
}

// taskPool is a Pool for tasks.
func taskPool(name string, buffer, most int) string {
	return fmt.Sprintf(`
apiVersion: sandbox.internal/v1alpha1
kind: Pool
metadata: {name: %[1]s}
spec:
  capacitySpec: {bufferMin: %[2]d, bufferMax: %[2]d, poolMin: %[2]d, poolMax: %[3]d}
  template:
    spec:
      shareProcessNamespace: true
      automountServiceAccountToken: false
      containers:
        - name: main
          image: %[4]s
          command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 3600 & wait; done']
          env: [{name: SANDBOX_MAIN, value: "1"}]
        - name: task-executor
          image: %[5]s
          readinessProbe: {httpGet: {path: /healthz, port: 5758}, periodSeconds: 1}
          resources: {requests: {memory: 16Mi}, limits: {memory: 256Mi}}
          securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE]}}
          volumeMounts: [{name: task-executor, mountPath: /var/lib/task-executor}]
      volumes: [{name: task-executor, emptyDir: {}}]
`, name, buffer, most, busyboxImage, executorImage)
}

// testPooled takes one sandbox of the Pool through its life.
func testPooled(t *testing.T, s *conformance.Service) {
	t.Helper()
	warm := podsOf(t, s.Instance, "warm")
	r := fromPool("warm", "echo started; echo $GREETING $KEPT > /tmp/greeting; exec sleep 1000")
	r.Env = lifecycle.Env{"GREETING": "from the request"}
	began := time.Now()
	got := s.Send(t, "POST", "/v1/sandboxes", conformance.Encode(t, r), "Prefer", "wait=60")
	took := time.Since(began)
	created, err := conformance.Decode[lifecycle.CreatedSandbox](got)
	if err != nil || created.Status.State != "Running" {
		t.Fatalf("create: %v; %s", err, got)
	}
	t.Logf("Running %v after the request", took)
	inside := s.Enter(t, created.ID)
	wait.Until(t, "the entrypoint has its variables", func() bool {
		return inside.Run(t, "cat /tmp/greeting").Stdout == "from the request of the Pool\n"
	})
	inside.Want(t, "echo $GREETING $KEPT; env | grep -c EXECD || true", "from the request of the Pool\n0\n")
	pod := podOf(t, s, created.ID)
	if !slices.Contains(warm, pod) {
		t.Errorf("the sandbox has %s, and %v were waiting", pod, warm)
	}
	if log := s.Send(t, "GET", "/v1/sandboxes/"+created.ID+"/logs", ""); log.Status != 200 || string(log.Body) != "started\n" {
		t.Errorf("the log of the sandbox is %s", log)
	}
	s.Pause(t, created.ID)
	s.Resume(t, created.ID)
	inside.Want(t, "echo again", "again\n")
	s.Delete(t, created.ID)
	s.Await(t, created.ID, "Terminated")
	eventually(t, "its pod is no other's", func(ctx context.Context) error {
		var found corev1.Pod
		err := admin.Get(ctx, client.ObjectKey{Namespace: s.Instance, Name: pod}, &found)
		if err == nil && found.Status.Phase != corev1.PodFailed && found.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("pod %s is %s", pod, found.Status.Phase)
		}
		return client.IgnoreNotFound(err)
	})
}

// enforce has the API server hold a Pod Security level in a namespace.
func enforce(t *testing.T, namespace, level string) {
	t.Helper()
	kubectl(t, namespace, "", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce="+level)
	// A pod that is not allowed is refused, so the level is in force.
	_, err := kubernetes.Kubectl(t.Context(), strings.NewReader(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: refused, namespace: %s}
spec: {hostPID: true, containers: [{name: a, image: %s}]}
`, namespace, busyboxImage)), "create", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Fatalf("the level %s is not enforced: %v", level, err)
	}
}

// fromPool is a request for a sandbox of a Pool that runs a script.
func fromPool(pool, script string) lifecycle.CreateSandboxRequest {
	r := conformance.Request(busyboxImage, "sh", "-c", script)
	r.ResourceLimits = &lifecycle.ResourceLimits{} // those of the Pool
	r.Extensions = []byte(`{"poolRef":"` + pool + `"}`)
	return r
}

func createPooled(t *testing.T, s *conformance.Service, r lifecycle.CreateSandboxRequest) string {
	t.Helper()
	created, err := conformance.Decode[lifecycle.CreatedSandbox](s.Send(t, "POST", "/v1/sandboxes", conformance.Encode(t, r)))
	if err != nil {
		t.Fatal(err)
	}
	return created.ID
}

// podOf returns the name of the pod that a sandbox of a Pool has.
func podOf(t *testing.T, s *conformance.Service, id string) string {
	t.Helper()
	batch := batchOf(t, s, id)
	allocation, err := batch.Allocation()
	if err != nil || len(allocation.Pods) != 1 {
		t.Fatalf("sandbox %s has the pods %v (%v)", id, allocation.Pods, err)
	}
	return allocation.Pods[0]
}

// apiPool is a Pool for sandboxes of the API: its pods wait for one. context are fields of the
// security contexts of its containers.
func apiPool(name string, buffer, most int, context string) string {
	return fmt.Sprintf(`
apiVersion: sandbox.internal/v1alpha1
kind: Pool
metadata: {name: %[1]s}
spec:
  capacitySpec: {bufferMin: %[2]d, bufferMax: %[2]d, poolMin: %[2]d, poolMax: %[3]d}
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      enableServiceLinks: false
      initContainers:
        - name: install-execd
          image: %[4]s
          command: [/opt/sandbox/execd, install, /target]
          securityContext: {%[6]s}
          volumeMounts: [{name: execd, mountPath: /target}]
      containers:
        - name: main
          image: %[5]s
          command: [/opt/sandbox/execd-init, await]
          env: [{name: KEPT, value: of the Pool}, {name: GREETING, value: replaced}]
          readinessProbe: {httpGet: {path: /ping, port: 44772}, periodSeconds: 1}
          resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {cpu: 500m, memory: 128Mi}}
          securityContext: {%[6]s}
          volumeMounts: [{name: execd, mountPath: /opt/sandbox, readOnly: true}]
      volumes: [{name: execd, emptyDir: {}}]
`, name, buffer, most, execdImage, busyboxImage, context)
}
