package sandboxes

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

const (
	// layersPerPull is how many layers the files of the image that is pulled are in.
	layersPerPull = 4
	pulled        = "bench/pull" // its name in the registry
)

// Pull has both engines pull the same image, in turns, from a registry in this process. Each round
// has an image of its own, because engines keep layers.
func Pull() measure.Group {
	return measure.Sharing(rig.OnLocal("crun", rig.Plan{}),
		measure.Single(measure.Row{Name: "local-pull", What: "pull of the base image, in four layers, from a registry in the same process, by the local engine",
			Floor: "`docker pull` of the same",
			Unit:  measure.Milliseconds, Target: measure.Ratio(0.7)},
			measurePull))
}

func measurePull(ctx context.Context, run *measure.Run, with rig.Beside) (result measure.Pair, err error) {
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(images)
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	archives, err := rig.ArchiveDirectory()
	if err != nil {
		return result, err
	}
	files, err := baseFiles(filepath.Join(archives, "base.tar"))
	if err != nil {
		return result, err
	}
	for round := range run.Rounds(5, 1) + 1 {
		tag := fmt.Sprintf("%d-%d", os.Getpid(), round)
		ref := host + "/" + pulled + ":" + tag
		image, err := newLayers(files, time.Now().String())
		if err != nil {
			return result, err
		}
		if err := upload(images, tag, image); err != nil {
			return result, err
		}
		ours := func() error {
			return with.Call(ctx, http.MethodPost, "/v1/images/pull", http.StatusOK, map[string]any{"image": map[string]string{"uri": ref}}, nil)
		}
		floor := func() error { return pullOnEngine(ctx, with.Engine, ref) }
		if round%2 == 0 {
			err = errors.Join(result.Ours.Timed(ours), result.Floor.Timed(floor))
		} else {
			err = errors.Join(result.Floor.Timed(floor), result.Ours.Timed(ours))
		}
		err = errors.Join(err, with.Engine.Call(ctx, http.MethodDelete, "/images/"+ref, nil, nil))
		if err != nil {
			return result, err
		}
		if round == 0 { // warm on both sides
			result = measure.Pair{}
		}
	}
	return result, nil
}

// pullOnEngine has the engine pull an image; the answer ends when it has.
func pullOnEngine(ctx context.Context, e *rig.Engine, ref string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+"/images/create?fromImage="+url.QueryEscape(ref), nil)
	if err != nil {
		return err
	}
	response, err := e.Client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	progress, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || bytes.Contains(progress, []byte(`"error"`)) {
		return fmt.Errorf("pull %s: %s: %.300s", ref, response.Status, progress)
	}
	return nil
}

// file is an entry of the base image.
type file struct {
	header  *tar.Header
	content []byte
}

// baseFiles reads the entries of the one layer of an archive.
func baseFiles(archive string) ([]file, error) {
	opened, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("%w: scripts/images.sh --archives base makes it", err)
	}
	defer opened.Close()
	for outer := tar.NewReader(opened); ; {
		header, err := outer.Next()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", archive, err)
		}
		if filepath.Base(header.Name) != "layer.tar" {
			continue
		}
		var files []file
		for layer := tar.NewReader(outer); ; {
			header, err := layer.Next()
			if errors.Is(err, io.EOF) {
				return files, nil
			}
			if err != nil {
				return nil, err
			}
			content, err := io.ReadAll(layer)
			if err != nil {
				return nil, err
			}
			files = append(files, file{header, content})
		}
	}
}

// newLayers makes an image of these files, in layers that nothing has seen before.
func newLayers(files []file, mark string) (v1.Image, error) {
	image := v1.Image(empty.Image)
	for i := range layersPerPull {
		var layer bytes.Buffer
		w := tar.NewWriter(&layer)
		err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("mark-%d", i), Size: int64(len(mark)), Mode: 0o644})
		if err == nil {
			_, err = io.WriteString(w, mark)
		}
		for at, f := range files {
			// A hard link must be in the layer of what it names; the few that there are are left
			// out.
			if err == nil && f.header.Typeflag != tar.TypeLink && (f.header.Typeflag == tar.TypeDir || at%layersPerPull == i) {
				if err = w.WriteHeader(f.header); err == nil {
					_, err = w.Write(f.content)
				}
			}
		}
		if err := errors.Join(err, w.Close()); err != nil {
			return nil, err
		}
		packed, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, packed); err != nil {
			return nil, err
		}
	}
	return image, nil
}

// upload puts an image into the registry.
func upload(images http.Handler, tag string, image v1.Image) error {
	put := func(method, target, mediaType string, body []byte) error {
		request := httptest.NewRequest(method, "/v2/"+pulled+target, bytes.NewReader(body))
		request.Header.Set("Content-Type", mediaType)
		answer := httptest.NewRecorder()
		images.ServeHTTP(answer, request)
		if answer.Code != http.StatusCreated {
			return fmt.Errorf("%s %s: %d %s", method, target, answer.Code, answer.Body)
		}
		return nil
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	for _, blob := range append(layers, config) {
		digest, err := blob.Digest()
		if err != nil {
			return err
		}
		packed, err := blob.Compressed()
		if err != nil {
			return err
		}
		content, err := io.ReadAll(packed)
		if err := errors.Join(err, packed.Close()); err != nil {
			return err
		}
		if err := put(http.MethodPost, "/blobs/uploads/?digest="+digest.String(), "", content); err != nil {
			return err
		}
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return err
	}
	mediaType, err := image.MediaType()
	if err != nil {
		return err
	}
	return put(http.MethodPut, "/manifests/"+tag, string(mediaType), manifest)
}
