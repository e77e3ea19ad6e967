package images_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
)

// saved is what `docker save` writes.
func saved(t testing.TB, named map[string]v1.Image) []byte {
	t.Helper()
	tagged := map[name.Tag]v1.Image{}
	for full, image := range named {
		tagged[must(name.NewTag(full))(t)] = image
	}
	var archive bytes.Buffer
	if err := tarball.MultiWrite(tagged, &archive); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// laidOut is an OCI layout as a tar archive.
func laidOut(t testing.TB, index v1.ImageIndex) []byte {
	t.Helper()
	directory := t.TempDir()
	must(layout.Write(directory, index))(t)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.AddFS(os.DirFS(directory)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func zipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(content)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

func TestLoad(t *testing.T) {
	one := newImage(t, v1.Config{User: "1"}, randomLayer(t, 1000), randomLayer(t, 100))
	two := newImage(t, v1.Config{User: "2"}, randomLayer(t, 1000))
	annotated := func(image v1.Image, annotations map[string]string, platform *v1.Platform) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Annotations: annotations, Platform: platform}}
	}
	const fullName, refName = "io.containerd.image.name", "org.opencontainers.image.ref.name"
	plain := saved(t, map[string]v1.Image{"example.test/one:1": one, "two:latest": two})
	both := laidOut(t, mutate.AppendManifests(empty.Index, annotated(one, map[string]string{fullName: "example.test/one:1"}, nil),
		annotated(two, map[string]string{refName: "docker.io/library/two:latest"}, nil),
		annotated(two, nil, &v1.Platform{OS: "linux", Architecture: "z80"})))
	digested := "docker.io/library/one@" + must(one.Digest())(t).String()
	proven := laidOut(t, mutate.AppendManifests(empty.Index, annotated(one, map[string]string{fullName: digested}, nil)))
	nested := laidOut(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add:        mutate.AppendManifests(empty.Index, annotated(two, nil, &v1.Platform{OS: "windows"}), annotated(one, nil, nil)),
		Descriptor: v1.Descriptor{Annotations: map[string]string{refName: "1"}},
	}))
	short := laidOut(t, mutate.AppendManifests(empty.Index, annotated(one, map[string]string{refName: "one:1.0"}, nil),
		annotated(two, map[string]string{refName: "bare"}, nil)))
	for name, test := range map[string]struct {
		archive []byte
		names   []string // of all images
		images  int
	}{
		"docker save":         {plain, []string{"docker.io/library/two:latest", "example.test/one:1"}, 2},
		"docker save, zipped": {zipped(t, plain), []string{"docker.io/library/two:latest", "example.test/one:1"}, 2},
		"OCI layout":          {both, []string{"docker.io/library/two:latest", "example.test/one:1"}, 2},
		"OCI layout, zipped":  {zipped(t, both), []string{"docker.io/library/two:latest", "example.test/one:1"}, 2},
		"OCI layout, nested":  {nested, nil, 1},
		"OCI layout, short":   {short, []string{"docker.io/library/bare:latest", "docker.io/library/one:1.0"}, 2},
		"OCI layout, digest":  {proven, []string{digested}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := filepath.Join(t.TempDir(), "images")
			s := open(t, images.Options{Directory: directory})
			var reported []string
			loaded, err := s.Load(t.Context(), bytes.NewReader(test.archive), func(sentence string) { reported = append(reported, sentence) })
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			layers := 0
			for _, image := range loaded {
				names = append(names, image.Names...)
				layers += len(image.Layers)
				if found := content(t, hold(t, s, image.ID)); len(found) != len(image.Layers) {
					t.Errorf("files %v", found)
				}
			}
			slices.Sort(names)
			if !slices.Equal(names, test.names) || len(loaded) != test.images {
				t.Errorf("loaded %+v", loaded)
			}
			if len(reported) == 0 || reported[0] != "reading the archive" {
				t.Errorf("progress %q", reported)
			}
			wantOnly(t, directory, layers, test.images, len(names))
			for _, name := range names {
				ensure(t, s, name) // without a registry
			}
		})
	}
}

