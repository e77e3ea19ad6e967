package images_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

func TestSharedLayers(t *testing.T) {
	r := newRegistry(t)
	base := randomLayer(t, 1<<20)
	var refs []string
	for i := range 4 {
		refs = append(refs, r.push(t, fmt.Sprintf("child%d:1", i), newImage(t, v1.Config{}, base, randomLayer(t, 100))))
	}
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	var group sync.WaitGroup
	for _, ref := range refs {
		group.Go(func() { ensure(t, s, ref) })
	}
	group.Wait()
	if n := r.fetches(must(base.Digest())(t)); n != 1 {
		t.Errorf("the shared layer was fetched %d times", n)
	}
	wantOnly(t, directory, 5, 4, 4)
	if n := len(s.List()); n != 4 {
		t.Errorf("List: %d images", n)
	}
}

// TestSameLayerTwice: overlayfs mounts no directory twice; the upper of the two counts.
func TestSameLayerTwice(t *testing.T) {
	r := newRegistry(t)
	twice, between := randomLayer(t, 100), randomLayer(t, 200)
	s := open(t, images.Options{})
	image := hold(t, s, ensure(t, s, r.push(t, "twice:1", newImage(t, v1.Config{}, twice, between, twice))))
	upper := strings.TrimPrefix(must(twice.DiffID())(t).String(), "sha256:")
	if len(image.Layers) != 2 || !strings.Contains(image.Layers[1], upper) {
		t.Errorf("layers %v", image.Layers)
	}
}

func TestEnsureTogether(t *testing.T) {
	r := newRegistry(t)
	layer := randomLayer(t, 1000)
	ref := r.push(t, "together:1", newImage(t, v1.Config{}, layer))
	s := open(t, images.Options{})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := s.Ensure(t.Context(), ref, nil, func(string) {}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := r.fetches(must(layer.Digest())(t)); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
}

// holdBack keeps a blob back until release is called; asked closes when it was asked for.
func (r *testRegistry) holdBack(t *testing.T, digest v1.Hash) (asked <-chan struct{}, release func()) {
	t.Helper()
	wanted, held := make(chan struct{}), make(chan struct{})
	announce := sync.OnceFunc(func() { close(wanted) })
	before := r.before
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if before != nil && before(w, req) {
			return true
		}
		if path.Base(req.URL.Path) == digest.String() {
			announce()
			select {
			case <-held:
			case <-req.Context().Done():
			}
		}
		return false
	})
	release = sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	return wanted, release
}

func TestLeaver(t *testing.T) {
	r := newRegistry(t)
	layer := randomLayer(t, 1000)
	digest := must(layer.Digest())(t)
	ref := r.push(t, "leaver:1", newImage(t, v1.Config{}, layer))
	s := open(t, images.Options{})
	asked, release := r.holdBack(t, digest)

	ctx, leave := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := s.Ensure(ctx, ref, nil, nil); first <- err }()
	wait.For(t, "the request of the layer", asked)
	joined := make(chan struct{})
	announce := sync.OnceFunc(func() { close(joined) })
	go func() { _, err := s.Ensure(t.Context(), ref, nil, func(string) { announce() }); second <- err }()
	wait.For(t, "the second pull", joined)
	leave()
	if err := wait.For(t, "the end of the first pull", first); !errors.Is(err, context.Canceled) {
		t.Errorf("the one who left got %v", err)
	}
	release()
	if err := wait.For(t, "the end of the second pull", second); err != nil {
		t.Errorf("the one who stayed got %v", err)
	}
	if n := r.fetches(digest); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
}

// TestAllLeave: without callers the pull ends, and leaves nothing; the next one starts a new pull.
func TestAllLeave(t *testing.T) {
	r := newRegistry(t)
	layer := randomLayer(t, 1000)
	ref := r.push(t, "all-leave:1", newImage(t, v1.Config{}, layer))
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	asked, release := r.holdBack(t, must(layer.Digest())(t))
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := s.Ensure(ctx, ref, nil, nil); first <- err }()
	wait.For(t, "the request of the layer", asked)
	leave()
	if err := wait.For(t, "the end of the pull", first); !errors.Is(err, context.Canceled) {
		t.Errorf("the one who left got %v", err)
	}
	wantOnly(t, directory, 0, 0, 0)
	release()
	ensure(t, s, ref)
}

