package images_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder, InUse: func() []string {
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
	wantOnly(t, folder, 0, 0, 0)
	if entries, err := os.ReadDir(filepath.Join(folder, "trash")); err != nil || len(entries) != 0 {
		t.Errorf("the trash has %v, %v", entries, err)
	}
}

// TestKeep: what the service itself needs is not removed, by whatever name, and not when everything
// is.
func TestKeep(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "kept:1", newImage(t, v1.Config{}, randomLayer(t, 100)))
	s := open(t, images.Options{Folder: filepath.Join(t.TempDir(), "images"), Keep: []string{ref}})
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
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})
	id := ensure(t, s, r.push(t, "image:1", newImage(t, v1.Config{}, randomLayer(t, 1000))))
	wait.Until(t, "everything is safe on the disk", s.Safe)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, folder, "images/*.json", "torn")
	s = open(t, images.Options{Folder: folder, InUse: func() []string { return []string{id} }})
	if freed := must(s.Prune(t.Context(), true))(t); freed != 0 {
		t.Errorf("%d bytes were freed", freed)
	}
	wantOnly(t, folder, 1, 0, 0)
}

func TestMaxBytes(t *testing.T) {
	r := newRegistry(t)
	var refs []string
	for i := range 4 {
		refs = append(refs, r.push(t, fmt.Sprintf("image%d:1", i), newImage(t, v1.Config{}, randomLayer(t, 4<<20))))
	}
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder, MaxBytes: 9 << 20})
	loaded, err := s.Load(t.Context(), bytes.NewReader(saved(t, map[string]v1.Image{"loaded:1": newImage(t, v1.Config{}, randomLayer(t, 4<<20))})), nil)
	if err != nil {
		t.Fatal(err)
	}
	// What came from a registry and is not used makes room; what was loaded stays.
	var last string
	for _, ref := range refs[:3] {
		last = ensure(t, s, ref)
	}
	wantOnly(t, folder, 2, 2, 2)
	ensure(t, s, loaded[0].ID)
	_, release, err := s.Hold(last)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Ensure(t.Context(), refs[3], nil, nil)
	wantImageError(t, err, "no room for the image: the images here take")
	release()
	ensure(t, s, refs[3])
	wantOnly(t, folder, 2, 2, 2)
	_, err = s.Load(t.Context(), bytes.NewReader(saved(t, map[string]v1.Image{"huge:1": newImage(t, v1.Config{}, randomLayer(t, 10<<20))})), nil)
	wantImageError(t, err, "larger than images may be")
}

// TestLayersNeedRoomTogether: when several layers of an image exceed the bound at once, what is
// removed for one makes room for all.
func TestLayersNeedRoomTogether(t *testing.T) {
	r := newRegistry(t)
	folder := filepath.Join(t.TempDir(), "images")
	var prunes atomic.Int64
	s := open(t, images.Options{Folder: folder, MaxBytes: 1 << 20, InUse: func() []string {
		if prunes.Add(1) == 1 {
			wait.Within(100*time.Millisecond, func() bool { return prunes.Load() > 1 }) // the other layer needs room too
		} else {
			wait.Within(wait.Patience(), func() bool { return len(entriesOf(t, folder, "layers")) == 0 }) // the first prune has moved everything away
		}
		return nil
	}})
	ensure(t, s, r.push(t, "unused:1", newImage(t, v1.Config{}, randomLayer(t, 900<<10))))
	ensure(t, s, r.push(t, "wanted:1", newImage(t, v1.Config{}, randomLayer(t, 400<<10), randomLayer(t, 400<<10))))
	wantOnly(t, folder, 2, 1, 1)
	if n := prunes.Load(); n != 1 {
		t.Errorf("%d prunes made room, want 1", n)
	}
}

func entriesOf(t testing.TB, folder, name string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(folder, name))
	if err != nil {
		t.Error(err)
	}
	return entries
}

