package images_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

func TestMaxBytes(t *testing.T) {
	r := newRegistry(t)
	var refs []string
	for i := range 4 {
		refs = append(refs, r.push(t, fmt.Sprintf("image%d:1", i), newImage(t, v1.Config{}, randomLayer(t, 4<<20))))
	}
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory, MaxBytes: 9 << 20})
	loaded, err := s.Load(t.Context(), bytes.NewReader(saved(t, map[string]v1.Image{"loaded:1": newImage(t, v1.Config{}, randomLayer(t, 4<<20))})), nil)
	if err != nil {
		t.Fatal(err)
	}
	// What came from a registry and is not used makes room; what was loaded stays.
	var last string
	for _, ref := range refs[:3] {
		last = ensure(t, s, ref)
	}
	wantOnly(t, directory, 2, 2, 2)
	ensure(t, s, loaded[0].ID)
	_, release, err := s.Hold(last)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Ensure(t.Context(), refs[3], nil, nil)
	wantImageError(t, err, "no room for the image: the images here take")
	release()
	ensure(t, s, refs[3])
	wantOnly(t, directory, 2, 2, 2)
	_, err = s.Load(t.Context(), bytes.NewReader(saved(t, map[string]v1.Image{"huge:1": newImage(t, v1.Config{}, randomLayer(t, 10<<20))})), nil)
	wantImageError(t, err, "larger than images may be")
}

// TestLayersNeedRoomTogether: when several layers of an image exceed the bound at once, what is
// removed for one makes room for all.
func TestLayersNeedRoomTogether(t *testing.T) {
	r := newRegistry(t)
	directory := filepath.Join(t.TempDir(), "images")
	var prunes atomic.Int64
	s := open(t, images.Options{Directory: directory, MaxBytes: 1 << 20, InUse: func() []string {
		if prunes.Add(1) == 1 {
			wait.Within(100*time.Millisecond, func() bool { return prunes.Load() > 1 }) // the other layer needs room too
		} else {
			wait.Within(wait.Patience(), func() bool { return len(entriesOf(t, directory, "layers")) == 0 }) // the first prune has moved everything away
		}
		return nil
	}})
	ensure(t, s, r.push(t, "unused:1", newImage(t, v1.Config{}, randomLayer(t, 900<<10))))
	ensure(t, s, r.push(t, "wanted:1", newImage(t, v1.Config{}, randomLayer(t, 400<<10), randomLayer(t, 400<<10))))
	wantOnly(t, directory, 2, 1, 1)
	if n := prunes.Load(); n != 1 {
		t.Errorf("%d prunes made room, want 1", n)
	}
}

func entriesOf(t testing.TB, directory, name string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(directory, name))
	if err != nil {
		t.Error(err)
	}
	return entries
}

// TestWaitForRoomEnds: what waits for room while another makes some ends with its own context.
func TestWaitForRoomEnds(t *testing.T) {
	r := newRegistry(t)
	directory := filepath.Join(t.TempDir(), "images")
	asked, answered := make(chan struct{}), make(chan struct{})
	ask, answer := sync.OnceFunc(func() { close(asked) }), sync.OnceFunc(func() { close(answered) })
	defer answer()
	s := open(t, images.Options{Directory: directory, MaxBytes: 1 << 20, InUse: func() []string {
		ask()
		<-answered
		return nil
	}})
	ensure(t, s, r.push(t, "unused:1", newImage(t, v1.Config{}, randomLayer(t, 900<<10))))
	var pruning sync.WaitGroup
	pruning.Go(func() {
		if _, err := s.Prune(t.Context(), true); err != nil {
			t.Error(err)
		}
	})
	wait.For(t, "the question of the prune", asked)
	archive := saved(t, map[string]v1.Image{"wanted:1": newImage(t, v1.Config{}, randomLayer(t, 400<<10))})
	ctx, cancel := context.WithCancel(t.Context())
	loaded, pruned := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Load(ctx, bytes.NewReader(archive), nil)
		loaded <- err
	}()
	go func() {
		_, err := s.Prune(ctx, true)
		pruned <- err
	}()
	wait.Until(t, "a layer is being made", func() bool { return len(entriesOf(t, directory, "making")) > 1 })
	cancel()
	for name, ended := range map[string]chan error{"load": loaded, "prune": pruned} {
		if err := wait.For(t, "the end of the operation", ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	answer()
	pruning.Wait()
	wantOnly(t, directory, 0, 0, 0)
}
