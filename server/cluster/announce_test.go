package cluster_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// versionsOf returns the annotations by which replicas know of changes, nil when there are none.
func (s *space) versionsOf(t *testing.T) (secret corev1.Secret, all map[string]string) {
	t.Helper()
	err := s.api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: "sandbox-versions"}, &secret)
	must(t, client.IgnoreNotFound(err))
	all = make(map[string]string)
	for key, value := range secret.Annotations {
		if strings.HasPrefix(key, "version.sandbox.internal/") {
			all[key] = value
		}
	}
	return secret, all
}

// TestAnnouncementsStayFew: a replica has one annotation, however much it changes at once, and what
// replicas that are gone have announced is removed after an hour.
func TestAnnouncementsStayFew(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	one := s.replica(t)
	id := create(t, one, sampleSpec()).ID
	var changes sync.WaitGroup
	for n := range 10 {
		changes.Go(func() {
			mark := fmt.Sprint(n)
			if _, err := one.UpdateMetadata(t.Context(), id, map[string]*string{"team" + mark: &mark}); err != nil {
				t.Error(err)
			}
		})
	}
	changes.Wait()
	secret, all := s.versionsOf(t)
	if len(all) != 1 {
		t.Errorf("the Secret has %v, want one version", all)
	}
	for _, value := range all {
		if version, _, _ := strings.Cut(value, " "); version != s.batch(t, id).ResourceVersion {
			t.Errorf("version %s is announced, the newest is %s", version, s.batch(t, id).ResourceVersion)
		}
	}
	changed := secret.DeepCopy()
	for name, age := range map[string]time.Duration{"gone": 2 * time.Hour, "lives": time.Minute} {
		changed.Annotations["version.sandbox.internal/"+name] = fmt.Sprintf("1 %d", time.Now().Add(-age).Unix())
	}
	changed.Annotations["version.sandbox.internal/foreign"] = "no version at all"
	must(t, s.api.Patch(t.Context(), changed, client.MergeFrom(&secret)))
	other := s.replica(t) // which looks at once
	wait.Until(t, "what changes nothing any more is removed", func() bool {
		_, all = s.versionsOf(t)
		return len(all) == 2 && all["version.sandbox.internal/lives"] != ""
	})
	if listing, err := other.List(t.Context(), lifecycle.Filter{}, lifecycle.Page{Number: 1, Size: 10}); err != nil || len(listing.Items) != 1 {
		t.Errorf("the list has %v, %v", listing.Items, err)
	}
}
