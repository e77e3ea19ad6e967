package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// On PersistentVolumeClaims, as on the named volumes of one machine. The cluster's administrator,
// who makes the claims, sets them.
const (
	// labelOwner has the name of the API key that may mount the claim. An annotation counts as
	// well: not every name is a label's value.
	labelOwner = lifecycle.LabelPrefix + "owner"
	// labelShared with the value "true" lets every key mount the claim.
	labelShared = lifecycle.LabelPrefix + "shared"
)

// checkClaims refuses claims that the caller may not mount. A missing claim is refused like another
// key's: its pod would wait for it, and mount it as soon as it is made, whoever's it is then.
func (c *Cluster) checkClaims(ctx context.Context, volumes []lifecycle.Volume, options lifecycle.CreateOptions) error {
	for i, v := range volumes {
		if v.ClaimName == "" {
			continue
		}
		if allowed, err := c.mayMount(ctx, v.ClaimName, options); err != nil {
			return err
		} else if !allowed {
			return lifecycle.Forbiddenf("volumes[%d].pvc.claimName: there is no claim %q with the label %s=true, or with this API key's name as the label or annotation %s",
				i, v.ClaimName, labelShared, labelOwner)
		}
	}
	return nil
}

// checkPoolClaims is checkClaims for the claims that the pods of a pool mount.
func (c *Cluster) checkPoolClaims(ctx context.Context, pool *v1alpha1.Pool, options lifecycle.CreateOptions) error {
	for _, name := range v1alpha1.Claims(&pool.Spec.Template.Spec) {
		if allowed, err := c.mayMount(ctx, name, options); err != nil {
			return err
		} else if !allowed {
			return lifecycle.Forbiddenf("extensions.poolRef: the pods of Pool %q mount a claim without the label %s=true, and without this API key's name as the label or annotation %s",
				pool.Name, labelShared, labelOwner)
		}
	}
	return nil
}

// mayMount reports whether the caller may mount a claim.
func (c *Cluster) mayMount(ctx context.Context, name string, options lifecycle.CreateOptions) (bool, error) {
	if options.Role == lifecycle.RoleAdmin {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, view.CallTimeout)
	defer cancel()
	var claim corev1.PersistentVolumeClaim
	err := c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, &claim)
	if err != nil {
		return false, view.Explain(client.IgnoreNotFound(err))
	}
	named, ok := claim.Labels[labelOwner]
	if !ok {
		named, ok = claim.Annotations[labelOwner]
	}
	return claim.Labels[labelShared] == "true" || ok && named == options.Owner, nil
}
