package images_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

var sentences = regexp.MustCompile(`^(resolving \S+|pulling \S+: [0-3] of 3 layers, \d+\.\d of 3\.\d MiB)$`)

func TestPull(t *testing.T) {
	r := newRegistry(t)
	base := newLayer(t, map[string]string{"etc/os": "test", "big": noise(3 << 20)})
	image := newImage(t, v1.Config{
		Env: []string{"A=b"}, Entrypoint: []string{"/bin/a"}, Cmd: []string{"c"}, User: "1:2", WorkingDir: "/srv",
		Labels:  map[string]string{"l": "v"},
		Volumes: map[string]struct{}{"/b": {}, "/a": {}}, ExposedPorts: map[string]struct{}{"80/tcp": {}},
	}, base, randomLayer(t, 1000), newLayer(t, map[string]string{"top": "t"}))
	ref := r.push(t, "public:1", image)
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})

	var reported []string // without a lock: progress is not called after Ensure returned
	id := must(s.Ensure(t.Context(), ref, nil, func(sentence string) { reported = append(reported, sentence) }))(t)
	if want := must(image.ConfigName())(t).String(); id != want {
		t.Errorf("id %s, want %s", id, want)
	}
	if len(reported) == 0 {
		t.Error("no progress")
	}
	for _, sentence := range reported {
		if !sentences.MatchString(sentence) {
			t.Errorf("progress %q", sentence)
		}
	}
	for _, again := range []string{ref, id} {
		if got := ensure(t, s, again); got != id {
			t.Errorf("%s is %s, want %s", again, got, id)
		}
	}
	if n := r.fetches(must(base.Digest())(t)); n != 1 {
		t.Errorf("the layer was fetched %d times", n)
	}
	pulled := hold(t, s, id)
	wantConfig := images.Config{
		Env: []string{"A=b"}, Entrypoint: []string{"/bin/a"}, Cmd: []string{"c"}, User: "1:2", WorkingDir: "/srv",
		Labels: map[string]string{"l": "v"},
	}
	if !reflect.DeepEqual(pulled.Config, wantConfig) {
		t.Errorf("configuration %+v", pulled.Config)
	}
	if !slices.Equal(pulled.Names, []string{ref}) || pulled.Bytes < 3<<20 || pulled.Created.IsZero() || len(pulled.Layers) != 3 {
		t.Errorf("image %+v", pulled)
	}
	if found, err := os.ReadFile(filepath.Join(pulled.Layers[0], "etc/os")); err != nil || string(found) != "test" {
		t.Errorf("the lowest layer has %q, %v", found, err)
	}
	wantOnly(t, folder, 3, 1, 1)

	wait.Until(t, "everything is safe on the disk", s.Safe)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := hold(t, open(t, images.Options{Folder: folder}), id)
	if !reflect.DeepEqual(again, pulled) {
		t.Errorf("after another start %+v, want %+v", again, pulled)
	}
}

// TestPullForms: compressions and media types, an index, and a reference by digest.
func TestPullForms(t *testing.T) {
	r := newRegistry(t)
	archive := files(t, map[string]string{"file": "content"})
	var packed bytes.Buffer
	encoder := must(zstd.NewWriter(&packed))(t)
	_, _ = encoder.Write(archive)
	_ = encoder.Close()
	diffID, _, err := v1.SHA256(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	for name, layer := range map[string]v1.Layer{
		"gzip":  newLayer(t, map[string]string{"file": "content"}),
		"zstd":  static.NewLayer(packed.Bytes(), types.OCILayerZStd),
		"plain": static.NewLayer(archive, types.OCIUncompressedLayer),
		"lying": static.NewLayer(archive, types.DockerLayer), // is not compressed
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := must(mutate.Append(empty.Image, mutate.Addendum{Layer: layer}))(t)
			file := must(image.ConfigFile())(t).DeepCopy()
			file.RootFS.DiffIDs = []v1.Hash{diffID} // static layers do not have theirs
			image = must(mutate.ConfigFile(image, file))(t)
			ref := r.push(t, "form-"+name+":1", image)
			s := open(t, images.Options{})
			byTag := hold(t, s, ensure(t, s, ref))
			if found := content(t, byTag); len(found) != 1 {
				t.Errorf("files %v", found)
			}
			byDigest := r.host + "/form-" + name + "@" + must(image.Digest())(t).String()
			if id := ensure(t, s, byDigest); id != byTag.ID {
				t.Errorf("by digest %s, want %s", id, byTag.ID)
			}
		})
	}
}

