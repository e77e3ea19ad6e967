package helm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

var fence = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// blocks returns the code blocks of a page of the documentation in a language, in order.
func blocks(t *testing.T, page, language string) (found []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range fence.FindAllStringSubmatch(string(text), -1) {
		if match[1] == language {
			found = append(found, match[2])
		}
	}
	return found
}

// documentedPool returns the Pool for sandboxes of the API that docs/kubernetes-resources.md shows.
func documentedPool(t *testing.T) string {
	t.Helper()
	for _, block := range blocks(t, "kubernetes-resources.md", "yaml") {
		if strings.Contains(block, "kind: Pool") && strings.Contains(block, "install-execd") {
			return block
		}
	}
	t.Fatal("docs/kubernetes-resources.md shows no Pool for sandboxes of the API")
	return ""
}

var expiry = regexp.MustCompile(`expireTime: "([^"]*)"`)

// TestDocumentedResources has the API server take every resource that the documentation shows, as
// pasted, and holds what the API server does not check: expiries to come, and no pod with a token
// for the API server.
func TestDocumentedResources(t *testing.T) {
	namespaced(t, "sandboxes")
	if err := shared.Define(t.Context(), "../../runtime/kube/config/crd"); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages", err)
	}
	resources := 0
	for _, page := range pages {
		for _, block := range blocks(t, filepath.Base(page), "yaml") {
			if strings.Contains(block, "containers:") && !strings.Contains(block, "automountServiceAccountToken: false") {
				t.Errorf("%s: the pods of this have a token for the API server:\n%s", page, block)
			}
			for _, at := range expiry.FindAllStringSubmatch(block, -1) {
				if when, err := time.Parse(time.RFC3339, at[1]); err != nil || when.Before(time.Now().AddDate(10, 0, 0)) {
					t.Errorf("%s: %s is over, or soon", page, at[0])
				}
			}
			if !strings.HasPrefix(block, "apiVersion:") {
				continue
			}
			resources++
			kubectl(t, block, "-n", "sandboxes", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		}
	}
	if resources != 5 {
		t.Errorf("%d resources are found, not the batch, the one that sleeps, the two Pools and the batch with tasks of docs/kubernetes-resources.md", resources)
	}
}

// namespaced makes a namespace that several tests may use; those of this API server never end.
func namespaced(t *testing.T, name string) {
	t.Helper()
	if _, err := shared.Kubectl(t.Context(), nil, "create", "namespace", name); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		t.Fatal(err)
	}
}

// TestDocumentedUpgrade runs the commands of the documentation that install and upgrade, with the
// values that it shows.
func TestDocumentedUpgrade(t *testing.T) {
	directory := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "deploy"), filepath.Join(directory, "deploy")); err != nil {
		t.Fatal(err)
	}
	var values, install, upgrade string
	for _, block := range blocks(t, "kubernetes.md", "yaml") {
		if strings.HasPrefix(block, "# values.yaml\n") {
			values = strings.Replace(block, "createNamespace: true", "createNamespace: false", 1) // another test may have made it
		}
	}
	for _, block := range slices.Concat(blocks(t, "kubernetes.md", "sh"), blocks(t, "kubernetes-operations.md", "sh")) {
		switch {
		case strings.HasPrefix(block, "helm install"):
			install = block
		case strings.Contains(block, "helm upgrade"):
			upgrade = block
		}
	}
	if values == "" || install == "" || upgrade == "" {
		t.Fatalf("docs/kubernetes.md and kubernetes-operations.md do not show how to install and upgrade: %q %q %q", values, install, upgrade)
	}
	if err := os.WriteFile(filepath.Join(directory, "values.yaml"), []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	namespaced(t, "sandboxes")
	for _, block := range []string{install, upgrade} {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
		defer cancel()
		shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", block)
		shell.Dir = directory
		shell.Env = append(shared.Command(ctx, "kubectl").Env, "PATH="+filepath.Join(shared.Directory, "bin")+":"+os.Getenv("PATH"),
			"HELM_CACHE_HOME="+directory, "HELM_CONFIG_HOME="+directory, "HELM_DATA_HOME="+directory)
		if out, err := shell.CombinedOutput(); err != nil {
			t.Fatalf("%s%v\n%s", block, err, out)
		}
	}
	helm(t, "uninstall", "sandbox", "--namespace", "sandbox-system")
}
