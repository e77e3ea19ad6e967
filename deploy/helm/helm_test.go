// Package helm_test holds the chart against a real API server: it installs, upgrades and removes
// it, and asks what its accounts may.
package helm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

func TestLint(t *testing.T) {
	for name, set := range values {
		t.Run(name, func(t *testing.T) { helm(t, append([]string{"lint", "--strict", chart}, set...)...) })
	}
}

// TestServerAcceptsWhatIsRendered has the API server validate every field, strictly.
func TestServerAcceptsWhatIsRendered(t *testing.T) {
	definePodMonitors(t)
	for name, set := range values {
		t.Run(name, func(t *testing.T) {
			objects := helm(t, append([]string{"template", "rendered", chart, "--include-crds"}, set...)...)
			kubectl(t, objects, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
		})
	}
	t.Run("namespace", func(t *testing.T) {
		objects := helm(t, "template", "rendered", chart, "--show-only", "templates/namespace.yaml",
			"--set", "sandboxes.createNamespace=true,sandboxes.namespace=boxes")
		out := kubectl(t, objects, "apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-")
		if !strings.Contains(out, `"pod-security.kubernetes.io/enforce": "privileged"`) {
			t.Errorf("pods with a sidecar would not get into the namespace:\n%s", out)
		}
	})
}

// TestServiceAcceptsItsConfiguration has the service's own rules look at the file that the chart
// writes.
func TestServiceAcceptsItsConfiguration(t *testing.T) {
	for name, set := range values {
		t.Run(name, func(t *testing.T) {
			objects := helm(t, append([]string{"template", "rendered", chart, "--show-only", "templates/server.yaml"}, set...)...)
			file := kubectl(t, objects, "create", "--dry-run=client", "-f", "-", "-o", `jsonpath={.data.sandbox\.toml}`)
			directory := t.TempDir()
			key := filepath.Join(directory, "api-key")
			if err := os.WriteFile(key, []byte(strings.Repeat("k", 48)), 0o600); err != nil {
				t.Fatal(err)
			}
			file = strings.ReplaceAll(file, "/etc/sandbox/secret/api-key", key)
			path := filepath.Join(directory, "sandbox.toml")
			if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			loaded, err := config.Load(path, func(string) string { return "" })
			if err != nil {
				t.Fatalf("%v\n%s", err, file)
			}
			if warnings := loaded.Warnings(); len(warnings) > 0 {
				t.Errorf("warnings: %q\n%s", warnings, file)
			}
		})
	}
}

// TestChartIsClosed: it demands a key, and lets no path of a node be mounted unless a list says
// which.
func TestChartIsClosed(t *testing.T) {
	closed := helm(t, "template", "sandbox", chart)
	for _, want := range []string{`api_key_file = "/etc/sandbox/secret/api-key"`, "[storage]\n    host_volumes = false\n"} {
		if !strings.Contains(closed, want) {
			t.Errorf("the configuration lacks %q", want)
		}
	}
	for set, want := range map[string]string{"server.limits.maxCPU=4": "max_cpu = \"4\"", "server.extraConfig=[server.limits]": ""} {
		got := helm(t, "template", "sandbox", chart, "--set", set)
		bounded := strings.Contains(got, "default_cpu = \"500m\"") && strings.Contains(got, "default_memory = \"512Mi\"")
		if bounded != (want != "") || !strings.Contains(got, want) || strings.Count(got, "[server.limits]") != 1 {
			t.Errorf("%s: a request without resourceLimits is bounded: %t", set, bounded)
		}
	}
	opened := helm(t, "template", "sandbox", chart, "--set", "sandboxes.allowedHostPaths={/data}")
	if strings.Contains(opened, "host_volumes") || !strings.Contains(opened, `allowed_host_paths = ["/data"]`) {
		t.Error("a list of allowed paths does not have its effect")
	}
}

func TestSchemaRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"server.replica=3":                                "additional properties 'replica' not allowed",
		"server.logLevel=loud":                            "/server/logLevel",
		"server.replicas=-1":                              "/server/replicas",
		"gateway.mode=host":                               "/gateway/mode",
		"gateway.mode=wildcard":                           "/gateway/address",
		"gateway.address=*.example.com":                   "/gateway/address",
		"server.keys[0].name=a,server.keys[0].role=admin": "missing property 'sha256'",
		"sandboxes.namespace=Not_A_Name":                  "/sandboxes/namespace",
		"sandboxes.allowedHostPaths={data}":               "/sandboxes/allowedHostPaths/0",
		"sandboxes.execdImage=":                           "/sandboxes/execdImage",
		"controller.logEncoder=xml":                       "/controller/logEncoder",
		"gateway.service.port=0":                          "/gateway/service/port",
		"networkPolicy.denied={private}":                  "/networkPolicy/denied/0",
		"networkPolicy.dns.to={}":                         "/networkPolicy/dns/to", // which stands for every address
		"networkPolicy.dns.peers[0].podSelector.a=b":      "additional properties 'peers' not allowed",
		"sandboxes.ephemeralStorage=much":                 "/sandboxes/ephemeralStorage",
		"sandboxes.tolerations[0].effect=Never":           "/sandboxes/tolerations/0/effect",
		"sandboxes.runtimeClasses[0].name=gvisor":         "missing property 'handler'",
		"metrics.podMonitor.enabled=true":                 "/metrics/podMonitor/key/secret",
		"server.console=off":                              "/server/console",
		"metrics.podMonitor.interval=often":               "/metrics/podMonitor/interval",
		"gateway.mode=wildcard,gateway.address=*.a.b:84":  "/gateway/address",
		"gateway.address=https://a.example.com":           "/gateway/address",
		"sandboxes.ephemeralStorage=1.5Gi":                "/sandboxes/ephemeralStorage",
		"server.extraKeys.local.bridge=x":                 "/server/extraKeys",
		"sandboxes.requestPercent.cpu=0":                  "/sandboxes/requestPercent/cpu",
		"controller.hostUsers=maybe":                      "/controller/hostUsers",
		"sandboxes.podLabels.a.b=c":                       "/sandboxes/podLabels/a",
	} {
		if _, err := tryHelm(t, "template", "refused", chart, "--set", set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", set, err, want)
		}
	}
}