// TestLayerOfLeaver: another image waits for a layer that a pull gets which is given up.
func TestLayerOfLeaver(t *testing.T) {
	r := newRegistry(t)
	base := randomLayer(t, 1000)
	refs := []string{r.push(t, "one:1", newImage(t, v1.Config{}, base)), r.push(t, "two:1", newImage(t, v1.Config{User: "2"}, base))}
	s := open(t, images.Options{})
	asked, release := r.holdBack(t, must(base.Digest())(t))
	ctx, leave := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := s.Ensure(ctx, refs[0], nil, nil); first <- err }()
	wait.For(t, "the request of the layer", asked)
	waits := make(chan struct{})
	announce := sync.OnceFunc(func() { close(waits) })
	go func() {
		_, err := s.Ensure(t.Context(), refs[1], nil, func(sentence string) {
			if strings.HasPrefix(sentence, "pulling") {
				announce()
			}
		})
		second <- err
	}()
	wait.For(t, "the second pull", waits)
	leave()
	wait.For(t, "the end of the first pull", first)
	release()
	if err := wait.For(t, "the end of the second pull", second); err != nil {
		t.Errorf("the one who stayed got %v", err)
	}
}

// TestLayerOfSlowRegistry: a registry that holds a layer back does not keep another one from
// delivering the same; one copy of it stays.
func TestLayerOfSlowRegistry(t *testing.T) {
	slow, other := newRegistry(t), newRegistry(t)
	layer := randomLayer(t, 100_000)
	image := newImage(t, v1.Config{}, layer)
	slowRef, otherRef := slow.push(t, "slow:1", image), other.push(t, "other:1", image)
	asked, release := slow.holdBack(t, must(layer.Digest())(t))
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	first := make(chan error, 1)
	go func() { _, err := s.Ensure(t.Context(), slowRef, nil, nil); first <- err }()
	wait.For(t, "the request of the layer", asked)
	soon, stop := context.WithTimeout(t.Context(), wait.Patience())
	defer stop()
	if _, err := s.Ensure(soon, otherRef, nil, nil); err != nil {
		t.Errorf("the other registry's image: %v", err)
	}
	counted := s.Counted()
	release()
	if err := wait.For(t, "the end of the slow pull", first); err != nil {
		t.Errorf("the slow registry's image: %v", err)
	}
	if after := s.Counted(); after != counted {
		t.Errorf("%d bytes are counted, and %d before the second copy", after, counted)
	}
	wantOnly(t, directory, 1, 1, 2)
	must(s.Prune(t.Context(), true))(t)
	wantOnly(t, directory, 0, 0, 0)
	if left := s.Counted(); left != 0 {
		t.Errorf("%d bytes are counted of nothing", left)
	}
}

// TestCloseEndsPulls: Close does not wait for registries.
func TestCloseEndsPulls(t *testing.T) {
	r := newRegistry(t)
	layer := randomLayer(t, 1000)
	ref := r.push(t, "closed:1", newImage(t, v1.Config{}, layer))
	s := open(t, images.Options{})
	asked, _ := r.holdBack(t, must(layer.Digest())(t))
	done := make(chan error, 1)
	go func() { _, err := s.Ensure(t.Context(), ref, nil, nil); done <- err }()
	wait.For(t, "the request of the layer", asked)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := wait.For(t, "the end of the pull", done); !errors.Is(err, context.Canceled) {
		t.Errorf("Ensure: %v", err)
	}
	if _, err := s.Ensure(t.Context(), ref, nil, nil); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Ensure after Close: %v", err)
	}
	if _, err := s.Load(t.Context(), io.MultiReader(), nil); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Load after Close: %v", err)
	}
}
