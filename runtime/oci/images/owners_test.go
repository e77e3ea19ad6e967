package images_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

// TestTurnsOfOwners: the registries of one caller, which hold back all layers, do not keep
// another's pull from ending.
func TestTurnsOfOwners(t *testing.T) {
	withoutConfig(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	slow, quick := newRegistry(t), newRegistry(t)
	var mu sync.Mutex
	held := 0
	slow.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || strings.Contains(r.URL.Path, "config") {
			return false
		}
		if _, isConfig := slow.configs.Load(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]); isConfig {
			return false
		}
		mu.Lock()
		held++
		mu.Unlock()
		<-r.Context().Done()
		return true
	})
	var refs []string
	for i := range images.LayersAtOnce {
		image := newImage(t, v1.Config{}, randomLayer(t, 100), randomLayer(t, 100))
		slow.configs.Store(must(image.ConfigName())(t).String(), true)
		refs = append(refs, slow.push(t, fmt.Sprintf("slow/%d:1", i), image))
	}
	ref := quick.push(t, "quick:1", newImage(t, v1.Config{}, randomLayer(t, 100), randomLayer(t, 100)))
	s := open(t, images.Options{Internal: []string{slow.host, quick.host}})
	var pulls sync.WaitGroup
	defer func() { cancel(); pulls.Wait() }()
	alice := engine.WithCaller(ctx, engine.Caller{Name: "alice", Guest: true})
	for _, ref := range refs {
		pulls.Go(func() { _, _ = s.Ensure(alice, ref, nil, nil) })
	}
	wait.Until(t, "she has all turns that she may have of a host", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return held >= images.LayersOfHost*3/4
	})
	if _, err := s.Ensure(engine.WithCaller(ctx, engine.Caller{Name: "bob", Guest: true}), ref, nil, nil); err != nil {
		t.Errorf("another's pull: %v", err)
	}
}
