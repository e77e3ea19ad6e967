package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// On PersistentVolumeClaims, as on the named volumes of one machine. The cluster's administrator, who makes the claims, sets them.
const (
	// labelOwner has the name of the API key that may mount the claim. An annotation counts as well: not every name is a label's value.
	labelOwner = lifecycle.LabelPrefix + "owner"
	// labelShared with the value "true" lets every key mount the claim.
	labelShared = lifecycle.LabelPrefix + "shared"
)

// checkClaims refuses claims that the caller may not mount. A missing claim is refused like another key's: its pod would wait for it, and mount
// it as soon as it is made, whoever's it is then.
func (c *Cluster) checkClaims(ctx context.Context, volumes []lifecycle.Volume, options lifecycle.CreateOptions) error {
	if options.Role == lifecycle.RoleAdmin {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, view.CallTimeout)
	defer cancel()
	for i, v := range volumes {
		if v.ClaimName == "" {
			continue
		}
		var claim corev1.PersistentVolumeClaim
		err := c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: v.ClaimName}, &claim)
		if client.IgnoreNotFound(err) != nil {
			return view.Explain(err)
		}
		if apierrors.IsNotFound(err) || !mayMount(&claim, options.Owner) {
			return lifecycle.Forbiddenf("volumes[%d].pvc.claimName: there is no claim %q with the label %s=true, or with this API key's name as the label or annotation %s",
				i, v.ClaimName, labelShared, labelOwner)
		}
	}
	return nil
}

// mayMount reports whether a key that is no administrator's may mount a claim.
func mayMount(claim *corev1.PersistentVolumeClaim, owner string) bool {
	named, ok := claim.Labels[labelOwner]
	if !ok {
		named, ok = claim.Annotations[labelOwner]
	}
	return claim.Labels[labelShared] == "true" || ok && named == owner
}
