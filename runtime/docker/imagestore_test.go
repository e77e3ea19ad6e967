package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/api/types/container"
	"github.com/google/uuid"

	"sandbox.internal/runtime/docker"
	"sandbox.internal/runtime/engine"
)

// TestLoadFailures has the words of real engines: what their hosts fail with, and their end, are
// not the archive's fault.
func TestLoadFailures(t *testing.T) {
	for _, test := range []struct {
		status int
		text   string
		want   error // nil: none that the contract names
	}{
		{http.StatusInternalServerError, "archive/tar: invalid tar header", engine.ErrImage},
		{http.StatusInternalServerError, "open /var/lib/docker/tmp/docker-import-1/repositories: no such file or directory", engine.ErrImage},
		{http.StatusBadRequest, "invalid archive", engine.ErrImage},
		{http.StatusInternalServerError, "write /var/lib/docker/tmp/x: no space left on device", nil},
		{http.StatusInternalServerError, "error creating overlay mount: input/output error", nil},
		{http.StatusInternalServerError, "transport is closing: unavailable", engine.ErrUnavailable},
		{http.StatusServiceUnavailable, "the engine is being stopped", engine.ErrUnavailable},
		{http.StatusOK, "invalid diffID for layer 0", engine.ErrImage},
		{http.StatusOK, "Error processing tar file(exit status 1): write /big: no space left on device", nil},
		{http.StatusOK, "write unix @->/run/x/containerd.sock: broken pipe", engine.ErrUnavailable},
		{http.StatusOK, "", engine.ErrUnavailable}, // it ends within its answer
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Api-Version", "1.41")
			if !strings.HasSuffix(r.URL.Path, "/images/load") {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(test.status)
			switch {
			case test.text == "":
				_, _ = w.Write([]byte(`{"stream":"Loaded im`))
			case test.status == http.StatusOK:
				_ = json.NewEncoder(w).Encode(map[string]any{"errorDetail": map[string]string{"message": test.text}, "error": test.text})
			default:
				_ = json.NewEncoder(w).Encode(map[string]string{"message": test.text})
			}
		}))
		e, err := docker.New(docker.Options{Host: "tcp://" + server.Listener.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.LoadImages(t.Context(), strings.NewReader("archive"))
		if err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%q: %v", test.text, err)
		}
		for _, kind := range []error{engine.ErrImage, engine.ErrUnavailable} {
			if errors.Is(err, kind) != (kind == test.want) {
				t.Errorf("%d %q: %v, want %v", test.status, test.text, err, test.want)
			}
		}
		_ = e.Close()
		server.Close()
	}
}

// TestLoadReadError: the caller can tell that its archive could not be read from that it is broken.
func TestLoadReadError(t *testing.T) {
	e := open(t)
	defer func() { _ = e.Close() }()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o600, Size: 100_000}); err != nil {
		t.Fatal(err)
	}
	for _, cause := range []error{io.ErrUnexpectedEOF, &http.MaxBytesError{Limit: 7}} {
		_, err := e.LoadImages(t.Context(), io.MultiReader(bytes.NewReader(archive.Bytes()), iotest.ErrReader(cause)))
		if !errors.Is(err, cause) || errors.Is(err, engine.ErrImage) || errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("%v, want %v", err, cause)
		}
	}
	if _, err := e.LoadImages(t.Context(), &archive); !errors.Is(err, engine.ErrImage) {
		t.Errorf("half an archive: %v", err)
	}
}

// TestRemoveUsedImage: an image that a container is made of keeps all of its names when it is
// removed by its id.
func TestRemoveUsedImage(t *testing.T) {
	e := open(t)
	defer func() { _ = e.Close() }()
	j := newJanitor(t)
	id := importEmpty(t, j.api)
	second := "docker-test-" + uuid.NewString() + ":2"
	if err := j.api.ImageTag(t.Context(), id, second); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.RemoveImage(context.WithoutCancel(t.Context()), second); err != nil {
			t.Error(err)
		}
	})
	made, err := j.api.ContainerCreate(t.Context(), &container.Config{Image: id, Cmd: []string{"none"}}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	err = e.RemoveImage(t.Context(), id)
	if !errors.Is(err, engine.ErrImageInUse) {
		t.Errorf("got %v, want ErrImageInUse", err)
	}
	found, inspectErr := j.api.ImageInspect(t.Context(), id)
	if inspectErr != nil || len(found.RepoTags) != 2 {
		t.Errorf("the image has the names %v, %v", found.RepoTags, inspectErr)
	}
	if err := j.api.ContainerRemove(t.Context(), made.ID, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveImage(t.Context(), id); err != nil {
		t.Error(err)
	}
	if _, err := j.api.ImageInspect(t.Context(), id); err == nil {
		t.Error("the image is still there")
	}
}
