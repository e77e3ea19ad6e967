package manager_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/internal/executor"
	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestKeyOutlivesItsSecret: when the Secret with the key for task-executors is deleted, as with its
// namespace, and pods are made again, the next leader has the key that those accept.
func TestKeyOutlivesItsSecret(t *testing.T) {
	const namespace = "keyed"
	kubectl(t, "", "create", "namespace", namespace)
	config, err := manager.Load(theCluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	equipped := func(keys *executor.Keys) string {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: v1alpha1.ContainerTaskExecutor}},
		}}
		if err := keys.Equip(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		return pod.Spec.Containers[0].Env[0].Value
	}
	leader := func() *executor.Keys { return executor.NewKeys(api, api, func() time.Time { return now }) }
	first := leader()
	key := equipped(first)
	kubectl(t, "", "-n", namespace, "delete", "secret", v1alpha1.SecretExecutors)
	now = now.Add(time.Hour)
	if again := equipped(first); again != key {
		t.Errorf("the leader's pods accept %s, and accepted %s", again, key)
	}
	if next := equipped(leader()); next != key {
		t.Errorf("the next leader's pods accept %s, want %s", next, key)
	}
}
