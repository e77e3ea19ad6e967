package helm_test

import (
	"slices"
	"strings"
	"testing"
)

// TestAccountsMayNoMore compares what the accounts may, as the API server reports it, with written
// lists: nothing is missing, and nothing is there that is not needed.
func TestAccountsMayNoMore(t *testing.T) {
	for _, namespace := range []string{"install", "boxes", "elsewhere"} {
		kubectl(t, "", "create", "namespace", namespace)
	}
	helm(t, "install", "sandbox", chart, "--namespace", "install", "--set", "sandboxes.namespace=boxes")
	for account, want := range map[string][]string{
		"sandbox-server": {
			"batchsandboxes.sandbox.internal [get list watch create patch]",
			"batchsandboxes.sandbox.internal/finalizers [update]",
			"persistentvolumeclaims [get]",
			"pods/log [get]",
			"pools.sandbox.internal [get]",
			"secrets [get list create patch delete]",
		},
		"sandbox-controller": {
			"batchsandboxes.sandbox.internal [get list watch patch delete]",
			"batchsandboxes.sandbox.internal/finalizers [update]",
			"batchsandboxes.sandbox.internal/status [patch]",
			"events [create patch]",
			"events.events.k8s.io [create patch]",
			"leases.coordination.k8s.io [get]",
			"pods [get list watch create patch delete]",
			"pods/resize [patch]",
			"pools.sandbox.internal [get list watch patch]",
			"pools.sandbox.internal/finalizers [update]",
			"pools.sandbox.internal/status [patch]",
			"rolebindings.rbac.authorization.k8s.io [sandbox-controller-last] [get patch]",
			"rolebindings.rbac.authorization.k8s.io [sandbox-controller] [get patch]",
			"roles.rbac.authorization.k8s.io [sandbox-controller-last] [get patch]",
			"roles.rbac.authorization.k8s.io [sandbox-controller] [get patch]",
			"secrets [get create]",
		},
		"sandbox-gateway": {"batchsandboxes.sandbox.internal [list watch]", "secrets [get]"},
	} {
		t.Run(account, func(t *testing.T) {
			if got := allowed(t, "install", account, "boxes"); !slices.Equal(got, want) {
				t.Errorf("where sandboxes are it may\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
			}
			var home []string
			if account == "sandbox-controller" {
				home = []string{"leases.coordination.k8s.io [get create update]"}
			}
			if got := allowed(t, "install", account, "install"); !slices.Equal(got, home) {
				t.Errorf("in the release's namespace it may %s, want %s", got, home)
			}
			for _, namespace := range []string{"elsewhere", "kube-system"} {
				if got := allowed(t, "install", account, namespace); len(got) > 0 {
					t.Errorf("in %s it may %s", namespace, got)
				}
			}
		})
	}
}

// allowed returns what an account may in a namespace beyond what every account may, in order:
// resource [verbs], and names where the right is for some only.
func allowed(t *testing.T, home, account, namespace string) []string {
	t.Helper()
	common := rights(t, home, "nobody-in-particular", namespace)
	var found []string
	for _, line := range rights(t, home, account, namespace) {
		if line == "" || slices.Contains(common, line) {
			continue
		}
		// RESOURCE [URLS] [NAMES] [VERBS]
		resource, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		for _, empty := range []string{"[]", "[]"} {
			rest = strings.TrimSpace(strings.TrimPrefix(rest, empty))
		}
		found = append(found, resource+" "+strings.Join(strings.Fields(rest), " "))
	}
	slices.Sort(found)
	return found
}

// rights returns what an account may, a line each, without the padding that depends on the other
// lines.
func rights(t *testing.T, home, account, namespace string) (lines []string) {
	t.Helper()
	listed := kubectl(t, "", "auth", "can-i", "--list", "--no-headers", "--namespace", namespace, "--as", "system:serviceaccount:"+home+":"+account)
	for _, line := range strings.Split(listed, "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}
