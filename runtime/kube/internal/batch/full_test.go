package batch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// large returns a batch that etcd, which takes 1.5 MiB, has room for with 64 KiB of annotations,
// and not with 80.
func (p *place) large(name string) *v1alpha1.BatchSandbox {
	b := p.batch(name, 1)
	b.Spec.ExpireTime = ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))
	b.Spec.TTLSecondsAfterFinished = ptr.To[int32](3600)
	b.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LARGE",
		Value: strings.Repeat("x", 3<<19-80<<10)}}
	b.Finalizers = []string{v1alpha1.Finalizer} // as the service does
	return b
}

// pad makes a batch so large that etcd takes no status more.
func (p *place) pad(name string) {
	p.Helper()
	length, refused := 64<<10, false
	for step := 1 << 13; step >= 32; step /= 2 {
		b := p.has(name, "there", func(*v1alpha1.BatchSandbox) bool { return true })
		b.Annotations = map[string]string{"example.com/x": strings.Repeat("x", length+step)}
		switch err := p.Update(p.Context(), b); {
		case err == nil:
			length += step
		case strings.Contains(err.Error(), "etcdserver: request is too large"):
			refused = true
		default:
			p.Fatal(err)
		}
	}
	if !refused {
		p.Fatal("etcd takes everything")
	}
}

// TestEndWithoutRoomInEtcd: a batch that fills what etcd takes of an object ends when its time is
// up, also where no status fits into it.
func TestEndWithoutRoomInEtcd(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"recorded", "unrecorded"} {
		p.must(p.Create(t.Context(), p.large(name)))
	}
	p.pad("unrecorded")
	p.control(nil, nil)
	p.has("recorded", "running", running(1))
	p.pad("recorded")
	p.eventually(func() error {
		return p.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: "unrecorded-0"},
			new(corev1.Pod))
	})
	for _, name := range []string{"recorded", "unrecorded"} {
		p.change(name, func(b *v1alpha1.BatchSandbox) { // which is no longer than before
			b.Spec.ExpireTime = ptr.To(metav1.NewTime(time.Now().Add(-time.Second)))
		})
		p.eventually(func() error {
			pod := new(corev1.Pod)
			err := p.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: name + "-0"}, pod)
			if apierrors.IsNotFound(err) || pod.Status.Phase == corev1.PodFailed {
				return nil
			}
			return fmt.Errorf("the pod of %s is %s (%v)", name, pod.Status.Phase, err)
		})
	}
	b := p.reaches("recorded", v1alpha1.PhaseTerminated)
	if b.Status.Reason != v1alpha1.ReasonExpired || history(b) != "Stopping Terminated" {
		t.Errorf("history %q, status %+v", history(b), b.Status)
	}
}
