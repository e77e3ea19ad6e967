package images_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

func TestPrune(t *testing.T) {
	r := newRegistry(t)
	base := randomLayer(t, 1<<20)
	kept := r.push(t, "kept:1", newImage(t, v1.Config{}, base, randomLayer(t, 100)))
	gone := r.push(t, "gone:1", newImage(t, v1.Config{}, base, randomLayer(t, 300<<10)))
	var mu sync.Mutex
	var using []string
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory, InUse: func() []string {
		mu.Lock()
		defer mu.Unlock()
		return using
	}})
	keptID, goneID := ensure(t, s, kept), ensure(t, s, gone)
	prune := func(all bool) int64 {
		t.Helper()
		return must(s.Prune(t.Context(), all))(t)
	}
	if freed := prune(false); freed != 0 {
		t.Errorf("%d bytes of named images were freed", freed)
	}
	if err := s.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(gone); !errors.Is(err, engine.ErrImage) {
		t.Errorf("a name was removed twice: %v", err)
	}
	_, release, err := s.Hold(goneID)
	if err != nil {
		t.Fatal(err)
	}
	if freed := prune(true); freed <= 0 || freed > 100<<10 { // what the image with a name has alone
		t.Errorf("all freed %d bytes", freed)
	}
	if _, err := s.Ensure(t.Context(), goneID, nil, nil); err != nil {
		t.Errorf("an image that is held was removed: %v", err)
	}
	if _, err := s.Ensure(t.Context(), keptID, nil, nil); !errors.Is(err, engine.ErrImage) {
		t.Errorf("all did not remove the image with a name: %v", err)
	}
	release()
	mu.Lock()
	using = []string{goneID}
	mu.Unlock()
	if freed := prune(true); freed != 0 {
		t.Errorf("%d bytes of an image in use were freed", freed)
	}
	mu.Lock()
	using = nil
	mu.Unlock()
	if freed := prune(false); freed < 1<<20 || freed > 3<<20 {
		t.Errorf("%d bytes were freed", freed)
	}
	wantOnly(t, directory, 0, 0, 0)
	if entries, err := os.ReadDir(filepath.Join(directory, "trash")); err != nil || len(entries) != 0 {
		t.Errorf("the trash has %v, %v", entries, err)
	}
}

// TestKeep: what the service itself needs is not removed, by whatever name, and not when everything
// is.
func TestKeep(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "kept:1", newImage(t, v1.Config{}, randomLayer(t, 100)))
	s := open(t, images.Options{Directory: filepath.Join(t.TempDir(), "images"), Keep: []string{ref}})
	id := ensure(t, s, ref)
	for _, name := range []string{ref, id} {
		if err := s.Remove(name); !errors.Is(err, engine.ErrImageInUse) || !strings.Contains(err.Error(), ref) {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	if freed := must(s.Prune(t.Context(), true))(t); freed != 0 {
		t.Errorf("%d bytes were freed", freed)
	}
	if again := ensure(t, s, ref); again != id {
		t.Errorf("the image is %s and was %s", again, id)
	}
}

func TestPruneWaits(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "young:1", newImage(t, v1.Config{}, randomLayer(t, 1000)))
	s := open(t, images.Options{Grace: time.Hour})
	id := ensure(t, s, ref)
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if freed := must(s.Prune(t.Context(), true))(t); freed != 0 {
		t.Errorf("%d bytes were freed within the time of grace", freed)
	}
	if got := ensure(t, s, id); got != id {
		t.Errorf("id %s", got)
	}
}

// TestPruneKeepsUnknown: a container of an image whose record is lost still runs on its layers.
func TestPruneKeepsUnknown(t *testing.T) {
	r := newRegistry(t)
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	id := ensure(t, s, r.push(t, "image:1", newImage(t, v1.Config{}, randomLayer(t, 1000))))
	wait.Until(t, "everything is safe on the disk", s.Safe)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, directory, "images/*.json", "torn")
	s = open(t, images.Options{Directory: directory, InUse: func() []string { return []string{id} }})
	if freed := must(s.Prune(t.Context(), true))(t); freed != 0 {
		t.Errorf("%d bytes were freed", freed)
	}
	wantOnly(t, directory, 1, 0, 0)
}

