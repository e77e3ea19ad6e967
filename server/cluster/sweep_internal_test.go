package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/server/cluster/view"
)

// abandoned is an API server with the Secret of a sandbox that does not exist.
type abandoned struct {
	client.Client
	secret  metav1.PartialObjectMetadata
	deleted []types.UID // that were named
}

func (a *abandoned) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*metav1.PartialObjectMetadataList).Items = []metav1.PartialObjectMetadata{a.secret}
	return nil
}

func (a *abandoned) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, "")
}

func (a *abandoned) Delete(_ context.Context, _ client.Object, options ...client.DeleteOption) error {
	var all client.DeleteOptions
	all.ApplyOptions(options)
	var uid types.UID
	if all.Preconditions != nil && all.Preconditions.UID != nil {
		uid = *all.Preconditions.UID
	}
	a.deleted = append(a.deleted, uid)
	return nil
}

// TestSweepWithoutCommonClock: a Secret may belong to a create that goes on, for as long as a
// create may take since it was seen, whatever the API server's clock says. Only the Secret that was
// seen is removed.
func TestSweepWithoutCommonClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, skew := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
			api := new(abandoned)
			api.secret.UID, api.secret.Labels = "first", map[string]string{view.LabelSecret: "id"}
			c := &Cluster{api: api, ctx: t.Context(), Options: Options{Clock: func() time.Time { return time.Now().Add(skew) }}}
			api.secret.CreationTimestamp = metav1.Now()
			seen := make(map[types.UID]time.Time)
			sweep := func(young bool, deleted int) {
				t.Helper()
				got, err := c.sweepOnce(t.Context(), seen)
				if err != nil || got != young || len(api.deleted) != deleted {
					t.Errorf("%s: young %v, deleted %q, %v", name, got, api.deleted, err)
				}
			}
			sweep(true, 0)
			time.Sleep(creating - time.Second)
			sweep(true, 0)
			api.secret.UID = "second" // another one, of the same name
			time.Sleep(time.Second)
			sweep(true, 0)
			time.Sleep(creating)
			sweep(false, 1)
			if len(api.deleted) == 1 && api.deleted[0] != "second" {
				t.Errorf("deleted is the Secret with the UID %q", api.deleted[0])
			}
		}
	})
}
