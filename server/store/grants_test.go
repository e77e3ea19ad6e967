package store_test

import (
	"slices"
	"testing"

	"sandbox.internal/server/lifecycle"
)

func TestImageGrants(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	alice := lifecycle.ImageGrant{Repository: "registry.test/app", Image: "sha256:1", Key: "alice"}
	everyone := lifecycle.ImageGrant{Repository: "registry.test/app", Image: "sha256:2"}
	change := func(add, remove []lifecycle.ImageGrant) {
		t.Helper()
		if err := s.ChangeImageGrants(t.Context(), add, remove); err != nil {
			t.Fatal(err)
		}
	}
	change([]lifecycle.ImageGrant{alice, everyone}, nil)
	change([]lifecycle.ImageGrant{alice}, []lifecycle.ImageGrant{everyone, everyone})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, dir).ImageGrants(t.Context())
	if err != nil || !slices.Equal(got, []lifecycle.ImageGrant{alice}) {
		t.Errorf("after a restart: %v, %v", got, err)
	}
}
