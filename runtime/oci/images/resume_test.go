package images_test

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

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
	directory := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Directory: directory})
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if path.Base(req.URL.Path) != badDigest.String() {
			return false
		}
		wait.Until(t, "the good layer is complete", func() bool {
			entries, _ := os.ReadDir(filepath.Join(directory, "layers"))
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