// TestLoadLinks: Docker engines before 25 save a layer once and link to it.
func TestLoadLinks(t *testing.T) {
	layer := randomLayer(t, 1000)
	image := newImage(t, v1.Config{}, layer)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(header tar.Header, content []byte) {
		header.Size, header.Mode = int64(len(content)), 0o644
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(content)
	}
	uncompressed := must(layer.Uncompressed())(t)
	add(tar.Header{Name: "a/layer.tar", Typeflag: tar.TypeReg}, must(io.ReadAll(uncompressed))(t))
	add(tar.Header{Name: "b/layer.tar", Typeflag: tar.TypeSymlink, Linkname: "../a/layer.tar"}, nil)
	add(tar.Header{Name: "config.json", Typeflag: tar.TypeReg}, must(image.RawConfigFile())(t))
	add(tar.Header{Name: "manifest.json", Typeflag: tar.TypeReg}, []byte(`[{"Config":"config.json","RepoTags":null,"Layers":["b/layer.tar"]}]`))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, images.Options{})
	loaded, err := s.Load(t.Context(), &archive, nil)
	if err != nil || len(loaded) != 1 || len(loaded[0].Names) != 0 {
		t.Fatalf("loaded %+v, %v", loaded, err)
	}
	ensure(t, s, loaded[0].ID)
}

// longNames is a small archive whose names take much memory.
func longNames(t testing.TB) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for number := range 20 {
		name := strings.Repeat(strings.Repeat("x", 250)+"/", 4000) + strconv.Itoa(number)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "x", Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return zipped(t, archive.Bytes())
}

func TestLoadRefuses(t *testing.T) {
	image := newImage(t, v1.Config{}, randomLayer(t, 1000))
	good := saved(t, map[string]v1.Image{"one:1": image})
	foreign := laidOut(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "z80"}}}))
	windows := must(mutate.ConfigFile(image, &v1.ConfigFile{OS: "windows"}))(t)
	changed := func(archive []byte) []byte {
		return bytes.Replace(slices.Clone(archive), []byte(`"os":"linux"`), []byte(`"os":"linuX"`), 1)
	}
	claimedDigest := "sha256:" + strings.Repeat("ab", 32)
	claimed := "docker.io/library/python@" + claimedDigest
	claims := func(annotation, ref string) []byte {
		return laidOut(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Annotations: map[string]string{annotation: ref}}}))
	}
	tagged := func(ref string) []byte {
		return files(t, map[string]string{"manifest.json": `[{"Config":"c","RepoTags":["` + ref + `"]}]`, "c": "{}"})
	}
	for name, test := range map[string]struct {
		archive []byte
		says    string
	}{
		"nothing":             {nil, "neither manifest.json"},
		"noise":               {[]byte(noise(10_000)), "broken"},
		"broken gzip":         {zipped(t, good)[:1000], "unexpected EOF"},
		"cut":                 {good[:len(good)/2], ""},
		"another archive":     {files(t, map[string]string{"file": "x"}), "neither manifest.json"},
		"broken manifest":     {files(t, map[string]string{"manifest.json": "["}), `"manifest.json" of the archive is broken`},
		"broken index":        {files(t, map[string]string{"index.json": "{"}), `"index.json" of the archive is broken`},
		"empty index":         {files(t, map[string]string{"index.json": "{}"}), "no image for linux"},
		"large manifest":      {files(t, map[string]string{"manifest.json": strings.Repeat(" ", 5<<20)}), "more than 4194304"},
		"missing config":      {files(t, map[string]string{"manifest.json": `[{"Config":"../etc/passwd"}]`}), `no file "/etc/passwd"`},
		"missing layer":       {files(t, map[string]string{"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "c": "{}"}), `no file "/l"`},
		"broken config":       {files(t, map[string]string{"manifest.json": `[{"Config":"c"}]`, "c": "["}), "configuration is broken"},
		"bad name":            {tagged("A B"), `"A B"`},
		"digest in saved":     {tagged(claimed), `"` + claimed + `" of an image: an archive in the form of docker save cannot prove a digest`},
		"digest beside a tag": {tagged("x:1@" + claimedDigest), "cannot prove a digest"},
		"digest in full name": {claims("io.containerd.image.name", claimed), claimed + `" of an image: its manifest has the digest sha256:`},
		"digest in ref name":  {claims("org.opencontainers.image.ref.name", "docker.io/library/python:3@"+claimedDigest), "its manifest has the digest"},
		"many images":         {files(t, map[string]string{"manifest.json": "[" + strings.Repeat("{},", 100) + "{}]"}), "more than 64"},
		"long names":          {longNames(t), "more than 16777216 bytes"},
		"other platform":      {foreign, "no image for linux"},
		"windows":             {saved(t, map[string]v1.Image{"one:1": windows}), "for windows"},
		"changed config":      {changed(laidOut(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image}))), "has the digest"},
		"index of itself":     {files(t, map[string]string{"index.json": `{"manifests":[{"digest":"md5:1"}]}`}), "broken"},
		"hostile blob's name": {files(t, map[string]string{"manifest.json": `[{"Config":"c","Layers":["c"]}]`, "c": "{}"}), "1 layers, and 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := filepath.Join(t.TempDir(), "images")
			_, err := open(t, images.Options{Directory: directory}).Load(t.Context(), bytes.NewReader(test.archive), nil)
			wantImageError(t, err, test.says)
			wantOnly(t, directory, 0, 0, 0)
		})
	}
}

