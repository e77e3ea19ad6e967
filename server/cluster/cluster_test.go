package cluster_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

func TestLife(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c, other := s.replica(t), s.replica(t)
	id := create(t, c, sampleSpec()).ID
	// Another replica returns it at once, and lists it soon.
	if got, err := other.Get(t.Context(), id); err != nil || got.ID != id {
		t.Fatalf("the other replica: %+v, %v", got, err)
	}
	refuses(t, c.Pause(t.Context(), id), lifecycle.KindConflict, "Pending", "Running")
	waited := make(chan error, 1)
	go func() {
		_, err := other.Locate(t.Context(), id, 80)
		waited <- err
	}()
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	must(t, wait.For(t, "the answer", waited))
	sandbox := awaitState(t, c, id, lifecycle.StateRunning)
	if _, ok := sandbox.Reached(lifecycle.StageReady); !ok || sandbox.Status.Reason != lifecycle.ReasonContainerRunning {
		t.Errorf("running, it is %+v", sandbox)
	}
	location, err := c.Locate(t.Context(), id, 8000)
	endpoint := location.Endpoint
	if must(t, err); endpoint.Host != "192.0.2.7" || endpoint.Port != 44772 || endpoint.Path != "/proxy/8000" {
		t.Errorf("the endpoint is %+v", endpoint)
	}
	if location.Daemon != "192.0.2.7:44772" || location.Token == "" || location.Token != endpoint.Headers["X-EXECD-ACCESS-TOKEN"] {
		t.Errorf("reached at %q with %q", location.Daemon, location.Token)
	}
	refuses(t, c.Resume(t.Context(), id), lifecycle.KindConflict, "Running", "Paused")

	awaitState(t, other, id, lifecycle.StateRunning)
	must(t, other.Pause(t.Context(), id))
	if got, _ := other.Get(t.Context(), id); got.Status.State != lifecycle.StatePausing || !s.batch(t, id).Spec.Pause {
		t.Errorf("after the pause it is %+v", got.Status)
	}
	// What the read model drops of a resource, a change does not take away.
	if template := s.batch(t, id).Spec.Template; template == nil || len(template.Spec.Containers) != 1 || template.Spec.Containers[0].Image != sampleSpec().Image {
		t.Errorf("after the pause its pod is %+v", template)
	}
	s.play(t, id, v1alpha1.PhasePaused, v1alpha1.ReasonUserPause, "frozen")
	awaitState(t, c, id, lifecycle.StatePaused)
	must(t, c.Resume(t.Context(), id))
	if got, _ := c.Get(t.Context(), id); got.Status.State != lifecycle.StateResuming {
		t.Errorf("after the resume it is %+v", got.Status)
	}
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonUserResume, "thawed")
	awaitState(t, c, id, lifecycle.StateRunning)

	// The expiry keeps its fraction of a second, and the resource never ends before it.
	later := time.Now().Add(3 * time.Hour).UTC()
	got, err := c.Renew(t.Context(), id, later)
	if must(t, err); !got.Equal(later) || s.batch(t, id).Spec.ExpireTime.Time.Before(later) {
		t.Errorf("renewed to %v, the resource says %v", got, s.batch(t, id).Spec.ExpireTime)
	}
	if now, _ := c.Get(t.Context(), id); !now.ExpiresAt.Equal(later) {
		t.Errorf("the expiry is %v", now.ExpiresAt)
	}
	_, err = c.Renew(t.Context(), id, later.Add(-time.Minute))
	refuses(t, err, lifecycle.KindInvalid, "later than the current expiry")

	blue := "blue"
	merged, err := c.UpdateMetadata(t.Context(), id, map[string]*string{"team": &blue, "schlüssel": nil})
	if must(t, err); !maps.Equal(merged, map[string]string{"team": "blue"}) {
		t.Errorf("the metadata is %v", merged)
	}
	// The other replica changes what it has not seen yet, and nothing is lost.
	merged, err = other.UpdateMetadata(t.Context(), id, map[string]*string{"more": &blue})
	if must(t, err); !maps.Equal(merged, map[string]string{"team": "blue", "more": "blue"}) {
		t.Errorf("the metadata is %v", merged)
	}

	must(t, other.Delete(t.Context(), id))
	if got, _ := other.Get(t.Context(), id); got.Status.State != lifecycle.StateStopping || got.Status.Reason != lifecycle.ReasonUserDelete {
		t.Errorf("after the delete it is %+v", got.Status)
	}
	must(t, c.Delete(t.Context(), id)) // no error, wherever it is asked
	s.play(t, id, v1alpha1.PhaseTerminated, v1alpha1.ReasonUserDelete, "removed")
	settled, err := c.AwaitStable(t.Context(), id, wait.Patience())
	if must(t, err); settled.Status.State != lifecycle.StateTerminated {
		t.Errorf("settled, it is %+v", settled.Status)
	}
	refuses(t, c.Delete(t.Context(), id), lifecycle.KindConflict, "Terminated")
	refuses(t, c.Logs(t.Context(), id, lifecycle.LogOptions{}, nil), lifecycle.KindConflict, "lost")
	_, err = c.Locate(t.Context(), id, 80)
	refuses(t, err, lifecycle.KindConflict, "Terminated")
	s.remove(t, id) // its retention is over
	wait.Until(t, "it is forgotten", func() bool {
		_, err := c.Get(t.Context(), id)
		var known *lifecycle.Error
		return errors.As(err, &known) && known.Kind == lifecycle.KindNotFound
	})
}