// TestPruneGoesOn: what a prune has moved to the trash is removed, also when its client goes away
// meanwhile.
func TestPruneGoesOn(t *testing.T) {
	r := newRegistry(t)
	directory := filepath.Join(t.TempDir(), "images")
	ctx, cancel := context.WithCancel(t.Context())
	s := open(t, images.Options{Directory: directory, InUse: func() []string {
		cancel()
		return nil
	}})
	ensure(t, s, r.push(t, "image:1", newImage(t, v1.Config{}, randomLayer(t, 1000))))
	if _, err := s.Prune(ctx, true); !errors.Is(err, context.Canceled) {
		t.Errorf("Prune: %v", err)
	}
	for _, name := range []string{"layers", "trash"} {
		wait.Until(t, name+" is empty", func() bool { return len(entriesOf(t, directory, name)) == 0 })
	}
	wantOnly(t, directory, 0, 0, 0)
}

// TestPruneEndsWithStore: a store that is closed waits for the end of its prune, which leaves the
// rest for the next store.
func TestPruneEndsWithStore(t *testing.T) {
	r := newRegistry(t)
	directory := filepath.Join(t.TempDir(), "images")
	var s *images.Store
	closed := make(chan error, 1)
	s = open(t, images.Options{Directory: directory, InUse: func() []string {
		go func() { closed <- s.Close() }()
		if !wait.Within(wait.Patience(), func() bool {
			_, err := s.Load(t.Context(), strings.NewReader(""), nil)
			return errors.Is(err, engine.ErrUnavailable)
		}) {
			t.Error("the store did not begin to close")
		}
		return nil
	}})
	ensure(t, s, r.push(t, "image:1", newImage(t, v1.Config{}, randomLayer(t, 1000))))
	if _, err := s.Prune(t.Context(), true); !errors.Is(err, context.Canceled) {
		t.Errorf("Prune: %v", err)
	}
	if err := wait.For(t, "the end of the store", closed); err != nil {
		t.Error(err)
	}
	if left := entriesOf(t, directory, "trash"); len(left) != 1 {
		t.Errorf("the trash has %v", left)
	}
	if _, err := s.Prune(t.Context(), true); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Prune of a closed store: %v", err)
	}
	open(t, images.Options{Directory: directory})
	wait.Until(t, "the trash is empty", func() bool { return len(entriesOf(t, directory, "trash")) == 0 })
	wantOnly(t, directory, 0, 0, 0)
}

// TestPruneUnderLoad: pulls, holds and prunes at once never lose an image that is held.
func TestPruneUnderLoad(t *testing.T) {
	r := newRegistry(t)
	base := randomLayer(t, 64<<10)
	var refs []string
	for i := range 6 {
		refs = append(refs, r.push(t, fmt.Sprintf("image%d:1", i), newImage(t, v1.Config{}, base, randomLayer(t, 16<<10))))
	}
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	stop := make(chan struct{})
	var pruning, using sync.WaitGroup
	pruning.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.Prune(t.Context(), true); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for _, ref := range refs {
		using.Go(func() {
			held := 0
			for range 20 {
				id, err := s.Ensure(t.Context(), ref, nil, nil)
				if err != nil {
					t.Error(err)
					return
				}
				image, release, err := s.Hold(id)
				if errors.Is(err, engine.ErrImage) {
					continue // without a time of grace it may go in between
				}
				held++
				for _, layer := range image.Layers {
					if entries, err := os.ReadDir(layer); err != nil || len(entries) == 0 {
						t.Errorf("layer of an image that is held: %v, %v", entries, err)
					}
				}
				release()
			}
			if held == 0 {
				t.Errorf("%s was never held", ref)
			}
		})
	}
	using.Wait()
	close(stop)
	pruning.Wait()
	must(s.Prune(t.Context(), true))(t)
	wantOnly(t, directory, 0, 0, 0)
}

