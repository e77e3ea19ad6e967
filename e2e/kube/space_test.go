package kube_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// control runs the controller, for all namespaces, until the end of the test. It works until the test's namespaces are gone.
func control(t *testing.T) {
	t.Helper()
	config, err := access(kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(manage(t, manager.Options{Config: config}))
	t.Cleanup(func() { vanished(t) })
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
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{labelTest: ""}}}
	if err := admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin.Delete(context.Background(), namespace)); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "namespace "+name+" has its service account", func(ctx context.Context) error {
		return admin.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	})
}

// vanished waits until no namespace and no volume of a test is left.
func vanished(t *testing.T) {
	t.Helper()
	eventually(t, "nothing of the test is left", func(ctx context.Context) error {
		for _, list := range []client.ObjectList{&corev1.NamespaceList{}, &corev1.PersistentVolumeList{}} {
			if err := admin.List(ctx, list, client.HasLabels{labelTest}); err != nil {
				return err
			}
			if left := names(list); len(left) > 0 {
				return fmt.Errorf("there are %s", strings.Join(left, ", "))
			}
		}
		return nil
	})
}

// eventually waits for what is nil in the end.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %v it does not hold that %s: %v", patience, what, err)
		case <-time.After(50 * time.Millisecond): // between two looks
		}
	}
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
	out, err := kubernetes.Kubectl(t.Context(), strings.NewReader(stdin), append([]string{"--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// seen makes the go command repeat the result that it remembers when a program has changed that an image is made of.
func seen(programs ...string) {
	for _, name := range programs {
		_, _ = os.Stat("../../bin/" + name)
	}
}

// podsOf returns the names of a Pool's pods.
func podsOf(t *testing.T, namespace, pool string) []string {
	t.Helper()
	var pods corev1.PodList
	if err := admin.List(context.Background(), &pods, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelPool: pool}); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, pod := range pods.Items {
		all = append(all, pod.Name)
	}
	return all
}