func TestPullFromIndex(t *testing.T) {
	r := newRegistry(t)
	native := newImage(t, v1.Config{}, randomLayer(t, 100))
	r.push(t, "many:native", native)
	foreign := newImage(t, v1.Config{}, randomLayer(t, 200))
	r.push(t, "many:foreign", foreign)
	for tag, architecture := range map[string]string{"here": runtime.GOARCH, "elsewhere": "pdp11"} {
		index := mutate.AppendManifests(empty.Index,
			mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "z80"}}},
			mutate.IndexAddendum{Add: native, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
		r.put(t, http.MethodPut, "/v2/many/manifests/"+tag, string(types.OCIImageIndex), must(index.RawManifest())(t))
	}
	s := open(t, images.Options{})
	if id, want := ensure(t, s, r.host+"/many:here"), must(native.ConfigName())(t).String(); id != want {
		t.Errorf("id %s, want %s", id, want)
	}
	_, err := s.Ensure(t.Context(), r.host+"/many:elsewhere", nil, nil)
	wantImageError(t, err, "no image for linux/"+runtime.GOARCH)
}

func TestEnsureRefuses(t *testing.T) {
	r := newRegistry(t)
	r.push(t, "known:1", newImage(t, v1.Config{}))
	s := open(t, images.Options{})
	for name, test := range map[string]struct{ ref, says string }{
		"unknown tag":        {r.host + "/known:2", "MANIFEST_UNKNOWN"},
		"unknown repository": {r.host + "/unknown:1", "unknown"},
		"unreachable host":   {"127.0.0.1:1/image:1", "refused"},
		"unknown host":       {"no-such-host.invalid/image:1", "no-such-host.invalid"},
		"bad reference":      {"Not A Reference", "Not A Reference"},
		"empty reference":    {"", ""},
		"unknown id":         {"sha256:" + strings.Repeat("0", 64), "No such image"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Ensure(t.Context(), test.ref, nil, nil)
			wantImageError(t, err, test.says)
		})
	}
	if _, _, err := s.Hold("sha256:" + strings.Repeat("0", 64)); !errors.Is(err, engine.ErrImage) {
		t.Errorf("Hold: %v", err)
	}
}

// TestWrongContent: nothing of an image whose digests do not agree stays.
func TestWrongContent(t *testing.T) {
	layer := randomLayer(t, 100_000)
	digest := must(layer.Digest())(t)
	blob := compressed(t, layer)
	for name, test := range map[string]struct {
		blob []byte
		says string
	}{
		"other content":    {compressed(t, randomLayer(t, 100_000)), "the layer"},
		"longer":           {append(slices.Clone(blob), "more"...), ""}, // what is beyond the size is not read
		"shorter":          {blob[:len(blob)-1], "download cut"},
		"changed":          {append(slices.Clone(blob[:len(blob)-8]), 0, 0, 0, 0, 0, 0, 0, 0), "gzip"},
		"changed comment":  {append([]byte{blob[0], blob[1], blob[2], blob[3], 1, 2, 3, 4}, blob[8:]...), "digest"}, // time of gzip's header
		"nothing":          {nil, "download cut"},
		"another compress": {bytes.Repeat([]byte{0x28, 0xb5, 0x2f, 0xfd}, len(blob)/4+1), "frame"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t)
			ref := r.push(t, "wrong:1", newImage(t, v1.Config{}, layer))
			r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
				if path.Base(req.URL.Path) != digest.String() {
					return false
				}
				_, _ = w.Write(test.blob)
				return true
			})
			folder := filepath.Join(t.TempDir(), "images")
			s := open(t, images.Options{Folder: folder})
			_, err := s.Ensure(t.Context(), ref, nil, nil)
			if test.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantImageError(t, err, test.says)
			wantOnly(t, folder, 0, 0, 0)
		})
	}
	t.Run("another diff id", func(t *testing.T) {
		r := newRegistry(t)
		image := newImage(t, v1.Config{}, layer)
		file := must(image.ConfigFile())(t).DeepCopy()
		file.RootFS.DiffIDs = []v1.Hash{digest}
		ref := r.push(t, "wrong:1", must(mutate.ConfigFile(image, file))(t))
		folder := filepath.Join(t.TempDir(), "images")
		_, err := open(t, images.Options{Folder: folder}).Ensure(t.Context(), ref, nil, nil)
		wantImageError(t, err, "unpacks to")
		wantOnly(t, folder, 0, 0, 0)
	})
	t.Run("fewer layers than diff ids", func(t *testing.T) {
		r := newRegistry(t)
		image := newImage(t, v1.Config{}, layer)
		file := must(image.ConfigFile())(t).DeepCopy()
		file.RootFS.DiffIDs = append(file.RootFS.DiffIDs, digest)
		ref := r.push(t, "wrong:1", must(mutate.ConfigFile(image, file))(t))
		_, err := open(t, images.Options{}).Ensure(t.Context(), ref, nil, nil)
		wantImageError(t, err, "1 layers, and 2 diff ids")
	})
}