// TestOlderClustersAreRefused: what the resource definitions need came with Kubernetes 1.30.
func TestOlderClustersAreRefused(t *testing.T) {
	if _, err := tryHelm(t, "template", "old", chart, "--kube-version", "1.29.9"); err == nil || !strings.Contains(err.Error(), "incompatible with Kubernetes") {
		t.Errorf("for Kubernetes 1.29: %v", err)
	}
	helm(t, "template", "new", chart, "--kube-version", "1.30.0")
}

// TestDefinitionsAreInstalled shows that the chart brings the definitions that the controller's
// types make.
func TestDefinitionsAreInstalled(t *testing.T) {
	files, err := filepath.Glob("../../runtime/kube/config/crd/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions: %v", err)
	}
	shown := helm(t, "show", "crds", chart)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if body := strings.TrimSpace(strings.TrimPrefix(string(content), "---\n")); !strings.Contains(shown, body) {
			t.Errorf("%s is not in the chart as it is", file)
		}
	}
}

func TestLife(t *testing.T) {
	kubectl(t, "", "create", "namespace", "life")
	helm(t, "install", "sandbox", chart, "--namespace", "life")
	if err := shared.Defined(t.Context(), "crd/batchsandboxes.sandbox.internal", "crd/pools.sandbox.internal"); err != nil {
		t.Fatal(err)
	}

	// The keys are made once.
	keys := func() string {
		return kubectl(t, "", "-n", "life", "get", "secret", "sandbox", "-o", "jsonpath={.data}")
	}
	before := keys()
	var data map[string][]byte
	if err := json.Unmarshal([]byte(before), &data); err != nil {
		t.Fatal(err)
	}
	if len(data["api-key"]) < 32 || len(data["signing-key"]) < 32 {
		t.Errorf("keys of %d and %d bytes", len(data["api-key"]), len(data["signing-key"]))
	}
	config := func() string {
		return kubectl(t, "", "-n", "life", "get", "deployment", "sandbox-server", "-o", `jsonpath={.spec.template.metadata.annotations.checksum/config}`)
	}
	first := config()
	helm(t, "upgrade", "sandbox", chart, "--namespace", "life", "--set", "server.logLevel=DEBUG")
	if after := keys(); after != before {
		t.Error("an upgrade changed the keys")
	}
	if config() == first {
		t.Error("a changed configuration restarts no server")
	}

	// What is worth more than the chart outlives it.
	helm(t, "uninstall", "sandbox", "--namespace", "life")
	if after := keys(); after != before {
		t.Error("the keys went with the chart")
	}
	kubectl(t, "", "get", "crd", "batchsandboxes.sandbox.internal")
	// The sandboxes stay, and so must what confines them: also on an upgrade that looks for them
	// elsewhere.
	policy := func(namespace string) string {
		return kubectl(t, "", "-n", namespace, "get", "networkpolicies", "-o", "name")
	}
	const kept = "networkpolicy.networking.k8s.io/sandbox-sandboxes\n"
	if got := policy("life"); got != kept {
		t.Errorf("after the chart's removal there are the network policies %q", got)
	}
	// The controller of another release needs these for the sandboxes that stay.
	const rights = "role.rbac.authorization.k8s.io/sandbox-controller\n" +
		"rolebinding.rbac.authorization.k8s.io/sandbox-controller\n" +
		"rolebinding.rbac.authorization.k8s.io/sandbox-controller-last\n"
	if left := kubectl(t, "", "-n", "life", "get", "deployments,services,roles,rolebindings,poddisruptionbudgets,configmaps", "-l", "app.kubernetes.io/instance=sandbox", "-o", "name"); left != rights {
		t.Errorf("left: %s", left)
	}
	helm(t, "install", "sandbox", chart, "--namespace", "life")
	if after := keys(); after != before {
		t.Error("another installation changed the keys")
	}
	kubectl(t, "", "create", "namespace", "life-elsewhere")
	helm(t, "upgrade", "sandbox", chart, "--namespace", "life", "--set", "sandboxes.namespace=life-elsewhere")
	for _, namespace := range []string{"life", "life-elsewhere"} {
		if got := policy(namespace); !strings.Contains(got, kept) {
			t.Errorf("after a change of sandboxes.namespace there are the network policies %q in %s", got, namespace)
		}
	}
	helm(t, "uninstall", "sandbox", "--namespace", "life")
}

