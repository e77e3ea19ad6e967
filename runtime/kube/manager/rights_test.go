package manager_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/kube/manager"
)

// TestRightsStayForTheLastSandbox: when the objects of a namespace are deleted in any order, as
// those of a namespace that is being deleted, the controller has its rights until it has let the
// last BatchSandbox and Pool go, and leaves nothing.
func TestRightsStayForTheLastSandbox(t *testing.T) {
	const namespace, name = "ending", "sandbox-controller"
	kubectl(t, "", "create", "namespace", namespace)
	options := installed(t, namespace)
	options.Rights = name
	start(t, options)
	rights := []string{"role/" + name, "rolebinding/" + name, "rolebinding/" + name + "-last"}
	finalizers := func() string {
		return kubectl(t, "", append([]string{"-n", namespace, "get", "--ignore-not-found",
			"-o", `jsonpath={.items[*].metadata.finalizers}`}, rights...)...)
	}
	for range 2 { // with sandboxes there are finalizers, without there are none
		apply(t, namespace, "b")
		kubectl(t, fmt.Sprintf(pool, namespace), "apply", "-f", "-")
		eventually(t, func() error {
			if got := finalizers(); strings.Count(got, manager.FinalizerRights) != len(rights) {
				return fmt.Errorf("with a sandbox the finalizers are %s", got)
			}
			return nil
		})
		kubectl(t, "", "-n", namespace, "delete", "bsbx,pool", "--all", "--wait=false")
		eventually(t, func() error {
			kubectl(t, "", "-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0") // no kubelet ends them
			if got := finalizers(); strings.Contains(got, manager.FinalizerRights) {
				return fmt.Errorf("without a sandbox the finalizers are %s", got)
			}
			return nil
		})
	}
	apply(t, namespace, "b")
	kubectl(t, fmt.Sprintf(pool, namespace), "apply", "-f", "-")
	eventually(t, func() error {
		if got := finalizers(); strings.Count(got, manager.FinalizerRights) != len(rights) {
			return fmt.Errorf("with a sandbox the finalizers are %s", got)
		}
		return nil
	})
	kubectl(t, "", append([]string{"-n", namespace, "delete", "--wait=false"}, rights...)...)
	kubectl(t, "", "-n", namespace, "delete", "bsbx,pool", "--all", "--wait=false")
	began := time.Now()
	eventually(t, func() error {
		kubectl(t, "", "-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0")
		left := kubectl(t, "", "-n", namespace, "get", "bsbx,pool,role,rolebinding", "-o", "name")
		for _, object := range append(rights, "batchsandbox", "pool") {
			_, own, _ := strings.Cut(object, "/")
			if strings.Contains(left, "/"+own+"\n") && own != "" || strings.Contains(left, object+".sandbox.internal/") {
				return fmt.Errorf("after %v there are still\n%s", time.Since(began), left)
			}
		}
		return nil
	})
}
