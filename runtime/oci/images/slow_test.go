package images_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/test/wait"
)

// dripping sends a blob a byte per millisecond, after so many bytes at once, and the rest at once
// when that channel is closed.
func dripping(blob []byte, first int, digest string, rest <-chan struct{}) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if path.Base(r.URL.Path) != digest {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(blob)))
		_, _ = w.Write(blob[:first])
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := first; i < len(blob); i++ {
			_, _ = w.Write(blob[i : i+1])
			if http.NewResponseController(w).Flush() != nil {
				break
			}
			select {
			case <-tick.C:
			case <-rest:
				_, _ = w.Write(blob[i+1:])
				return true
			case <-r.Context().Done():
				return true
			}
		}
		return true
	}
}

// TestSlowRegistry: a registry that sends something all the time, but next to nothing, is given up.
func TestSlowRegistry(t *testing.T) {
	layer := randomLayer(t, 4<<20)
	blob, digest := compressed(t, layer), must(layer.Digest())(t)
	var served atomic.Int64
	first := cutting(blob, digest, 2<<20, false, &served)
	var once sync.Once
	drips := dripping(blob, 0, digest.String(), nil)
	for name, before := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"from the start": drips,
		"what was here already, without ranges": func(w http.ResponseWriter, r *http.Request) (answered bool) {
			if path.Base(r.URL.Path) == digest.String() {
				cut := false
				once.Do(func() { cut = true })
				if cut {
					return first(w, r)
				}
			}
			return drips(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			ref := r.push(t, "slow:1", newImage(t, v1.Config{}, layer))
			r.intercept(before)
			directory := filepath.Join(t.TempDir(), "images")
			s := open(t, images.Options{Directory: directory})
			s.Pace(time.Minute, 300*time.Millisecond, 1<<20)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := s.Ensure(ctx, ref, nil, nil)
			wantImageError(t, err, "the registry is too slow: it sent")
			wantOnly(t, directory, 0, 0, 0)
		})
	}
	t.Run("silence", func(t *testing.T) {
		r := newRegistry(t)
		ref := r.push(t, "slow:1", newImage(t, v1.Config{}, layer))
		asked, _ := r.holdBack(t, digest)
		s := open(t, images.Options{})
		s.Pace(10*time.Millisecond, time.Hour, 1)
		_, err := s.Ensure(t.Context(), ref, nil, nil)
		wait.For(t, "the request of the layer", asked)
		wantImageError(t, err, "the registry sent nothing for 10ms")
	})
	t.Run("fast enough", func(t *testing.T) {
		small := randomLayer(t, 200)
		r := newRegistry(t)
		ref := r.push(t, "slow:1", newImage(t, v1.Config{}, small))
		r.intercept(dripping(compressed(t, small), 10, must(small.Digest())(t).String(), nil))
		s := open(t, images.Options{})
		s.Pace(time.Minute, 100*time.Millisecond, 1)
		s.SpeedWhileOthersWait(10*time.Millisecond, 1<<20) // no pull waits
		ensure(t, s, ref)
	})
}

// TestSilentEndpoint: a mirror that does not answer, or stops within an answer, is given up and the
// registry itself is asked; a registry that does not answer fails the pull.
func TestSilentEndpoint(t *testing.T) {
	const limit = time.Second
	for name, words := range map[string]string{"ping": "/v2/", "token": "/token", "manifest": "/manifests/", "configuration": "/blobs/"} {
		for _, begins := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, begins: %v", name, begins), func(t *testing.T) {
				t.Parallel()
				mirror, origin := newRegistry(t), newRegistry(t)
				image := newImage(t, v1.Config{}, randomLayer(t, 100))
				ref := origin.push(t, "image:1", image)
				mirrored := mirror.push(t, "image:1", image)
				var asked atomic.Bool
				mirror.intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if words == "/token" && r.URL.Path != words {
						w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, mirror.host))
						w.WriteHeader(http.StatusUnauthorized)
						return true
					}
					if !strings.HasSuffix(r.URL.Path, words) && (words == "/v2/" || !strings.Contains(r.URL.Path, words)) {
						return false
					}
					asked.Store(true)
					if begins {
						_, _ = w.Write([]byte("{"))
						_ = http.NewResponseController(w).Flush()
					}
					<-r.Context().Done()
					return true
				})
				s := open(t, images.Options{Mirrors: map[string][]string{origin.host: {mirror.host}}})
				s.AnswersWithin(limit)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if _, err := s.Ensure(ctx, ref, nil, nil); err != nil {
					t.Error(err)
				}
				if !asked.Load() {
					t.Error("the mirror was not asked")
				}
				if name != "manifest" || begins {
					return
				}
				_, err := s.Ensure(ctx, mirrored, nil, nil)
				wantImageError(t, err, "the registry is too slow: "+mirror.host+" did not send the image's manifest and configuration within 1s")
			})
		}
	}
}