// TestKill: a process that pulls and prunes is killed at each failpoint. The images that are there
// afterwards are complete, and all can be pulled.
func TestKill(t *testing.T) {
	r := newRegistry(t)
	base := randomLayer(t, 1<<20)
	want := map[string]map[string]string{}
	var refs []string
	fresh := open(t, images.Options{})
	for i := range 3 {
		top := randomLayer(t, 200<<10)
		ref := r.push(t, fmt.Sprintf("image%d:1", i), newImage(t, v1.Config{}, base, top, randomLayer(t, 10)))
		refs = append(refs, ref)
		id := ensure(t, fresh, ref)
		want[id] = content(t, hold(t, fresh, id))
	}
	directory := t.TempDir()
	armed := program.Failpoints(filepath.Join(directory, "failpoints"))
	const puller = "sandbox.internal/runtime/oci/images/testdata/puller"
	if err := program.BuildWithFailpoints(t.Context(), directory, armed, puller); err != nil {
		t.Fatal(err)
	}
	for failpoint, complete := range map[string]int{
		images.UnpackedFailpoint:  0,
		images.LayeredFailpoint:   0,
		images.RecordedFailpoint:  1,
		images.ForgottenFailpoint: len(refs) - 1,
		images.TrashedFailpoint:   0,
	} {
		t.Run(failpoint, func(t *testing.T) {
			if err := armed.Arm(failpoint, 1); err != nil {
				t.Fatal(err)
			}
			place := filepath.Join(t.TempDir(), "images")
			killed := wait.Command(t, filepath.Join(directory, "puller"), append([]string{place}, refs...)...)
			printed, err := killed.CombinedOutput()
			if left := must(armed.Left(failpoint))(t); left > 0 {
				t.Fatalf("the puller has not come to the failpoint: %v\n%s", err, printed)
			}
			s := open(t, images.Options{Directory: place})
			found := s.List()
			if len(found) != complete {
				t.Errorf("%d images are there, want %d", len(found), complete)
			}
			for _, image := range found {
				if got := content(t, image); fmt.Sprint(got) != fmt.Sprint(want[image.ID]) {
					t.Errorf("image %s has %v, want %v", image.ID, got, want[image.ID])
				}
			}
			for _, ref := range refs {
				ensure(t, s, ref)
			}
			wantOnly(t, place, 7, 3, 3)
		})
	}
}

// TestRecent counts what a prune leaves for its time of grace alone.
func TestRecent(t *testing.T) {
	r := newRegistry(t)
	var using []string
	unnamed := r.push(t, "unnamed:1", newImage(t, v1.Config{}, randomLayer(t, 1000)))
	named := r.push(t, "named:1", newImage(t, v1.Config{}, randomLayer(t, 1000)))
	kept := r.push(t, "kept:1", newImage(t, v1.Config{}, randomLayer(t, 1000)))
	s := open(t, images.Options{Grace: time.Hour, Keep: []string{kept}, InUse: func() []string { return using }})
	id := ensure(t, s, unnamed)
	ensure(t, s, named)
	ensure(t, s, kept)
	if err := s.Remove(unnamed); err != nil {
		t.Fatal(err)
	}
	if all, some := s.Recent(true), s.Recent(false); all != 2 || some != 1 {
		t.Errorf("%d with all and %d without; want the two that nothing keeps, and the one of them without a name", all, some)
	}
	using = []string{id}
	if all, some := s.Recent(true), s.Recent(false); all != 1 || some != 0 {
		t.Errorf("with one in use: %d with all and %d without", all, some)
	}
}
