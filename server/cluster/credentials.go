package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// labelCredentials is on Secrets with the credentials of an image's registry; its value is the sandbox's id.
const labelCredentials = lifecycle.LabelPrefix + "credentials-of"

const (
	// sweepInterval is how often Secrets are looked for that a replica left which died in the middle of a create.
	sweepInterval = 10 * time.Minute
	// creating is how long a create may take; only Secrets that are older than that are looked at.
	creating = 2 * callTimeout
)

func secretName(id string) string { return "sandbox-" + id }

// addCredentials writes the credentials as a Secret that pods pull images with.
func (c *Cluster) addCredentials(ctx context.Context, id string, spec lifecycle.Spec) error {
	config, err := json.Marshal(map[string]any{"auths": map[string]any{
		registryOf(spec.Image): map[string]string{"username": spec.Auth.Username, "password": spec.Auth.Password},
	}})
	if err != nil {
		return fmt.Errorf("encode the registry credentials: %w", err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: secretName(id), Namespace: c.Namespace,
			Labels: map[string]string{labelManagedBy: managedBy, labelCredentials: id},
		},
		Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: config},
	}
	err = c.api.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) { // of a request with the same Idempotency-Key
		return nil
	}
	return explain(err)
}

// registryOf is the host of an image's registry, as the kubelet looks for it.
func registryOf(image string) string {
	host, _, found := strings.Cut(image, "/")
	if !found || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return "https://index.docker.io/v1/"
	}
	return host
}

// ownCredentials makes the Secret go with its sandbox.
func (c *Cluster) ownCredentials(ctx context.Context, b *v1alpha1.BatchSandbox) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{
		*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("BatchSandbox")),
	}}})
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretName(b.Name), Namespace: c.Namespace}}
	return c.api.Patch(ctx, secret, client.RawPatch("application/merge-patch+json", patch))
}

// dropCredentials removes the Secret of a sandbox that does not come into being. The sweep removes what this cannot.
func (c *Cluster) dropCredentials(id string) {
	ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
	defer cancel()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretName(id), Namespace: c.Namespace}}
	if err := c.api.Delete(ctx, secret); client.IgnoreNotFound(err) != nil {
		c.Logger.Warn().Err(err).Str("sandbox_id", id).Msg("the registry credentials of a sandbox that was refused are left for the sweep")
	}
}

// sweep deals with Secrets that a replica left which died in the middle of a create, for as long as the cluster is followed.
func (c *Cluster) sweep() {
	for {
		if err := c.sweepOnce(c.ctx); err != nil && c.ctx.Err() == nil {
			c.Logger.Warn().Err(err).Msg("registry credentials that nobody needs may be left")
		}
		if !sleep(c.ctx, sweepInterval) {
			return
		}
	}
}

func (c *Cluster) sweepOnce(ctx context.Context) error {
	// Metadata alone: the credentials themselves are nobody's business here.
	var secrets metav1.PartialObjectMetadataList
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := c.api.List(ctx, &secrets, client.InNamespace(c.Namespace), client.HasLabels{labelCredentials}); err != nil {
		return err
	}
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		if len(secret.OwnerReferences) > 0 || c.Clock().Sub(secret.CreationTimestamp.Time) < creating {
			continue
		}
		id := secret.Labels[labelCredentials]
		var batch v1alpha1.BatchSandbox
		switch err := c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: id}, &batch); {
		case apierrors.IsNotFound(err):
			c.dropCredentials(id)
		case err != nil:
			return err
		default:
			if err := c.ownCredentials(ctx, &batch); err != nil {
				return err
			}
		}
	}
	return nil
}