// TestHostileImage: a refused layer is an image error that names the rule, and leaves nothing.
func TestHostileImage(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "hostile:1", newImage(t, v1.Config{}, newLayer(t, map[string]string{"../outside": "x"})))
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})
	_, err := s.Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, `layer refused: the name contains ".."`)
	wantOnly(t, folder, 0, 0, 0)

	bomb := r.push(t, "bomb:1", newImage(t, v1.Config{}, newLayer(t, map[string]string{"zeros": string(make([]byte, 10<<20))})))
	s.Bound(1<<20, 100)
	_, err = s.Ensure(t.Context(), bomb, nil, nil)
	wantImageError(t, err, "more than 1048576 bytes")
	wantOnly(t, folder, 0, 0, 0)
}

// cutting answers GETs of the blob with its next part only, and closes the connection; with ranges
// it honours Range.
func cutting(blob []byte, digest v1.Hash, part int, ranges bool, served *atomic.Int64) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, req *http.Request) bool {
		if path.Base(req.URL.Path) != digest.String() {
			return false
		}
		start := 0
		status := http.StatusOK
		if asked := req.Header.Get("Range"); ranges && asked != "" {
			_, _ = fmt.Sscanf(asked, "bytes=%d-", &start)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(blob)-1, len(blob)))
			status = http.StatusPartialContent
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(blob)-start))
		w.WriteHeader(status)
		next := blob[start:min(start+part, len(blob))]
		served.Add(int64(len(next))) // before the client has them
		if n, _ := w.Write(next); start+n == len(blob) {
			return true
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(err)
		}
		panic(http.ErrAbortHandler)
	}
}

func TestCutDownloadResumes(t *testing.T) {
	layer := randomLayer(t, 6<<20)
	blob, digest := compressed(t, layer), must(layer.Digest())(t)
	for name, test := range map[string]struct {
		part   int
		ranges bool
		says   string
	}{
		"every 2 MiB":               {2 << 20, true, ""},
		"half, without ranges":      {len(blob)/2 + 1, false, "download cut"}, // the same half again and again
		"every 10 bytes":            {10, true, "download cut after"},
		"without ranges, then all":  {len(blob), false, ""},
		"every 1.5 MiB, as it goes": {3 << 19, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t)
			ref := r.push(t, "cut:1", newImage(t, v1.Config{}, layer))
			var served atomic.Int64
			r.intercept(cutting(blob, digest, test.part, test.ranges, &served))
			s := open(t, images.Options{})
			_, err := s.Ensure(t.Context(), ref, nil, nil)
			if test.says != "" {
				wantImageError(t, err, test.says)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if served.Load() != int64(len(blob)) {
				t.Errorf("%d bytes were served of %d", served.Load(), len(blob))
			}
		})
	}
	t.Run("once, without ranges", func(t *testing.T) {
		t.Parallel()
		r := newRegistry(t)
		ref := r.push(t, "cut:1", newImage(t, v1.Config{}, layer))
		var served atomic.Int64
		first := cutting(blob, digest, len(blob)/2, false, &served)
		var once sync.Once
		r.intercept(func(w http.ResponseWriter, req *http.Request) (answered bool) {
			req.Header.Del("Range")
			if path.Base(req.URL.Path) == digest.String() {
				cut := false
				once.Do(func() { cut = true })
				if cut {
					return first(w, req)
				}
			}
			return false
		})
		s := open(t, images.Options{})
		ensure(t, s, ref)
	})
}

