package view

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// tokens are what a sandbox's execd and its sidecar demand. They never change, so all versions of a
// sandbox share one that is read once.
type tokens struct {
	mu             sync.Mutex
	known          bool
	execd, sidecar string
}

// getter is what reading tokens needs of the API server.
type getter interface {
	Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error
}

// held returns the token of execd if it has been read.
func (t *tokens) held() (execd string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.execd, t.known
}

func (t *tokens) read(ctx context.Context, api getter, of *v1alpha1.BatchSandbox) (execd, sidecar string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known {
		return t.execd, t.sidecar, nil
	}
	name := of.Annotations[AnnotationSecret]
	if name == "" {
		return "", "", fmt.Errorf("BatchSandbox %s names no Secret in its annotation %s", of.Name, AnnotationSecret)
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	var object corev1.Secret
	if err := api.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: name}, &object); err != nil {
		return "", "", fmt.Errorf("the tokens of sandbox %s: %w", of.Name, Explain(err))
	}
	// A Secret that is not this sandbox's says nothing about it: who may write a BatchSandbox may
	// not choose which Secret is read.
	if object.Labels[LabelSecret] != of.Name {
		return "", "", fmt.Errorf("the Secret %s is not that of sandbox %s", name, of.Name)
	}
	if len(object.Data[EntryExecdToken]) == 0 {
		return "", "", fmt.Errorf("there is no entry %s in Secret %s", EntryExecdToken, name)
	}
	sidecar = string(object.Data[EntrySidecarToken])
	if claim := of.Spec.Claim; claim != nil && claim.Egress {
		if sidecar, err = sidecarOfPool(ctx, api, of); err != nil {
			return "", "", err
		}
	}
	t.execd, t.sidecar, t.known = string(object.Data[EntryExecdToken]), sidecar, true
	return t.execd, t.sidecar, nil
}

// sidecarOfPool returns the token of the sidecar in the pod that a sandbox has from a Pool.
func sidecarOfPool(ctx context.Context, api getter, of *v1alpha1.BatchSandbox) (string, error) {
	allocation, err := of.Allocation()
	if err != nil {
		return "", err
	}
	if len(allocation.Pods) == 0 || allocation.Pods[0] == "" {
		return "", fmt.Errorf("sandbox %s has no pod", of.Name)
	}
	var object corev1.Secret
	if err := api.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: v1alpha1.SecretExecutors}, &object); err != nil {
		return "", fmt.Errorf("the key of the controller: %w", Explain(err))
	}
	return v1alpha1.SidecarToken(object.Data[v1alpha1.EntryExecutorKey], of.Namespace, allocation.Pods[0]), nil
}