// TestWaitForRoomEnds: what waits for room while another makes some ends with its own context.
func TestWaitForRoomEnds(t *testing.T) {
	r := newRegistry(t)
	folder := filepath.Join(t.TempDir(), "images")
	asked, answered := make(chan struct{}), make(chan struct{})
	ask, answer := sync.OnceFunc(func() { close(asked) }), sync.OnceFunc(func() { close(answered) })
	defer answer()
	s := open(t, images.Options{Folder: folder, MaxBytes: 1 << 20, InUse: func() []string {
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
	<-asked
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
	wait.Until(t, "a layer is being made", func() bool { return len(entriesOf(t, folder, "making")) > 1 })
	cancel()
	for name, ended := range map[string]chan error{"load": loaded, "prune": pruned} {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	answer()
	pruning.Wait()
	wantOnly(t, folder, 0, 0, 0)
}

// TestPruneGoesOn: what a prune has moved to the trash is removed, also when its client goes away
// meanwhile.
func TestPruneGoesOn(t *testing.T) {
	r := newRegistry(t)
	folder := filepath.Join(t.TempDir(), "images")
	ctx, cancel := context.WithCancel(t.Context())
	s := open(t, images.Options{Folder: folder, InUse: func() []string {
		cancel()
		return nil
	}})
	ensure(t, s, r.push(t, "image:1", newImage(t, v1.Config{}, randomLayer(t, 1000))))
	if _, err := s.Prune(ctx, true); !errors.Is(err, context.Canceled) {
		t.Errorf("Prune: %v", err)
	}
	for _, name := range []string{"layers", "trash"} {
		wait.Until(t, name+" is empty", func() bool { return len(entriesOf(t, folder, name)) == 0 })
	}
	wantOnly(t, folder, 0, 0, 0)
}

// TestPruneEndsWithStore: a store that is closed waits for the end of its prune, which leaves the
// rest for the next store.
func TestPruneEndsWithStore(t *testing.T) {
	r := newRegistry(t)
	folder := filepath.Join(t.TempDir(), "images")
	var s *images.Store
	closed := make(chan error, 1)
	s = open(t, images.Options{Folder: folder, InUse: func() []string {
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
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if left := entriesOf(t, folder, "trash"); len(left) != 1 {
		t.Errorf("the trash has %v", left)
	}
	if _, err := s.Prune(t.Context(), true); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Prune of a closed store: %v", err)
	}
	open(t, images.Options{Folder: folder})
	wait.Until(t, "the trash is empty", func() bool { return len(entriesOf(t, folder, "trash")) == 0 })
	wantOnly(t, folder, 0, 0, 0)
}

// TestPruneUnderLoad: pulls, holds and prunes at once never lose an image that is held.
func TestPruneUnderLoad(t *testing.T) {
	r := newRegistry(t)
	base := randomLayer(t, 64<<10)
	var refs []string
	for i := range 6 {
		refs = append(refs, r.push(t, fmt.Sprintf("image%d:1", i), newImage(t, v1.Config{}, base, randomLayer(t, 16<<10))))
	}
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})
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
	wantOnly(t, folder, 0, 0, 0)
}

func TestOpenRefuses(t *testing.T) {
	for _, o := range []images.Options{{Folder: "relative"}, {}, {Folder: "/nowhere", MaxBytes: -1}, {Folder: "/nowhere", Grace: -1},
		{Folder: "/proc/version/images"}} {
		if s, err := images.Open(o); err == nil {
			_ = s.Close()
			t.Errorf("%+v was accepted", o)
		}
	}
}

// TestDamage: a store opens after everything that a crash, or a person, can do to it.
func TestDamage(t *testing.T) {
	r := newRegistry(t)
	image := newImage(t, v1.Config{}, randomLayer(t, 1000))
	ref := r.push(t, "image:1", image)
	id := must(image.ConfigName())(t).String()
	for name, test := range map[string]struct {
		damage func(t *testing.T, folder string)
		image  bool // it is still here
	}{
		"left half made": {func(t *testing.T, folder string) {
			write(t, filepath.Join(folder, "making", "HALF", "tree", "file"), "x")
			write(t, filepath.Join(folder, "making", "record"), "x")
			write(t, filepath.Join(folder, "trash", "OLD", "file"), "x")
		}, true},
		"layer of an earlier boot": {func(t *testing.T, folder string) {
			rewrite(t, folder, "layers/*/layer.json", `{"bytes":1000,"boot":"another"}`)
		}, false},
		"torn layer record":   {func(t *testing.T, folder string) { rewrite(t, folder, "layers/*/layer.json", "") }, false},
		"torn configuration":  {func(t *testing.T, folder string) { rewrite(t, folder, "images/*.json", `{"os":`) }, false},
		"other configuration": {func(t *testing.T, folder string) { rewrite(t, folder, "images/*.json", `{"os":"linux"}`) }, false},
		"torn name":           {func(t *testing.T, folder string) { rewrite(t, folder, "names/*.json", "") }, false},
		"name of another":     {func(t *testing.T, folder string) { rewrite(t, folder, "names/*.json", `{"name":"x","image":"`+id+`"}`) }, false},
		"missing layer": {func(t *testing.T, folder string) {
			if err := os.RemoveAll(filepath.Join(folder, "layers")); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := filepath.Join(t.TempDir(), "images")
			s := open(t, images.Options{Folder: folder})
			ensure(t, s, ref)
			wait.Until(t, "everything is safe on the disk", s.Safe)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			test.damage(t, folder)
			s = open(t, images.Options{Folder: folder})
			found := false
			for _, image := range s.List() {
				found = found || len(image.Names) > 0
			}
			if found != test.image {
				t.Errorf("the image is here: %v, want %v", found, test.image)
			}
			ensure(t, s, ref)
			wantOnly(t, folder, 1, 1, 1)
			wait.Until(t, "the trash is empty", func() bool {
				entries, err := os.ReadDir(filepath.Join(folder, "trash"))
				return err == nil && len(entries) == 0
			})
		})
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rewrite(t testing.TB, folder, pattern, content string) {
	t.Helper()
	matches := must(filepath.Glob(filepath.Join(folder, pattern)))(t)
	if len(matches) == 0 {
		t.Fatalf("no %s", pattern)
	}
	for _, path := range matches {
		write(t, path, content)
	}
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
	folder := t.TempDir()
	armed := program.Failpoints(filepath.Join(folder, "failpoints"))
	const puller = "sandbox.internal/runtime/oci/images/testdata/puller"
	if err := program.BuildWithFailpoints(t.Context(), folder, armed, puller); err != nil {
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
			killed := wait.Command(t, filepath.Join(folder, "puller"), append([]string{place}, refs...)...)
			printed, err := killed.CombinedOutput()
			if left := must(armed.Left(failpoint))(t); left > 0 {
				t.Fatalf("the puller has not come to the failpoint: %v\n%s", err, printed)
			}
			s := open(t, images.Options{Folder: place})
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
