package kube_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/e2e/lives"
)

// testLifecycle follows a sandbox from its creation over HTTP to its end, through the API and
// through kubectl.
func testLifecycle(t *testing.T) {
	s := lives.Start(t, onKubernetes(), lives.Plan{})
	r := lives.Request(baseImage, "sh", "-c",
		"count=0; while :; do count=$((count + 1)); echo $count > /tmp/count; sleep 0.1; done")
	id := s.Running(t, r)
	inside := s.Enter(t, id)

	inside.Want(t, "echo hello", "hello\n")
	inside.Want(t, "python3 -c 'print(sum(range(10)))'", "45\n")
	inside.Upload(t, "/srv/program.py", "import socket\nprint(socket.gethostname())\n")
	inside.Want(t, "python3 /srv/program.py", id+"-0\n")
	t.Run("row lifecycle/cluster/BatchSandbox columns", func(t *testing.T) {
		table := kubectl(t, s.Instance, "", "get", "bsbx", "-o", "wide")
		t.Logf("while it runs:\n%s", table)
		wantColumns(t, table,
			map[string]string{"NAME": id, "DESIRED": "1", "TOTAL": "1", "ALLOCATED": "1",
				"READY": "1", "PHASE": "Running"})
	})

	t.Run("pause keeps memory", func(t *testing.T) {
		s.Pause(t, id)
		table := kubectl(t, s.Instance, "", "get", "bsbx", "-o", "wide")
		wantColumns(t, table, map[string]string{"NAME": id, "ALLOCATED": "1", "PHASE": "Paused"})
		count := func() string {
			return kubectl(t, s.Instance, "", "exec", id+"-0", "-c", "sandbox", "--", "cat",
				"/tmp/count")
		}
		before := count()
		// Between the two looks the loop would have counted on, many times.
		again := kubectl(t, s.Instance, "", "exec", id+"-0", "-c", "sandbox", "--", "sh", "-c",
			"sleep 2; cat /tmp/count")
		if before != again {
			t.Errorf("a paused sandbox counts from %q to %q", before, again)
		}
		s.Resume(t, id)
		lives.Eventually(t, "it counts on from where it was", func() bool {
			var paused, now int
			fmt.Sscan(before, &paused)
			fmt.Sscan(count(), &now)
			if now < paused && now > 0 {
				t.Fatalf("the count was %d and is %d: the process was restarted", paused, now)
			}
			return now > paused
		})
	})

	s.Delete(t, id)
	if got := s.Await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason of the end is %s", got.Reason)
	}
	wantHistory(t, batchOf(t, s, id), "Pending Running Pausing Paused Resuming Running Stopping Terminated")
	s.Gone(t, id)
}

// testRenewal renews a sandbox at once, whatever it is doing, and sees it end no earlier than that.
func testRenewal(t *testing.T) {
	s := lives.Start(t, onKubernetes(), lives.Plan{})
	r := s.Idle()
	r.Timeout = 60
	id := s.Create(t, r)
	later := s.Get(t, id).ExpiresAt.Add(time.Minute).Truncate(time.Second)
	renewed := s.Renew(t, id, later.UTC().Format(time.RFC3339))
	if renewed.Status != 200 || !s.Get(t, id).ExpiresAt.Equal(later) {
		t.Fatalf("renew: %s", renewed)
	}
	wantColumns(t, kubectl(t, s.Instance, "", "get", "bsbx"), map[string]string{"EXPIRE": later.UTC().Format(time.RFC3339)})
	s.Await(t, id, "Running")
	ended := s.AwaitWithin(t, id, "Terminated", time.Until(later)+lives.Patience)
	if ended.Status.Reason != "EXPIRED" {
		t.Errorf("it ended with %s (%s)", ended.Status.Reason, ended.Status.Message)
	}
	batch := batchOf(t, s, id)
	wantHistory(t, batch, "Pending Running Stopping Terminated")
	for _, change := range batch.Status.History {
		if change.Phase == v1alpha1.PhaseStopping && change.Time.Time.Before(later) {
			t.Errorf("it was stopped at %v, before its renewed expiry at %v", change.Time, later)
		}
	}
	s.Gone(t, id)
}

func batchOf(t *testing.T, s *lives.Service, id string) v1alpha1.BatchSandbox {
	t.Helper()
	var batch v1alpha1.BatchSandbox
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.Instance, Name: id}, &batch); err != nil {
		t.Fatal(err)
	}
	return batch
}

func wantHistory(t *testing.T, batch v1alpha1.BatchSandbox, want string) {
	t.Helper()
	var phases []string
	for _, change := range batch.Status.History {
		phases = append(phases, string(change.Phase))
	}
	if strings.Join(phases, " ") != want {
		t.Errorf("its history is %v, want %s", phases, want)
	}
}

