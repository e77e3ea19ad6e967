package batch_test

import (
	"strings"
	"testing"
)

// TestNonsenseExplainsItself: what `kubectl apply` says of a BatchSandbox that breaks a rule.
func TestNonsenseExplainsItself(t *testing.T) {
	p := newPlace(t)
	const head = "apiVersion: sandbox.internal/v1alpha1\nkind: BatchSandbox\nmetadata: {name: NAME}\nspec:\n"
	const pod = "  template: {spec: {containers: [{name: main, image: x}]}}\n"
	for i, test := range []struct{ spec, want string }{
		{"  replicas: 1\n", "exactly one of template and poolRef must be set"},
		{"  poolRef: p\n" + pod, "exactly one of template and poolRef must be set"},
		{"  replicas: -1\n" + pod, "greater than or equal to 0"},
		{"  replicas: 10001\n" + pod, "less than or equal to 10000"},
		{"  replicas: many\n" + pod, "spec.replicas"},
		{"  poolRef: p\n  shardPatches: [{}]\n", "shardPatches need a template"},
		{"  shardTaskPatches: [{}]\n" + pod, "shardTaskPatches need a taskTemplate"},
		{"  shardPatches: [{}, {}]\n" + pod, "there are more shardPatches than replicas"},
		{"  taskTemplate: {command: [x]}\n  shardTaskPatches: [{}, {}]\n" + pod,
			"there are more shardTaskPatches than replicas"},
		{"  taskTemplate: {command: []}\n" + pod, "spec.taskTemplate.command"},
		{"  taskTemplate: {command: [x], timeoutSeconds: -1}\n" + pod,
			"spec.taskTemplate.timeoutSeconds"},
		{"  taskTemplate: {command: [x], readiness: {port: 0}}\n" + pod,
			"spec.taskTemplate.readiness.port"},
		{"  taskTemplate: {command: [x], readiness: {port: 1, path: x}}\n" + pod,
			"spec.taskTemplate.readiness.path"},
		{"  taskResourcePolicyWhenCompleted: Maybe\n" + pod,
			"supported values: \"Retain\", \"Release\""},
		{"  ttlSecondsAfterFinished: -1\n" + pod, "spec.ttlSecondsAfterFinished"},
		{"  provisionTimeoutSeconds: 0\n" + pod, "spec.provisionTimeoutSeconds"},
		{"  expireTime: tomorrow\n" + pod, "spec.expireTime"},
		{"  replica: 1\n" + pod, "unknown field \"spec.replica\""},
	} {
		if _, err := p.kubectl(strings.Replace(head, "NAME", "b", 1)+test.spec, "apply", "-f",
			"-"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d: %s\nis answered with %v\nand not with %q", i, test.spec, err, test.want)
		}
	}
	for name, want := range map[string]string{strings.Repeat("x", 59): "at most 58 characters",
		"a.b": "must be a DNS label"} {
		if _, err := p.kubectl(strings.Replace(head, "NAME", name, 1)+pod, "apply", "-f",
			"-"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the name %s is answered with %v", name, err)
		}
	}

	// Changes.
	for _, apply := range []string{
		strings.Replace(head, "NAME", "own",
			1) + "  replicas: 2\n  pause: true\n  shardPatches: [{}, {}]\n" + pod,
		strings.Replace(head, "NAME", "pooled", 1) + "  poolRef: p\n",
		strings.Replace(head, "NAME", "tasks",
			1) +
			"  replicas: 2\n  taskTemplate: {command: [x], env: [{name: A, value: b}]}\n  shardTaskPatches: [{args: [a]}, {}]\n" + pod,
		strings.Replace(head, "NAME", strings.Repeat("x", 58), 1) + pod,
	} {
		if _, err := p.kubectl(apply, "apply", "-f", "-"); err != nil {
			t.Error(err)
		}
	}
	for _, test := range []struct{ name, patch, want string }{
		{"pooled", `{"spec":{"poolRef":"q"}}`, "poolRef is immutable"},
		{"own", `{"spec":{"poolRef":"p","template":null,"shardPatches":null}}`,
			"poolRef is immutable"},
		{"own", `{"spec":{"replicas":1}}`, "replicas cannot change while the batch is paused"},
		{"own", `{"spec":{"replicas":1,"pause":false}}`, ""}, // fewer than there are patches
		{"own", `{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`, ""},
		{"own", `{"spec":{"taskTemplate":{"command":["x"]}}}`, "taskTemplate is immutable"},
		{"tasks", `{"spec":{"taskTemplate":{"command":["y"]}}}`, "taskTemplate is immutable"},
		{"tasks", `{"spec":{"taskTemplate":null,"shardTaskPatches":null}}`,
			"taskTemplate is immutable"},
		{"tasks", `{"spec":{"shardTaskPatches":[{"args":["b"]},{}]}}`,
			"shardTaskPatches are immutable"},
		{"tasks", `{"spec":{"shardTaskPatches":null}}`, "shardTaskPatches are immutable"},
		{"tasks", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"y"}]}}}}`,
			"template is immutable"},
		{"tasks", `{"spec":{"replicas":0,"expireTime":"2099-01-01T00:00:00Z"}}`, ""},
		{"tasks",
			`{"spec":{"taskTemplate":{"command":["y"]},"template":{"spec":{"containers":[{"name":"main","image":"y"}]}}}}`, ""},
	} {
		_, err := p.kubectl("", "patch", "bsbx", test.name, "--type=merge", "-p", test.patch)
		if (err == nil) != (test.want == "") || err != nil &&
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s of %s is answered with %v", test.patch, test.name, err)
		}
	}
}