func TestIdempotencyKeysAtTwoReplicas(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	replicas := []*cluster.Cluster{s.replica(t), s.replica(t)}
	spec := sampleSpec()
	spec.Auth = &lifecycle.ImageAuth{Username: "a", Password: "b"}
	ids := make([]string, 8)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			sandbox, err := replicas[i%2].Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "k"})
			if err != nil {
				t.Error(err)
			}
			ids[i] = sandbox.ID
		})
	}
	all.Wait()
	if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
		t.Errorf("one key made %q", ids)
	}
	spec.Timeout += time.Second
	_, err := replicas[0].Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "alice", IdempotencyKey: "k"})
	refuses(t, err, lifecycle.KindConflict, "Idempotency-Key", "another request body")
	again, err := replicas[0].Create(t.Context(), spec, lifecycle.CreateOptions{Owner: "bob", IdempotencyKey: "k"})
	if must(t, err); again.ID == ids[0] {
		t.Error("two owners share a key")
	}
}

// TestCreateOutlivesItsRequest: a client that leaves while its sandbox is written leaves no Secret
// without a sandbox.
func TestCreateOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ctx, leave := context.WithCancel(t.Context())
	created, err := s.replica(t).Create(ctx, sampleSpec(), lifecycle.CreateOptions{
		Took: func(stage string, _ time.Duration) {
			if stage == "validate" { // next it is written
				leave()
			}
		},
	})
	must(t, err)
	b := s.batch(t, created.ID)
	var secret corev1.Secret
	must(t, s.api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: b.Annotations[view.AnnotationSecret]}, &secret))
	if !metav1.IsControlledBy(&secret, b) {
		t.Errorf("the Secret belongs to %v", secret.OwnerReferences)
	}
}

func TestListing(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.replica(t)
	var ids []string
	for range 5 {
		ids = append([]string{create(t, c, sampleSpec()).ID}, ids...)
	}
	// A batch that was applied by another client is no sandbox of the service.
	must(t, s.api.Create(t.Context(), &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "by-hand"},
		Spec: v1alpha1.BatchSandboxSpec{Template: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}}}))
	listing, err := c.List(t.Context(), lifecycle.Filter{}, lifecycle.Page{Number: 2, Size: 2})
	must(t, err)
	if listing.Total != 5 || len(listing.Items) != 2 || listing.Items[0].ID != ids[2] || listing.Items[1].ID != ids[3] {
		t.Errorf("page 2 of %q is %+v", ids, listing)
	}
	fresh := s.replica(t) // it lists what was there before it
	owner := "bob"
	for name, tc := range map[string]struct {
		filter lifecycle.Filter
		want   int
	}{
		"all": {lifecycle.Filter{}, 5}, "metadata": {lifecycle.Filter{Metadata: map[string]string{"team": "red"}}, 5},
		"other metadata": {lifecycle.Filter{Metadata: map[string]string{"team": "blue"}}, 0},
		"state":          {lifecycle.Filter{States: []lifecycle.State{lifecycle.StateRunning}}, 0}, "owner": {lifecycle.Filter{Owner: &owner}, 0},
	} {
		if got, err := fresh.List(t.Context(), tc.filter, lifecycle.Page{Number: 1, Size: 1}); err != nil || got.Total != tc.want {
			t.Errorf("%s: %d, %v, want %d", name, got.Total, err, tc.want)
		}
	}
	if count := fresh.Count(); count[lifecycle.StatePending] != 5 {
		t.Errorf("counted are %v", count)
	}
}
