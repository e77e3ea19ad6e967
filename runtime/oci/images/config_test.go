package images_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

// TestConfigurationsCount: images whose configurations take most make room for others as layers do,
// also after another start.
func TestConfigurationsCount(t *testing.T) {
	const most, each = 1 << 20, 200 << 10
	r := newRegistry(t)
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory, MaxBytes: most})
	layer := randomLayer(t, 10)
	for i := range 8 {
		ensure(t, s, r.push(t, fmt.Sprintf("image:%d", i), newImage(t, v1.Config{Labels: map[string]string{"i": fmt.Sprint(i), "x": strings.Repeat("x", each)}}, layer)))
	}
	few := func(s *images.Store) int {
		t.Helper()
		n := len(s.List())
		if n == 0 || n > most/each {
			t.Errorf("%d images", n)
		}
		return n
	}
	kept, counted := few(s), s.Counted()
	if counted < int64(kept*each) || counted > most {
		t.Errorf("%d bytes are counted of %d images", counted, kept)
	}
	wait.Until(t, "everything is safe on the disk", s.Safe)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, images.Options{Directory: directory, MaxBytes: most})
	if again := few(s); again != kept || s.Counted() != counted {
		t.Errorf("after another start: %d images, %d bytes; before: %d, %d", again, s.Counted(), kept, counted)
	}
	ref := r.push(t, "large:1", newImage(t, v1.Config{Labels: map[string]string{"x": strings.Repeat("x", 900<<10)}}, layer))
	small := open(t, images.Options{MaxBytes: 500 << 10})
	_, err := small.Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, "no room for the image")
	before := s.Counted()
	if freed := must(s.Prune(t.Context(), true))(t); freed != before {
		t.Errorf("%d bytes were freed, of %d", freed, before)
	}
	if left := s.Counted(); left != 0 {
		t.Errorf("%d bytes are counted of nothing", left)
	}
}

// TestLargeConfigurations: what stays in memory of an image is bounded.
func TestLargeConfigurations(t *testing.T) {
	r := newRegistry(t)
	many := make([]string, 10_001)
	labels := map[string]string{}
	for i := range many {
		labels[fmt.Sprint(i)] = ""
	}
	for name, test := range map[string]struct {
		config v1.Config
		says   string
	}{
		"bytes":       {v1.Config{User: strings.Repeat("x", 1<<20)}, "not within 0 and 1048576 bytes"},
		"variables":   {v1.Config{Env: many}, "10001 variables, arguments and labels, more than 10000"},
		"arguments":   {v1.Config{Cmd: many[:5000], Entrypoint: many[:5001]}, "10001 variables, arguments and labels"},
		"labels":      {v1.Config{Labels: labels}, "10001 variables, arguments and labels"},
		"all at once": {v1.Config{Cmd: many[:10_000], User: "x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := newImage(t, test.config)
			s := open(t, images.Options{})
			_, err := s.Ensure(t.Context(), r.push(t, strings.ReplaceAll(name, " ", "")+":1", image), nil, nil)
			_, loadErr := s.Load(t.Context(), bytes.NewReader(saved(t, map[string]v1.Image{"image:1": image})), nil)
			if test.says == "" {
				if err != nil || loadErr != nil {
					t.Errorf("%v, %v", err, loadErr)
				}
				return
			}
			wantImageError(t, err, test.says)
			wantImageError(t, loadErr, "more than 10")
		})
	}
}

// TestManyLayers: a manifest with more layers than can be mounted is refused before the
// configuration is asked for.
func TestManyLayers(t *testing.T) {
	r := newRegistry(t)
	image := newImage(t, v1.Config{})
	ref := r.push(t, "many:1", image)
	manifest := must(image.Manifest())(t).DeepCopy()
	manifest.Layers = make([]v1.Descriptor, 501)
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", string(manifest.MediaType))
		content := must(json.Marshal(manifest))(t)
		_, _ = w.Write(bytes.ReplaceAll(content, []byte(`,"digest":":"`), nil)) // a digest that is none is not read
		return true
	})
	_, err := open(t, images.Options{}).Ensure(t.Context(), ref, nil, nil)
	wantImageError(t, err, "501 layers, more than 500")
	if n := r.fetches(must(image.ConfigName())(t)); n != 0 {
		t.Errorf("the configuration was fetched %d times", n)
	}
}

// TestNestedIndexes: indexes that lead to one another are held in memory together, and bounded
// together.
func TestNestedIndexes(t *testing.T) {
	r := newRegistry(t)
	image := newImage(t, v1.Config{}, randomLayer(t, 10))
	r.push(t, "nested:leaf", image)
	platform := v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Annotations: map[string]string{"x": strings.Repeat("x", 300<<10)}}
	var child mutate.Appendable = image
	for depth := range 5 {
		index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: child, Descriptor: platform})
		raw := must(index.RawManifest())(t)
		for _, tag := range []string{fmt.Sprint(depth), must(index.Digest())(t).String()} {
			r.put(t, http.MethodPut, "/v2/nested/manifests/"+tag, string(types.OCIImageIndex), raw)
		}
		child = index
	}
	s := open(t, images.Options{})
	ensure(t, s, r.host+"/nested:1")
	_, err := s.Ensure(t.Context(), r.host+"/nested:4", nil, nil)
	wantImageError(t, err, "larger than 1048576 bytes")
}

// TestTurnsToAsk: of one registry few images are asked for at once, which keeps no other registry
// waiting and no layer.
func TestTurnsToAsk(t *testing.T) {
	slow, other := newRegistry(t), newRegistry(t)
	goOn := make(chan struct{})
	var mu sync.Mutex
	held, most := 0, 0
	slow.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if path.Base(path.Dir(r.URL.Path)) != "manifests" {
			return false
		}
		mu.Lock()
		held++
		most = max(most, held)
		mu.Unlock()
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		mu.Lock()
		held--
		mu.Unlock()
		return false
	})
	s := open(t, images.Options{})
	image := newImage(t, v1.Config{}, randomLayer(t, 10))
	var group sync.WaitGroup
	for i := range images.AsksOfHost + 8 {
		ref := slow.push(t, fmt.Sprintf("slow:%d", i), image)
		group.Go(func() { ensure(t, s, ref) })
	}
	wait.Until(t, "the slow registry holds its turns", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return held == images.AsksOfHost
	})
	_, port, _ := strings.Cut(other.push(t, "other:1", image), ":")
	ensure(t, s, "localhost:"+port)
	close(goOn)
	group.Wait()
	if most != images.AsksOfHost {
		t.Errorf("the slow registry was asked for %d images at once", most)
	}
}