// TestTurnsOfHost: a registry that holds all its layers back does not keep those of others from
// being downloaded.
func TestTurnsOfHost(t *testing.T) {
	const pulls, layers = 2 * images.LayersOfHost / 4, 4
	slow, other := newRegistry(t), newRegistry(t)
	var mu sync.Mutex
	held, most := 0, 0
	slow.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && !isConfig(slow, r) {
			mu.Lock()
			held++
			most = max(most, held)
			mu.Unlock()
			<-r.Context().Done()
			return true
		}
		return false
	})
	s := open(t, images.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var group, begun sync.WaitGroup
	begun.Add(pulls)
	for i := range pulls {
		var parts []v1.Layer
		for range layers {
			parts = append(parts, randomLayer(t, 100))
		}
		image := newImage(t, v1.Config{}, parts...)
		slow.configs.Store(must(image.ConfigName())(t).String(), true)
		ref := slow.push(t, fmt.Sprintf("slow%d:1", i), image)
		group.Go(func() {
			begin := sync.OnceFunc(begun.Done)
			_, err := s.Ensure(ctx, ref, nil, func(sentence string) {
				if strings.HasPrefix(sentence, "pulling") {
					begin()
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	wait.Until(t, "the slow registry holds its turns", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return held >= images.LayersOfHost
	})
	_, port, _ := net.SplitHostPort(other.host)
	other.push(t, "other:1", newImage(t, v1.Config{}, randomLayer(t, 100), randomLayer(t, 200)))
	soon, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	if _, err := s.Ensure(soon, "localhost:"+port+"/other:1", nil, nil); err != nil {
		t.Error(err)
	}
	mu.Lock()
	if most != images.LayersOfHost {
		t.Errorf("the slow registry was asked for %d layers at once", most)
	}
	mu.Unlock()
	cancel()
	group.Wait()
}

// TestNamesOfOneServer: a server with several names that sends its layers slowly takes all turns,
// but does not keep them when others wait. A layer that waits ends one download; the others go on.
func TestNamesOfOneServer(t *testing.T) {
	slow, other := newRegistry(t), newRegistry(t)
	var held atomic.Int64
	var blobs sync.Map // digest -> content
	rest := make(chan struct{})
	slow.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		digest := path.Base(r.URL.Path)
		blob, ok := blobs.Load(digest)
		if ok {
			held.Add(1)
			dripping(blob.([]byte), 0, digest, rest)(w, r)
		}
		return ok
	})
	s := open(t, images.Options{})
	s.SpeedWhileOthersWait(50*time.Millisecond, 1<<20)
	s.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address)
		return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
	})
	_, port, _ := net.SplitHostPort(slow.host)
	ended := make(chan error, images.LayersAtOnce/4)
	var group sync.WaitGroup
	for i := range images.LayersAtOnce / 4 {
		var parts []v1.Layer
		for range 4 {
			layer := randomLayer(t, 30_000)
			blobs.Store(must(layer.Digest())(t).String(), compressed(t, layer))
			parts = append(parts, layer)
		}
		slow.push(t, fmt.Sprintf("slow:%d", i), newImage(t, v1.Config{}, parts...))
		ref := fmt.Sprintf("%s.localhost:%s/slow:%d", []string{"a", "b"}[i%2], port, i)
		group.Go(func() {
			_, err := s.Ensure(t.Context(), ref, nil, nil)
			ended <- err
		})
	}
	wait.Until(t, "all turns are taken", func() bool { return held.Load() >= images.LayersAtOnce })
	soon, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if _, err := s.Ensure(soon, other.push(t, "other:1", newImage(t, v1.Config{}, randomLayer(t, 100))), nil, nil); err != nil {
		t.Fatal(err)
	}
	wantImageError(t, wait.For(t, "the end of the pull", ended), ", and other images wait")
	close(rest)
	group.Wait()
	close(ended)
	for err := range ended {
		if err != nil {
			t.Errorf("another download did not go on: %v", err)
		}
	}
}