// TestPodsAreConfined holds every Deployment against the restricted Pod Security Standard, and
// beyond: the API server enforces the standard for pods of the namespace, and the test looks for
// what the standard leaves open.
func TestPodsAreConfined(t *testing.T) {
	kubectl(t, "", "create", "namespace", "confined")
	kubectl(t, "", "label", "namespace", "confined", "pod-security.kubernetes.io/enforce=restricted")
	helm(t, "install", "sandbox", chart, "--namespace", "confined")
	var list struct{ Items []deployment }
	if err := json.Unmarshal([]byte(kubectl(t, "", "-n", "confined", "get", "deployments", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	var budgets struct {
		Items []struct {
			Spec struct{ Selector selector }
		}
	}
	if err := json.Unmarshal([]byte(kubectl(t, "", "-n", "confined", "get", "poddisruptionbudgets", "-o", "json")), &budgets); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 3 {
		t.Errorf("%d deployments, want 3", len(list.Items))
	}
	for _, d := range list.Items {
		t.Run(d.Metadata.Name, func(t *testing.T) {
			pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": d.Metadata.Name, "namespace": "confined"}, "spec": d.Spec.Template.Spec}
			content, err := json.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			kubectl(t, string(content), "create", "--dry-run=server", "-f", "-")

			var spec struct {
				Containers []struct {
					SecurityContext struct{ ReadOnlyRootFilesystem bool }
					ReadinessProbe  map[string]any
					LivenessProbe   map[string]any
					Resources       struct{ Requests, Limits map[string]string }
				}
			}
			if err := json.Unmarshal(d.Spec.Template.Spec, &spec); err != nil {
				t.Fatal(err)
			}
			for _, c := range spec.Containers {
				if !c.SecurityContext.ReadOnlyRootFilesystem {
					t.Error("the root file system can be written to")
				}
				if c.ReadinessProbe == nil || c.LivenessProbe == nil {
					t.Error("a probe is missing")
				}
				if c.Resources.Requests["memory"] == "" || c.Resources.Limits["memory"] == "" {
					t.Error("memory is not bounded")
				}
			}
			if d.Spec.Replicas != 2 {
				t.Errorf("%d replicas, want 2", d.Spec.Replicas)
			}
			covered := 0
			for _, budget := range budgets.Items {
				if budget.Spec.Selector.matches(d.Spec.Template.Metadata.Labels) {
					covered++
				}
			}
			if covered != 1 {
				t.Errorf("%d disruption budgets cover its pods, want 1", covered)
			}
		})
	}
}

// TestMemoryLimit: the Go runtime of every component collects before the container's limit ends it.
func TestMemoryLimit(t *testing.T) {
	for limit, want := range map[string]string{
		"1Gi": "966367641", "512Mi": "483183820", "1.5Gi": "1449551462", "1G": "900000000", "1000000000": "900000000", "2e9": "", "null": "",
	} {
		for _, name := range []string{"server", "controller", "gateway"} {
			objects := helm(t, "template", "rendered", chart, "--show-only", "templates/"+name+".yaml", "--set", name+".resources.limits.memory="+limit)
			got := kubectl(t, objects, "create", "--dry-run=client", "-f", "-", "-o", `jsonpath={.spec.template.spec.containers[*].env[?(@.name=="GOMEMLIMIT")].value}`)
			if got != want {
				t.Errorf("%s, with the limit %s: GOMEMLIMIT is %q, want %q", name, limit, got, want)
			}
		}
	}
}

// TestPodsThatServeStopLate: a pod that ends takes new connections until no node sends it any, and
// then has the time that it gives requests.
func TestPodsThatServeStopLate(t *testing.T) {
	for _, name := range []string{"server", "gateway"} { // the gateway gives 30 s, the service 5 s
		objects := helm(t, "template", "rendered", chart, "--show-only", "templates/"+name+".yaml")
		got := kubectl(t, objects, "create", "--dry-run=client", "-f", "-", "-o",
			"jsonpath={.spec.template.spec.containers[*].lifecycle.preStop.sleep.seconds} {.spec.template.spec.terminationGracePeriodSeconds} ")
		if fields := strings.Fields(got); !slices.Equal(fields, []string{"5", "60"}) {
			t.Errorf("%s: sleeps and ends within %q seconds", name, fields)
		}
	}
}

type deployment struct {
	Metadata struct{ Name string }
	Spec     struct {
		Replicas int
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     json.RawMessage
		}
	}
}

type selector struct{ MatchLabels map[string]string }

func (s selector) matches(labels map[string]string) bool {
	for name, value := range s.MatchLabels {
		if labels[name] != value {
			return false
		}
	}
	return true
}