// TestLoadChangesAllOrNothing: an archive whose second image is broken leaves the names as they
// were, also that of the first.
func TestLoadChangesAllOrNothing(t *testing.T) {
	before := newImage(t, v1.Config{}, randomLayer(t, 1000))
	first := newImage(t, v1.Config{User: "1"}, randomLayer(t, 1000))
	second := newImage(t, v1.Config{User: "2"}, newLayer(t, map[string]string{"../outside": "x"}))
	const refName = "org.opencontainers.image.ref.name"
	named := func(image v1.Image, ref string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Annotations: map[string]string{refName: ref}}}
	}
	archive := laidOut(t, mutate.AppendManifests(empty.Index, named(first, "example.test/one:1"), named(second, "example.test/two:1")))
	s := open(t, images.Options{})
	if _, err := s.Load(t.Context(), bytes.NewReader(saved(t, map[string]v1.Image{"example.test/one:1": before})), nil); err != nil {
		t.Fatal(err)
	}
	loaded, err := s.Load(t.Context(), bytes.NewReader(archive), nil)
	wantImageError(t, err, `".."`)
	if len(loaded) != 0 {
		t.Errorf("loaded %+v", loaded)
	}
	if id, want := ensure(t, s, "example.test/one:1"), must(before.ConfigName())(t).String(); id != want {
		t.Errorf("the name is of %s, want %s", id, want)
	}
	if list := s.List(); len(list) != 1 {
		t.Errorf("images %+v", list)
	}
	// With its second image as it should be, both are there.
	second = newImage(t, v1.Config{User: "2"}, randomLayer(t, 1000))
	archive = laidOut(t, mutate.AppendManifests(empty.Index, named(first, "example.test/one:1"), named(second, "example.test/two:1")))
	if loaded, err = s.Load(t.Context(), bytes.NewReader(archive), nil); err != nil || len(loaded) != 2 {
		t.Fatalf("loaded %+v, %v", loaded, err)
	}
	for i, want := range []string{"example.test/one:1", "example.test/two:1"} {
		if !slices.Equal(loaded[i].Names, []string{want}) || ensure(t, s, want) != loaded[i].ID {
			t.Errorf("image %+v", loaded[i])
		}
	}
}

// TestLoadReadError: the caller can tell that its archive could not be read from that it is broken.
func TestLoadReadError(t *testing.T) {
	archive := saved(t, map[string]v1.Image{"one:1": newImage(t, v1.Config{}, randomLayer(t, 100_000))})
	for _, cause := range []error{io.ErrUnexpectedEOF, &http.MaxBytesError{Limit: 7}} {
		for _, n := range []int{0, 3, 1000, len(archive) / 2} {
			for form, content := range map[string][]byte{"plain": archive, "zipped": zipped(t, archive)} {
				source := io.MultiReader(bytes.NewReader(content[:n]), iotest.ErrReader(cause))
				_, err := open(t, images.Options{}).Load(t.Context(), source, nil)
				if !errors.Is(err, cause) || errors.Is(err, engine.ErrImage) {
					t.Errorf("%s, after %d bytes: %v", form, n, err)
				}
			}
		}
	}
}

func TestLoadEndsWithContext(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "images")
	ctx, cancel := context.WithCancel(t.Context())
	image := saved(t, map[string]v1.Image{"one:1": newImage(t, v1.Config{}, randomLayer(t, 2<<20))})
	_, err := open(t, images.Options{Directory: directory}).Load(ctx, &cancelling{bytes.NewReader(image), cancel}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	wantOnly(t, directory, 0, 0, 0)
}

// cancelling calls cancel when it is read.
type cancelling struct {
	io.Reader
	cancel func()
}

func (r *cancelling) Read(p []byte) (int, error) {
	r.cancel()
	return r.Reader.Read(p)
}