// TestMemoryOfWindows: layers that need much memory to be decompressed, and whose registry then
// sends nothing, do not take it all at once. They are unpacked all the same.
func TestMemoryOfWindows(t *testing.T) {
	const limit = 600 << 20
	r := newRegistry(t)
	blobs := map[string][]byte{}
	var asked atomic.Int64
	rest := make(chan struct{})
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		blob, ok := blobs[path.Base(req.URL.Path)]
		if !ok {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(blob)))
		_, _ = w.Write(blob[:len(blob)-1])
		_ = http.NewResponseController(w).Flush()
		asked.Add(1)
		select {
		case <-rest:
			_, _ = w.Write(blob[len(blob)-1:])
		case <-req.Context().Done():
		}
		return true
	})
	var refs []string
	_, port, _ := net.SplitHostPort(r.host)
	for i := range images.LayersAtOnce / 4 {
		var parts []v1.Layer
		var diffIDs []v1.Hash
		for j := range 4 {
			blob, diffID := wideLayer(t, 2+4*i+j)
			layer := static.NewLayer(blob, types.OCILayerZStd)
			blobs[must(layer.Digest())(t).String()] = blob
			parts, diffIDs = append(parts, layer), append(diffIDs, diffID)
		}
		image := must(mutate.AppendLayers(empty.Image, parts...))(t)
		file := must(image.ConfigFile())(t).DeepCopy()
		file.RootFS.DiffIDs = diffIDs
		r.push(t, fmt.Sprintf("wide:%d", i), must(mutate.ConfigFile(image, file))(t))
		refs = append(refs, fmt.Sprintf("%s.localhost:%s/wide:%d", []string{"a", "b"}[i%2], port, i))
	}
	s := open(t, images.Options{})
	s.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address)
		return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	for _, ref := range refs {
		group.Go(func() {
			if _, err := s.Ensure(ctx, ref, nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	held := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapInuse
	}
	// All were asked for, and those again that may take the memory.
	wait.Until(t, "the layers wait", func() bool {
		return held() > limit || asked.Load() >= images.LayersAtOnce+images.WideLayersAtOnce
	})
	if held := held(); held > limit {
		cancel()
		t.Fatalf("%d MiB of memory are held", held>>20)
	}
	close(rest)
	group.Wait()
	if held := held(); held > limit {
		t.Errorf("%d MiB of memory are held", held>>20)
	}
}

// wideLayer returns an empty layer of so many blocks of 128 KiB, compressed with a window of 64
// MiB, and its diff id.
func wideLayer(t *testing.T, blocks int) ([]byte, v1.Hash) {
	t.Helper()
	blob := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 16 << 3}
	for i := range blocks {
		header := 128<<10<<3 | 1<<1 // zeros
		if i == blocks-1 {
			header |= 1
		}
		blob = append(blob, byte(header), byte(header>>8), byte(header>>16), 0)
	}
	diffID, _, err := v1.SHA256(bytes.NewReader(make([]byte, blocks*128<<10)))
	if err != nil {
		t.Fatal(err)
	}
	return blob, diffID
}

// TestSpeedWhileOthersWait: what is asked of a registry grows with the layer, so that none keeps
// its turn from others for days.
func TestSpeedWhileOthersWait(t *testing.T) {
	s := open(t, images.Options{})
	for _, test := range []struct {
		received int64
		waited   time.Duration
		yields   bool
	}{
		{0, time.Minute, false},
		{5 << 20, 61 * time.Second, true},
		{6 << 20, 61 * time.Second, false},
		{100 << 20, 15 * time.Minute, false}, // 114 KiB/s
		{100 << 20, 18 * time.Minute, true},  // 95 KiB/s
		{1 << 30, 80 * time.Minute, false},
		{1 << 30, 90 * time.Minute, true},
		{64 << 30, 2 * time.Hour, false},
		{64 << 30, 3 * time.Hour, true},
	} {
		if got := s.Yields(test.received, test.waited); got != test.yields {
			t.Errorf("%d bytes in %s: %v, want %v", test.received, test.waited, got, test.yields)
		}
	}
}

func isConfig(r *testRegistry, req *http.Request) bool {
	_, ok := r.configs.Load(path.Base(req.URL.Path))
	return ok
}
