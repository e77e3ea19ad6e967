package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/server/cluster/view"
)

// A mark is a Secret without contents in the namespace of the sandboxes, where every replica may
// make Secrets. Its annotation says until when it is needed.
const (
	labelMark       = "sandbox.internal/mark"
	annotationUntil = "sandbox.internal/until"
	// markGrace is how much longer a mark stays: the clocks of replicas differ.
	markGrace = 5 * time.Minute
	// markInterval is the pause between two looks for marks that are not needed any more.
	markInterval = 10 * time.Minute
)

// markName is the name of the Secret: what is marked may be anything.
func markName(name string) string {
	digest := sha256.Sum256([]byte(name))
	return "mark-" + hex.EncodeToString(digest[:16])
}

// Mark makes a mark that all replicas see, and reports whether there was none of the name. It
// returns KindUnavailable when the API server does not answer.
func (c *Cluster) Mark(ctx context.Context, name string, until time.Time) (first bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, view.CallTimeout)
	defer cancel()
	immutable := true
	err = c.api.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: markName(name), Namespace: c.Namespace, Labels: map[string]string{view.LabelManagedBy: view.ManagedBy, labelMark: ""},
			Annotations: map[string]string{annotationUntil: until.UTC().Format(time.RFC3339)},
		},
		Immutable: &immutable,
	})
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, view.Explain(err)
}

// Marked reports whether there is a mark of the name. It returns KindUnavailable when the API
// server does not answer.
func (c *Cluster) Marked(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, view.CallTimeout)
	defer cancel()
	var mark metav1.PartialObjectMetadata
	mark.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: markName(name)}, &mark)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, view.Explain(err)
}

// dropMarks removes the marks that are not needed any more, at most once in an interval.
func (c *Cluster) dropMarks(ctx context.Context, last *time.Time) error {
	if time.Since(*last) < markInterval {
		return nil
	}
	*last = time.Now()
	if err := c.dropVersions(ctx); err != nil {
		return err
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := c.api.List(ctx, &list, client.InNamespace(c.Namespace), client.HasLabels{labelMark}); err != nil {
		return err
	}
	for i := range list.Items {
		mark := &list.Items[i]
		until, err := time.Parse(time.RFC3339, mark.Annotations[annotationUntil])
		if err == nil && c.Clock().Before(until.Add(markGrace)) {
			continue
		}
		object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: mark.Name, Namespace: c.Namespace}}
		if err := c.api.Delete(ctx, object, client.Preconditions{UID: &mark.UID}); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
