package helm_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

const chart = "sandbox"

// shared is the API server of all tests. Each has namespaces and releases of its own; the resource
// definitions are common to all.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	defer cancel()
	err := lookAtInputs()
	if err != nil {
		fmt.Fprintf(os.Stderr, "deploy/helm: %v\n", err)
		os.Exit(1)
	}
	if shared, err = cluster.Start(ctx, cluster.Options{Mode: cluster.API}); err != nil {
		fmt.Fprintf(os.Stderr, "deploy/helm: %v\n", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := shared.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "deploy/helm: %v\n", err)
			code = 1
		}
		os.Exit(code)
	}))
}

// lookAtInputs lists the directories of what helm and the cluster's node read. The go command
// repeats a result from its cache until something changes that the test itself has looked at.
func lookAtInputs() error {
	for _, directory := range []string{chart, chart + "/templates", chart + "/crds"} {
		if _, err := os.ReadDir(directory); err != nil {
			return err
		}
	}
	return nil
}

func kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	out, err := shared.Kubectl(ctx, strings.NewReader(stdin), args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func tryHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	directory := t.TempDir() // what helm keeps of a person's is not the tests'
	t.Setenv("HELM_CACHE_HOME", directory)
	t.Setenv("HELM_CONFIG_HOME", directory)
	t.Setenv("HELM_DATA_HOME", directory)
	out, err := shared.Helm(ctx, args...)
	return string(out), err
}

func helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryHelm(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// values are the sets that are tried: what the chart can do, between them.
var values = map[string][]string{
	"default": nil,
	"everything": {
		"--set", "sandboxes.egressImage=sandbox/egress:dev", "--set", "sandboxes.allowedHostPaths={/data,/srv/x}",
		"--set", "gateway.mode=wildcard", "--set", "gateway.address=*.sandboxes.example.com",
		"--set", "server.keys[0].name=ci", "--set", "server.keys[0].role=user", "--set", "server.keys[0].sha256=" + strings.Repeat("ab", 32), "--set", "server.keys[0].maxSandboxes=20",
		"--set-string", "server.extraConfig=[server.rate_limit]\nrequests_per_second = 20",
		"--set", "imagePullSecrets[0].name=registry", "--set", "server.nodeSelector.disk=fast", "--set", "controller.podAnnotations.a=b",
		"--set", "sandboxes.runtimeClass=gvisor", "--set", "sandboxes.priorityClass=low", "--set", "sandboxes.ephemeralStorage=10Gi",
		"--set", "sandboxes.runtimeClasses[0].name=gvisor", "--set", "sandboxes.runtimeClasses[0].handler=runsc",
		"--set", "sandboxes.runtimeClasses[1].name=kata", "--set", "sandboxes.runtimeClasses[1].handler=kata", "--set", "sandboxes.runtimeClasses[1].egressSidecar=true",
		"--set", "sandboxes.nodeSelector.example\\.com/pool=sandboxes",
		"--set", "sandboxes.tolerations[0].key=only", "--set", "sandboxes.tolerations[0].effect=NoExecute", "--set", "sandboxes.tolerations[0].tolerationSeconds=60",
		"--set", "sandboxes.tolerations[1].operator=Exists",
		"--set", "networkPolicy.denied={203.0.113.0/24,2001:db8::/32}", "--set", "networkPolicy.egress[0].to[0].ipBlock.cidr=192.0.2.7/32",
		"--set", "networkPolicy.ingress[0].from[0].namespaceSelector.matchLabels.a=b",
		"--set", "networkPolicy.dns.to[0].ipBlock.cidr=169.254.20.10/32",
		"--set", "gateway.service.type=LoadBalancer", "--set", "gateway.tolerations[0].operator=Exists",
		"--set", "sandboxes.serviceAccount=boxes", "--set", "sandboxes.podLabels.team=a", "--set", "sandboxes.podAnnotations.example\\.com/note=b=c",
		"--set", "sandboxes.hostUsers=false", "--set", "sandboxes.runAsUser=1000", "--set", "sandboxes.requestPercent.cpu=25", "--set", "sandboxes.requestPercent.memory=50",
		"--set-json", `sandboxes.affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}]}}`,
		"--set", "server.auditLog.persistentVolumeClaim.claimName=audit", "--set", "server.serviceAccount.name=mine", "--set", "gateway.serviceAccount.annotations.a=b",
		"--set", "controller.podLabels.team=a", "--set", "controller.hostUsers=false", "--set", "controller.flowSchema=false", "--set", "controller.extraArgs={--log-compress=false}",
		"--set-json", `controller.extraVolumes=[{"name": "scratch", "emptyDir": {}}]`, "--set-json", `controller.extraVolumeMounts=[{"name": "scratch", "mountPath": "/scratch"}]`,
		"--set-json", `server.extraVolumes=[{"name": "scratch", "emptyDir": {}}]`, "--set-json", `server.extraVolumeMounts=[{"name": "scratch", "mountPath": "/scratch"}]`,
		"--set-json", `gateway.extraVolumes=[{"name": "scratch", "emptyDir": {}}]`, "--set-json", `gateway.extraVolumeMounts=[{"name": "scratch", "mountPath": "/scratch"}]`,
		"--set", "server.extraKeys.server.compatibility={opensandbox}", "--set", "server.extraKeys.server.max_connections=500000",
		"--set", "server.extraKeys.kubernetes.provision_timeout=120", "--set", "server.extraKeys.egress.upstream={192.0.2.53:53}",
	},
	"scraped":         scraped,
	"without gateway": {"--set", "gateway.mode=wildcard,gateway.address=*.sandboxes.example.com", "--set", "metrics.service.enabled=true", "--set", "networkPolicy.enabled=false", "--set", "gateway.enabled=false", "--set", "secret.existing=keys-of-mine", "--set", "server.replicas=1", "--set", "server.console=false,server.mcp=false"},
}