// TestNextPullGoesOn: layers that were complete when a pull failed are not fetched again.
func TestNextPullGoesOn(t *testing.T) {
	r := newRegistry(t)
	good, bad := randomLayer(t, 1000), randomLayer(t, 1000)
	goodDigest, badDigest := must(good.Digest())(t), must(bad.Digest())(t)
	ref := r.push(t, "half:1", newImage(t, v1.Config{}, good, bad))
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if path.Base(req.URL.Path) != badDigest.String() {
			return false
		}
		wait.Until(t, "the good layer is complete", func() bool {
			entries, _ := os.ReadDir(filepath.Join(folder, "layers"))
			return len(entries) == 1
		})
		http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"it is gone"}]}`, http.StatusNotFound)
		return true
	})
	_, err := s.Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, "BLOB_UNKNOWN: it is gone")
	r.intercept(nil)
	ensure(t, s, ref)
	if n := r.fetches(goodDigest); n != 1 {
		t.Errorf("the good layer was fetched %d times", n)
	}
}

func TestSharedLayers(t *testing.T) {
	r := newRegistry(t)
	base := randomLayer(t, 1<<20)
	var refs []string
	for i := range 4 {
		refs = append(refs, r.push(t, fmt.Sprintf("child%d:1", i), newImage(t, v1.Config{}, base, randomLayer(t, 100))))
	}
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})
	var group sync.WaitGroup
	for _, ref := range refs {
		group.Go(func() { ensure(t, s, ref) })
	}
	group.Wait()
	if n := r.fetches(must(base.Digest())(t)); n != 1 {
		t.Errorf("the shared layer was fetched %d times", n)
	}
	wantOnly(t, folder, 5, 4, 4)
	if n := len(s.List()); n != 4 {
		t.Errorf("List: %d images", n)
	}
}

// TestSameLayerTwice: overlayfs mounts no folder twice; the upper of the two counts.
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

func TestOpaqueRoot(t *testing.T) {
	r := newRegistry(t)
	s := open(t, images.Options{})
	image := hold(t, s, ensure(t, s, r.push(t, "opaque:1", newImage(t, v1.Config{}, randomLayer(t, 100),
		newLayer(t, map[string]string{".wh..wh..opq": "", "only": "x"}), newLayer(t, map[string]string{"top": "x"})))))
	if found := content(t, image); len(image.Layers) != 2 || len(found) != 2 {
		t.Errorf("layers %v with %v", image.Layers, found)
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
	<-asked
	joined := make(chan struct{})
	announce := sync.OnceFunc(func() { close(joined) })
	go func() { _, err := s.Ensure(t.Context(), ref, nil, func(string) { announce() }); second <- err }()
	<-joined
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the one who left got %v", err)
	}
	release()
	if err := <-second; err != nil {
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
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})
	asked, release := r.holdBack(t, must(layer.Digest())(t))
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := s.Ensure(ctx, ref, nil, nil); first <- err }()
	<-asked
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the one who left got %v", err)
	}
	wantOnly(t, folder, 0, 0, 0)
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
	<-asked
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
	<-waits
	leave()
	<-first
	release()
	if err := <-second; err != nil {
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
	folder := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Folder: folder})
	first := make(chan error, 1)
	go func() { _, err := s.Ensure(t.Context(), slowRef, nil, nil); first <- err }()
	<-asked
	soon, stop := context.WithTimeout(t.Context(), wait.Patience())
	defer stop()
	if _, err := s.Ensure(soon, otherRef, nil, nil); err != nil {
		t.Errorf("the other registry's image: %v", err)
	}
	counted := s.Counted()
	release()
	if err := <-first; err != nil {
		t.Errorf("the slow registry's image: %v", err)
	}
	if after := s.Counted(); after != counted {
		t.Errorf("%d bytes are counted, and %d before the second copy", after, counted)
	}
	wantOnly(t, folder, 1, 1, 2)
	must(s.Prune(t.Context(), true))(t)
	wantOnly(t, folder, 0, 0, 0)
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
	<-asked
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Ensure: %v", err)
	}
	if _, err := s.Ensure(t.Context(), ref, nil, nil); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Ensure after Close: %v", err)
	}
	if _, err := s.Load(t.Context(), io.MultiReader(), nil); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Load after Close: %v", err)
	}
}

// TestConfigWithoutSize: the size that a manifest gives the configuration bounds what is read of
// it.
func TestConfigWithoutSize(t *testing.T) {
	r := newRegistry(t)
	image := newImage(t, v1.Config{})
	ref := r.push(t, "endless:1", image)
	manifest := must(image.Manifest())(t).DeepCopy()
	manifest.Config.Size = -1
	var sent atomic.Int64
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case strings.Contains(req.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", string(manifest.MediaType))
			_ = json.NewEncoder(w).Encode(manifest)
			return true
		case strings.Contains(req.URL.Path, "/blobs/"):
			for sent.Load() < 64<<20 { // without Content-Length
				n, err := w.Write(make([]byte, 1<<20))
				if sent.Add(int64(n)); err != nil {
					break
				}
			}
			return true
		}
		return false
	})
	_, err := open(t, images.Options{}).Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, "the size of the image's configuration is -1")
	if n := sent.Load(); n > 4<<20 {
		t.Errorf("%d bytes of the configuration were read", n)
	}
}

// TestLargeManifest: what a registry sends is bounded where it is read into memory.
func TestLargeManifest(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "large:1", newImage(t, v1.Config{}))
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		_ = json.NewEncoder(w).Encode(strings.Repeat("x", 5<<20))
		return true
	})
	_, err := open(t, images.Options{}).Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, "larger than 1048576 bytes")
}