// TestPool has a sandbox served from a Pool over HTTP.
func TestPool(t *testing.T) {
	s := lives.Start(t, onKubernetes(), lives.Plan{})
	kubectl(t, s.Instance, taskPool("warm", 2, 4), "apply", "-f", "-")
	available(t, s.Instance, "warm", 2)
	t.Run("row lifecycle/cluster/Pool capacitySpec", func(t *testing.T) {
		table := kubectl(t, s.Instance, "", "get", "pool", "-o", "wide")
		t.Logf("the pool is warm:\n%s", table)
		wantColumns(t, table, map[string]string{
			"NAME": "warm", "TOTAL": "2", "ALLOCATED": "0", "AVAILABLE": "2", "BUFFERMIN": "2",
			"BUFFERMAX": "2", "POOLMIN": "2", "POOLMAX": "4",
		})
	})

	r := lives.Request(busyboxImage, "sh", "-c", "echo $GREETING > /tmp/greeting; exec sleep 1000")
	r.Env = lifecycle.Env{"GREETING": "from the request"}
	r.Extensions = []byte(`{"poolRef":"warm"}`)
	for range 3 {
		available(t, s.Instance, "warm", 1)
		warm := podsOf(t, s.Instance, "warm")
		began := time.Now()
		got := s.Send(t, "POST", "/v1/sandboxes", lives.Encode(t, r), "Prefer", "wait=60")
		took := time.Since(began)
		created, err := lives.Decode[lifecycle.CreatedSandbox](got)
		if err != nil || created.Status.State != "Running" {
			t.Fatalf("create: %v; %s", err, got)
		}
		t.Logf("Running %v after the request", took)
		inside := s.Enter(t, created.ID)
		lives.Eventually(t, "the entrypoint has its variables", func() bool {
			return inside.Run(t, "cat /tmp/greeting").Stdout == "from the request\n"
		})
		table := kubectl(t, s.Instance, "", "get", "bsbx", created.ID, "-o", "wide")
		wantColumns(t, table,
			map[string]string{"NAME": created.ID, "ALLOCATED": "1", "READY": "1",
				"TASK_RUNNING": "1", "TASK_FAILED": "0"})
		t.Logf("\n%s", table)
		var batch v1alpha1.BatchSandbox
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: s.Instance, Name: created.ID},
			&batch); err != nil {
			t.Fatal(err)
		}
		allocation, err := batch.Allocation()
		if err != nil || len(allocation.Pods) != 1 || !slices.Contains(warm, allocation.Pods[0]) {
			t.Fatalf("it has %v (%v), and %v were waiting", allocation.Pods, err, warm)
		}
		s.Delete(t, created.ID)
		s.Await(t, created.ID, "Terminated")
		eventually(t, "its pod is given back", func(context.Context) error {
			if slices.Contains(podsOf(t, s.Instance, "warm"), allocation.Pods[0]) {
				return fmt.Errorf("pod %s is there", allocation.Pods[0])
			}
			return nil
		})
	}
	t.Logf("\n%s", kubectl(t, s.Instance, "", "get", "bsbx,pool", "-o", "wide"))

	// One that ends by itself ends like any other.
	for command, end := range map[string]struct {
		state,
		says string
	}{"exit 3": {"Failed", "exit code 3"}, "exit 0": {"Terminated", "exit code 0"}} {
		available(t, s.Instance, "warm", 1)
		r := lives.Request(busyboxImage, "sh", "-c", "sleep 2; "+command)
		r.Extensions = []byte(`{"poolRef":"warm"}`)
		created, err := lives.Decode[lifecycle.CreatedSandbox](s.Send(t, "POST", "/v1/sandboxes",
			lives.Encode(t, r)))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Await(t, created.ID, end.state).Status; got.Reason != "ENTRYPOINT_EXITED" ||
			!strings.Contains(got.Message, end.says) {
			t.Errorf("%s: %+v", command, got)
		}
	}
	kubectl(t, s.Instance, "", "delete", "pool", "warm")
}

// taskPool is a Pool for sandboxes of the service: execd is in the pods, and a task-executor starts
// it.
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
      initContainers:
        - {name: install-execd, image: %[4]s, command: [/opt/sandbox/execd, install, /target], volumeMounts: [{name: execd, mountPath: /target}]}
      containers:
        - name: main
          image: %[5]s
          command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 3600 & wait; done']
          env: [{name: SANDBOX_MAIN, value: "1"}]
          volumeMounts: [{name: execd, mountPath: /opt/sandbox}]
        - name: task-executor
          image: %[6]s
          readinessProbe: {httpGet: {path: /healthz, port: 5758}, periodSeconds: 1}
          resources: {requests: {memory: 16Mi}, limits: {memory: 256Mi}}
          securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE]}}
          volumeMounts: [{name: task-executor, mountPath: /var/lib/task-executor}]
      volumes:
        - {name: execd, emptyDir: {}}
        - {name: task-executor, emptyDir: {}}
`, name, buffer, most, execdImage, busyboxImage, executorImage)
}

// available waits until a Pool has that many pods ready to be given.
func available(t *testing.T, namespace, name string, count int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("Pool %s has %d pods", name, count), func(ctx context.Context) error {
		var pool v1alpha1.Pool
		if err := admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name},
			&pool); err != nil {
			return err
		}
		if pool.Status.Available < count {
			return fmt.Errorf("its status is %+v", pool.Status)
		}
		return nil
	})
}

// wantColumns checks fields of the only line of a table that kubectl has printed.
func wantColumns(t *testing.T, table string, want map[string]string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != 2 {
		t.Errorf("kubectl prints %q, want a table with one line", table)
		return
	}
	for name, value := range want {
		// A column is as wide as its title says; a field may be empty.
		begin := strings.Index(" "+lines[0]+" ", " "+name+" ")
		if begin < 0 {
			t.Errorf("there is no column %s in\n%s", name, table)
			continue
		}
		got, _, _ := strings.Cut(lines[1][min(begin, len(lines[1])):], " ")
		if got != value {
			t.Errorf("%s is %q, want %q, in\n%s", name, got, value, table)
		}
	}
}
