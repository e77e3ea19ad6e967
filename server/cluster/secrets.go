package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// entryVariable begins the names of the entries with the client's variables, which are numbered.
const entryVariable = "env-"

const (
	// sweepInterval is how often Secrets are looked for that a replica left which was killed in the
	// middle of a create.
	sweepInterval = 10 * time.Minute
	// creating is how long a create may take; only Secrets that were without an owner for longer
	// are looked at.
	creating = 2 * view.CallTimeout
)

// secret is what of a sandbox only those may read who may read Secrets: tokens, the client's
// variables, the registry's credentials. It is filled while the resource is made that names its
// entries, and written before that.
type secret struct {
	name    string
	kind    corev1.SecretType
	entries map[string][]byte
}

// newSecret returns an empty one. Of several requests with the same Idempotency-Key each has a
// Secret of its own, and that of the one that made the sandbox stays.
func newSecret(id string) *secret {
	suffix := lifecycle.NewToken()[:8]
	return &secret{name: "sandbox-" + id + "-" + suffix, kind: corev1.SecretTypeOpaque, entries: make(map[string][]byte)}
}

// add puts a value into an entry.
func (s *secret) add(entry, value string) { s.entries[entry] = []byte(value) }

// variable puts a value into an entry, and returns the variable of a container that has it.
func (s *secret) variable(name, entry, value string) corev1.EnvVar {
	s.add(entry, value)
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: s.name}, Key: entry,
	}}}
}

// reference puts a value into an entry, and returns where it is.
func (s *secret) reference(entry, value string) v1alpha1.SecretKeySelector {
	s.add(entry, value)
	return v1alpha1.SecretKeySelector{Name: s.name, Key: entry}
}

// claimVariable is variable for a claim.
func (s *secret) claimVariable(name, entry, value string) v1alpha1.EnvVar {
	return v1alpha1.EnvVar{Name: name, ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: s.reference(entry, value)}}
}

// addCredentials makes the Secret one that pods pull the image with.
func (s *secret) addCredentials(image string, auth *lifecycle.ImageAuth) error {
	config, err := json.Marshal(map[string]any{"auths": map[string]any{
		registryOf(image): map[string]string{"username": auth.Username, "password": auth.Password},
	}})
	if err != nil {
		return fmt.Errorf("encode the registry credentials: %w", err)
	}
	s.kind, s.entries[corev1.DockerConfigJsonKey] = corev1.SecretTypeDockerConfigJson, config
	return nil
}

// write makes the Secret at the API server.
func (c *Cluster) write(ctx context.Context, id string, s *secret) error {
	immutable := true
	return c.api.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: c.Namespace, Labels: map[string]string{view.LabelManagedBy: view.ManagedBy, view.LabelSecret: id}},
		Type:       s.kind,
		Immutable:  &immutable,
		Data:       s.entries,
	})
}

// registryOf is the host of an image's registry, as the kubelet looks for it.
func registryOf(image string) string {
	host, _, found := strings.Cut(image, "/")
	if !found || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return "https://index.docker.io/v1/"
	}
	return host
}

// own makes a Secret go with its sandbox.
func (c *Cluster) own(ctx context.Context, b *v1alpha1.BatchSandbox, name string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{
		*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("BatchSandbox")),
	}}})
	if err != nil {
		return err
	}
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace}}
	return c.api.Patch(ctx, object, client.RawPatch("application/merge-patch+json", patch))
}

// drop removes the Secret of a sandbox that does not come into being. The sweep removes what this
// cannot.
func (c *Cluster) drop(id, name string, only ...client.DeleteOption) {
	ctx, cancel := context.WithTimeout(c.ctx, view.CallTimeout)
	defer cancel()
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace}}
	if err := c.api.Delete(ctx, object, only...); client.IgnoreNotFound(err) != nil {
		c.Logger.Warn().Err(err).Str("sandbox_id", id).Msg("cannot delete the Secret of a refused sandbox; left to the sweep")
	}
}

// sweep deals with Secrets that a replica left which was killed in the middle of a create, for as
// long as the cluster is followed.
func (c *Cluster) sweep() {
	seen := make(map[types.UID]time.Time)
	var marks time.Time
	for {
		pause := sweepInterval
		young, err := c.sweepOnce(c.ctx, seen)
		if err == nil {
			err = c.dropMarks(c.ctx, &marks)
		}
		if err != nil && c.ctx.Err() == nil {
			c.Logger.Warn().Err(err).Msg("cannot delete Secrets of sandboxes that do not exist")
		}
		if young {
			pause = creating
		}
		if !clock.Sleep(c.ctx, pause) {
			return
		}
	}
}

// sweepOnce also reports whether there are Secrets without an owner that are too young to be
// judged. seen has when each was first seen: the time of its creation is by the API server's clock,
// which may differ from this one's by any time.
func (c *Cluster) sweepOnce(ctx context.Context, seen map[types.UID]time.Time) (young bool, err error) {
	// Metadata alone: what is in the Secrets is not needed here.
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := c.api.List(ctx, &list, client.InNamespace(c.Namespace), client.HasLabels{view.LabelSecret}); err != nil {
		return false, err
	}
	maps.DeleteFunc(seen, func(uid types.UID, _ time.Time) bool {
		return !slices.ContainsFunc(list.Items, func(s metav1.PartialObjectMetadata) bool { return s.UID == uid && len(s.OwnerReferences) == 0 })
	})
	for i := range list.Items {
		found := &list.Items[i]
		if len(found.OwnerReferences) > 0 {
			continue
		}
		if _, known := seen[found.UID]; !known {
			seen[found.UID] = time.Now()
		}
		if time.Since(seen[found.UID]) < creating {
			young = true
			continue
		}
		id := found.Labels[view.LabelSecret]
		var batch v1alpha1.BatchSandbox
		err := c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: id}, &batch)
		switch {
		case apierrors.IsNotFound(err), err == nil && batch.Annotations[view.AnnotationSecret] != found.Name:
			c.drop(id, found.Name, client.Preconditions{UID: &found.UID})
		case err != nil:
			return young, err
		default:
			if err := c.own(ctx, &batch, found.Name); err != nil {
				return young, err
			}
		}
	}
	return young, nil
}
