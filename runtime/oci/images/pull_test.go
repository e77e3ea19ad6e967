package images_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
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
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})

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
	wantOnly(t, directory, 3, 1, 1)

	wait.Until(t, "everything is safe on the disk", s.Safe)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := hold(t, open(t, images.Options{Directory: directory}), id)
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
			directory := filepath.Join(t.TempDir(), "images")
			s := open(t, images.Options{Directory: directory})
			_, err := s.Ensure(t.Context(), ref, nil, nil)
			if test.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantImageError(t, err, test.says)
			wantOnly(t, directory, 0, 0, 0)
		})
	}
	t.Run("another diff id", func(t *testing.T) {
		r := newRegistry(t)
		image := newImage(t, v1.Config{}, layer)
		file := must(image.ConfigFile())(t).DeepCopy()
		file.RootFS.DiffIDs = []v1.Hash{digest}
		ref := r.push(t, "wrong:1", must(mutate.ConfigFile(image, file))(t))
		directory := filepath.Join(t.TempDir(), "images")
		_, err := open(t, images.Options{Directory: directory}).Ensure(t.Context(), ref, nil, nil)
		wantImageError(t, err, "unpacks to")
		wantOnly(t, directory, 0, 0, 0)
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
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	_, err := s.Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, `layer refused: the name contains ".."`)
	wantOnly(t, directory, 0, 0, 0)

	bomb := r.push(t, "bomb:1", newImage(t, v1.Config{}, newLayer(t, map[string]string{"zeros": string(make([]byte, 10<<20))})))
	s.Bound(1<<20, 100)
	_, err = s.Ensure(t.Context(), bomb, nil, nil)
	wantImageError(t, err, "more than 1048576 bytes")
	wantOnly(t, directory, 0, 0, 0)
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
