package kube_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/test/cluster"
	"sandbox.internal/test/wait"
)

// control runs the controller of a namespace until the end of the test, as the chart installs it:
// under its service account.
func control(t *testing.T, namespace string) {
	t.Helper()
	config, err := manager.Load(accounts(t, namespace).Controller)
	if err != nil {
		t.Fatal(err)
	}
	stop := manage(t, manager.Options{Config: config, Namespace: namespace})
	t.Cleanup(func() {
		emptied(t, namespace)
		stop()
	})
}

// accounts makes the chart's service accounts in a namespace. No test gives the service, the
// controller or the ingress any other rights.
func accounts(t *testing.T, namespace string) cluster.Accounts {
	t.Helper()
	made, err := kubernetes.Accounts(t.Context(), namespace, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// emptied deletes the BatchSandboxes and Pools of a namespace, and waits until they are gone. It is
// called while the controller runs: when the namespace is deleted the controller's rights go with
// it, in any order.
func emptied(t *testing.T, namespace string) {
	t.Helper()
	for _, kind := range []client.Object{&v1alpha1.BatchSandbox{}, &v1alpha1.Pool{}} {
		if err := admin.DeleteAllOf(wait.Context(t), kind,
			client.InNamespace(namespace)); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
	eventually(t, "namespace "+namespace+" is empty", func(ctx context.Context) error {
		for _, list := range []client.ObjectList{&v1alpha1.BatchSandboxList{},
			&v1alpha1.PoolList{}} {
			if err := admin.List(ctx, list, client.InNamespace(namespace)); err != nil {
				return err
			}
			if left := names(list); len(left) > 0 {
				return fmt.Errorf("there are %s", strings.Join(left, ", "))
			}
		}
		return nil
	})
}

// manage runs a controller until stop is called.
func manage(t *testing.T, options manager.Options) (stop func()) {
	t.Helper()
	m, err := manager.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the controller: %v", err)
		}
	})
}

// space makes a namespace, which is deleted at the end of the test with everything in it.
func space(t *testing.T, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{labelTest: ""}}}
	if err := admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(wait.Context(t), namespace)); err != nil {
			t.Error(err)
		}
		vanished(t, name)
	})
	eventually(t, "namespace "+name+" has its service account", func(ctx context.Context) error {
		return admin.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"},
			&corev1.ServiceAccount{})
	})
}

// vanished waits until a namespace is gone.
func vanished(t *testing.T, name string) {
	t.Helper()
	eventually(t, "namespace "+name+" is gone", func(ctx context.Context) error {
		err := admin.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
		if err == nil {
			err = errors.New("namespace still exists")
		}
		return client.IgnoreNotFound(err)
	})
}

// eventually waits until check returns no error.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx := wait.Context(t)
	wait.Succeeds(t, what, func() error { return check(ctx) })
}

// names returns what is in a list, as kind and name.
func names(list client.ObjectList) []string {
	var all []string
	_ = meta.EachListItem(list, func(object runtime.Object) error {
		item := object.(client.Object)
		all = append(all, fmt.Sprintf("%T %s/%s", item, item.GetNamespace(), item.GetName()))
		return nil
	})
	return all
}

// kubectl runs kubectl in a namespace and returns what it prints.
func kubectl(t *testing.T, namespace, stdin string, args ...string) string {
	t.Helper()
	out, err := kubernetes.Kubectl(t.Context(), strings.NewReader(stdin),
		append([]string{"--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// podsOf returns the names of a Pool's pods.
func podsOf(t *testing.T, namespace, pool string) []string {
	t.Helper()
	var pods corev1.PodList
	if err := admin.List(wait.Context(t), &pods, client.InNamespace(namespace),
		client.MatchingLabels{v1alpha1.LabelPool: pool}); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, pod := range pods.Items {
		all = append(all, pod.Name)
	}
	return all
}
