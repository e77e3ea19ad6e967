package images_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandbox.internal/runtime/oci/images"
)

// artifact is a manifest of something that is no image.
func artifact(t testing.TB) v1.Image {
	t.Helper()
	return mutate.ConfigMediaType(newImage(t, v1.Config{User: "an artifact"}, randomLayer(t, 10)), "application/vnd.cncf.helm.config.v1+json")
}

// ofOther is an image for another architecture, which only its configuration says.
func ofOther(t testing.TB) v1.Image {
	t.Helper()
	image := newImage(t, v1.Config{}, randomLayer(t, 10))
	file := must(image.ConfigFile())(t).DeepCopy()
	file.Architecture = "z80"
	return must(mutate.ConfigFile(image, file))(t)
}

// TestIndexes: of the manifests of an index, the one is taken that Docker takes, whatever comes
// before it.
func TestIndexes(t *testing.T) {
	wanted := newImage(t, v1.Config{User: "wanted"}, randomLayer(t, 100))
	other := newImage(t, v1.Config{User: "other"}, randomLayer(t, 100))
	on := func(image v1.Image, os, architecture, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os, Architecture: architecture, Variant: variant}}}
	}
	bare := func(image v1.Image) mutate.IndexAddendum { return mutate.IndexAddendum{Add: image} }
	here := on(wanted, "linux", runtime.GOARCH, "")
	base := map[string]string{"amd64": "v1", "arm64": "v8"}[runtime.GOARCH]
	alias := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	attestation := on(other, "unknown", "unknown", "")
	attestation.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest"}
	marked := on(other, "linux", runtime.GOARCH, "")
	marked.ArtifactType = "application/spdx+json"
	for name, manifests := range map[string][]mutate.IndexAddendum{
		"artifact first":                     {bare(artifact(t)), here},
		"artifact of this platform first":    {on(artifact(t), "linux", runtime.GOARCH, ""), here},
		"artifact that its descriptor marks": {marked, here},
		"attestation first":                  {attestation, here},
		"platform that is empty first":       {on(other, "", "", ""), here},
		"image without platform first":       {bare(other), here},
		"higher variant first":               {on(other, "linux", runtime.GOARCH, "v9"), here},
		"variants only":                      {on(other, "linux", runtime.GOARCH, "v9"), on(wanted, "linux", runtime.GOARCH, base)},
		"higher variants only":               {on(other, "linux", runtime.GOARCH, "v98"), on(wanted, "linux", runtime.GOARCH, "v97")},
		"another name of the architecture":   {on(other, "linux", "z80", ""), on(wanted, "Linux", alias, "")},
		"without platforms":                  {bare(artifact(t)), bare(ofOther(t)), bare(wanted)},
		"windows without platform":           {bare(must(mutate.ConfigFile(other, &v1.ConfigFile{OS: "windows"}))(t)), bare(wanted)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t)
			for at, m := range manifests {
				r.push(t, fmt.Sprintf("many:%d", at), m.Add.(v1.Image))
			}
			index := mutate.AppendManifests(empty.Index, manifests...)
			r.put(t, http.MethodPut, "/v2/many/manifests/index", string(types.OCIImageIndex), must(index.RawManifest())(t))
			want := must(wanted.ConfigName())(t).String()
			if id := ensure(t, open(t, images.Options{}), r.host+"/many:index"); id != want {
				t.Errorf("pulled %s, want %s", id, want)
			}
			layout := laidOut(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index}))
			loaded, err := open(t, images.Options{}).Load(t.Context(), bytes.NewReader(layout), nil)
			if err != nil || len(loaded) != 1 || loaded[0].ID != want {
				t.Errorf("loaded %+v, %v, want %s", loaded, err, want)
			}
		})
	}
}

// TestArchivesWithArtifacts: what is no image beside one refuses no archive, and of several with a
// name the best for this machine has it.
func TestArchivesWithArtifacts(t *testing.T) {
	named := map[string]string{"org.opencontainers.image.ref.name": "image:1"}
	wanted, other := newImage(t, v1.Config{}, randomLayer(t, 100)), newImage(t, v1.Config{User: "other"}, randomLayer(t, 100))
	variant := func(image v1.Image, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Annotations: named,
			Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH, Variant: variant}}}
	}
	archive := laidOut(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: artifact(t)}, variant(wanted, ""), variant(other, "v9")))
	s := open(t, images.Options{})
	loaded, err := s.Load(t.Context(), bytes.NewReader(archive), nil)
	if err != nil || len(loaded) != 1 {
		t.Fatalf("%+v, %v", loaded, err)
	}
	if id, want := ensure(t, s, "image:1"), must(wanted.ConfigName())(t).String(); id != want {
		t.Errorf("%s, want %s", id, want)
	}
	_, err = open(t, images.Options{}).Load(t.Context(), bytes.NewReader(laidOut(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: artifact(t)}))), nil)
	wantImageError(t, err, "no image for linux/"+runtime.GOARCH)
}

// TestConfigStrings: what old tools wrote as a string is a list of one, as for Docker.
func TestConfigStrings(t *testing.T) {
	image := newImage(t, v1.Config{User: "placeholder"}, randomLayer(t, 100))
	layers := must(json.Marshal(must(image.ConfigFile())(t).RootFS))(t)
	for name, test := range map[string]struct {
		config  string
		want    images.Config
		refused string
	}{
		"strings":          {`{"Entrypoint":"/bin/sh -c","Cmd":"sleep 5","StopSignal":"SIGQUIT"}`, images.Config{Entrypoint: []string{"/bin/sh -c"}, Cmd: []string{"sleep 5"}, StopSignal: "SIGQUIT"}, ""},
		"lists":            {`{"Entrypoint":["a","b"],"Cmd":["c"]}`, images.Config{Entrypoint: []string{"a", "b"}, Cmd: []string{"c"}}, ""},
		"nothing":          {`{"Entrypoint":null,"Cmd":null,"Env":null,"Labels":null}`, images.Config{}, ""},
		"no config":        {`null`, images.Config{}, ""},
		"what is not used": {`{"Shell":"x","OnBuild":"x","Volumes":7,"Healthcheck":"x"}`, images.Config{}, ""},
		"numbers":          {`{"Entrypoint":[1]}`, images.Config{}, "cannot unmarshal"},
		"object":           {`{"Cmd":{}}`, images.Config{}, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := fmt.Appendf(nil, `{"os":"linux","rootfs":%s,"config":%s}`, layers, test.config)
			archive := files(t, map[string]string{"manifest.json": `[{"Config":"c","RepoTags":["x:1"],"Layers":["l"]}]`, "c": string(raw),
				"l": string(compressed(t, must(image.Layers())(t)[0]))})
			loaded, err := open(t, images.Options{}).Load(t.Context(), bytes.NewReader(archive), nil)
			if test.refused != "" {
				wantImageError(t, err, test.refused)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := loaded[0].Config
			if !slices.Equal(got.Entrypoint, test.want.Entrypoint) || !slices.Equal(got.Cmd, test.want.Cmd) || got.StopSignal != test.want.StopSignal {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
