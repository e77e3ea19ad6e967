package manager_test

import (
	"fmt"
	"strings"
	"testing"

	"sandbox.internal/runtime/kube/manager"
)

// installed returns options for a controller that has the rights which the chart gives it, and no
// others.
func installed(t *testing.T, namespace string) manager.Options {
	t.Helper()
	accounts, err := theCluster.Accounts(t.Context(), namespace, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := manager.Load(accounts.Controller)
	if err != nil {
		t.Fatal(err)
	}
	return manager.Options{Config: config, Namespace: namespace}
}

const pool = `
apiVersion: sandbox.internal/v1alpha1
kind: Pool
metadata: {name: warm, namespace: %s}
spec:
  capacitySpec: {bufferMin: 2, bufferMax: 2, poolMin: 2, poolMax: 4}
  template:
    spec: {containers: [{name: main, image: x}]}
`

// TestPoolAsInstalled: the controller fills a Pool with the rights that the chart gives it.
func TestPoolAsInstalled(t *testing.T) {
	const namespace = "installed"
	kubectl(t, "", "create", "namespace", namespace)
	start(t, installed(t, namespace))
	kubectl(t, fmt.Sprintf(pool, namespace), "apply", "-f", "-")
	eventually(t, func() error {
		pods := kubectl(t, "", "-n", namespace, "get", "pods", "-o", "name")
		if n := len(strings.Fields(pods)); n != 2 {
			return fmt.Errorf("the Pool has %d pods", n)
		}
		return nil
	})
	eventually(t, func() error {
		events := kubectl(t, "", "-n", namespace, "get", "events", "-o",
			"jsonpath={.items[*].reason}")
		if !strings.Contains(events, "PodsCreated") {
			return fmt.Errorf("the events are %q", events)
		}
		return nil
	})
}

// TestPoolThatCannotBeServed: what keeps the controller from filling a Pool is in the Pool's status
// and in an event.
func TestPoolThatCannotBeServed(t *testing.T) {
	for name, test := range map[string]struct{ forbid, want string }{
		"no finalizer": {`[{"op": "replace", "path": "/rules/1/verbs", "value": ["get", "list", "watch"]}]`, "cannot patch resource"},
		"no pods":      {`[{"op": "replace", "path": "/rules/4/verbs", "value": ["get", "list", "watch"]}]`, "cannot create resource"},
		"quota":        {"", "exceeded quota"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := "unserved-" + strings.ReplaceAll(name, " ", "-")
			kubectl(t, "", "create", "namespace", namespace)
			options := installed(t, namespace)
			if test.forbid != "" {
				kubectl(t, "", "-n", namespace, "patch", "role", "sandbox-controller",
					"--type=json", "--patch", test.forbid)
			} else {
				kubectl(t, "", "-n", namespace, "create", "quota", "none", "--hard=pods=0")
				kubectl(t, "", "-n", namespace, "patch", "quota", "none", "--subresource=status",
					"--type=merge", "--patch",
					// what the quota controller of a whole cluster does
					`{"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}`)
			}
			start(t, options)
			kubectl(t, fmt.Sprintf(pool, namespace), "apply", "-f", "-")
			eventually(t, func() error {
				ready := kubectl(t, "", "-n", namespace, "get", "pool", "warm", "-o",
					`jsonpath={.status.conditions[?(@.type=="Ready")]}`)
				if !strings.Contains(ready, `"status":"False"`) ||
					!strings.Contains(ready, test.want) {
					return fmt.Errorf("the condition Ready is %s, want %q in it", ready, test.want)
				}
				return nil
			})
			eventually(t, func() error {
				events := kubectl(t, "", "-n", namespace, "get", "events", "--field-selector",
					"type=Warning", "-o", "jsonpath={.items[*].message}")
				if !strings.Contains(events, test.want) {
					return fmt.Errorf("the warnings are %q, want %q among them", events, test.want)
				}
				return nil
			})
		})
	}
}

// TestExecutorsHaveTheControllersKey: the task-executor of every pod, of a Pool and of a batch's
// own template, gets the controller's public key and the pod's UID, and no token. The key outlives
// the controller. The pods get no token for the API server.
func TestExecutorsHaveTheControllersKey(t *testing.T) {
	const namespace = "keys"
	kubectl(t, "", "create", "namespace", namespace)
	_, stop := start(t, installed(t, namespace))
	const template = `{shareProcessNamespace: true, containers: [{name: main, image: x}, {name: task-executor, image: x,
      env: [{name: TASK_EXECUTOR_CONTROLLER_KEY, value: theirs}], securityContext: {capabilities: {add: [SYS_PTRACE]}}}]}`
	kubectl(t, fmt.Sprintf(`
apiVersion: sandbox.internal/v1alpha1
kind: Pool
metadata: {name: warm, namespace: %[1]s}
spec:
  capacitySpec: {bufferMin: 1, bufferMax: 1, poolMin: 1, poolMax: 1}
  template: {spec: %[2]s}
---
apiVersion: sandbox.internal/v1alpha1
kind: BatchSandbox
metadata: {name: own, namespace: %[1]s}
spec:
  replicas: 1
  template: {spec: %[2]s}
`, namespace, template), "apply", "-f", "-")
	keys := func(count int) (keys []string) {
		t.Helper()
		eventually(t, func() error {
			out := kubectl(t, "", "-n", namespace, "get", "pods", "-o",
				`jsonpath={range .items[*]}{.spec.containers[?(@.name=="task-executor")].env}{"\n"}{end}`)
			keys = strings.Split(strings.TrimSpace(out), "\n")
			if len(keys) != count || keys[0] == "" {
				return fmt.Errorf("there are %d pods, want %d", len(keys), count)
			}
			return nil
		})
		return keys
	}
	first := keys(2)
	if first[0] != first[1] || !strings.Contains(first[0], "metadata.uid") ||
		strings.Contains(first[0], "theirs") {
		t.Errorf("the executors have %s", first)
	}
	if automounted := kubectl(t, "", "-n", namespace, "get", "pods", "-o",
		"jsonpath={.items[*].spec.automountServiceAccountToken}"); automounted != "false false" {
		t.Errorf("tokens for the API server are mounted: %q", automounted)
	}
	stop()
	start(t, installed(t, namespace))
	kubectl(t, "", "-n", namespace, "patch", "bsbx", "own", "--type=merge", "--patch",
		`{"spec": {"replicas": 2}}`)
	for _, env := range keys(3) {
		if env != first[0] {
			t.Errorf("another controller gives %s, the first one %s", env, first[0])
		}
	}
}
