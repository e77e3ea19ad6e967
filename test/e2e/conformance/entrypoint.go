package conformance

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"

	"sandbox.internal/test/wait"
)

const wordsProgram = "sandbox.internal/test/e2e/conformance/testdata/words"

// testImageEntrypoint: a sandbox whose request asks for that runs what its image has, and one whose
// image has nothing to run fails.
func testImageEntrypoint(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	for name, c := range map[string]struct {
		entrypoint, command []string // of the image
		log                 string
	}{
		"both":       {[]string{"/words", "one"}, []string{"two words", "three"}, `["one" "two words" "three"]` + "\n"},
		"entrypoint": {[]string{"/words", "alone"}, nil, `["alone"]` + "\n"},
		"command":    {nil, []string{"/words", "$HOME"}, `["$HOME"]` + "\n"},
		"neither":    {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := "sandbox-e2e-entrypoint/" + s.Instance + ":" + name
			s.loadProgram(t, image, c.entrypoint, c.command)
			id := s.Create(t, ofImage(image))
			if c.log == "" {
				status := s.Await(t, id, "Failed").Status
				if want := "imageEntrypoint: the image has neither an entrypoint nor a command: give the entrypoint"; status.Reason != "IMAGE_PULL_ERROR" ||
					!strings.Contains(status.Message, want) {
					t.Errorf("the sandbox failed with %s: %q, want %q", status.Reason, status.Message, want)
				}
				return
			}
			words := slices.Concat(c.entrypoint, c.command)
			if got := s.Await(t, id, "Running").Entrypoint; !slices.Equal(got, words) {
				t.Errorf("the record has the entrypoint %q, want %q", got, words)
			}
			wait.Until(t, "the program has printed", func() bool {
				got := s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/logs", "")
				if got.Body != "" && got.Body != c.log {
					t.Fatalf("the log is %q, want %q", got.Body, c.log)
				}
				return got.Body != ""
			})
			s.Delete(t, id)
			s.Await(t, id, "Terminated")
		})
	}
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", s.Body(t, map[string]any{"imageEntrypoint": true})),
		http.StatusBadRequest, "INVALID_REQUEST_BODY", "entrypoint: must be left out when imageEntrypoint is true")
}

// ofImage asks for a sandbox that runs what its image has.
func ofImage(image string) lifecycle.CreateSandboxRequest {
	request, yes := Request(image), true
	request.ImageEntrypoint = &yes
	return request
}

// ImageEntrypointRefused is for a backend that does not know what images have.
func ImageEntrypointRefused(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, ofImage(b.Images.Busybox))),
		http.StatusBadRequest, "INVALID_REQUEST_BODY", "imageEntrypoint: must not be true on Kubernetes", "give the entrypoint")
}

// loadProgram gives the engine an image with nothing but the program words, and takes it away at
// the end of the test, once its sandboxes have ended.
func (s *Service) loadProgram(t *testing.T, name string, entrypoint, command []string) {
	t.Helper()
	program, err := os.ReadFile(Build(t, wordsProgram))
	if err != nil {
		t.Fatal(err)
	}
	layer := archiveOf(t, "words", program)
	digest := sha256.Sum256(layer)
	settings := map[string]any{"Entrypoint": entrypoint, "Cmd": command, "Env": []string{"HOME=/"}}
	config := Encode(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": settings,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}},
	})
	manifest := Encode(t, []any{map[string]any{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	archive := archiveOf(t, "layer.tar", layer, "config.json", []byte(config), "manifest.json", []byte(manifest))
	got := s.Send(t, http.MethodPost, "/v1/images/load", string(archive), "Content-Type", "application/x-tar")
	if got.Status != http.StatusOK {
		t.Fatalf("the load of %s: %s", name, got)
	}
	t.Cleanup(func() {
		path := "/v1/images/" + strings.ReplaceAll(name, "/", "%2F")
		if got := s.Send(t, http.MethodDelete, path, ""); got.Status != http.StatusNoContent {
			t.Errorf("the removal of %s: %s", name, got)
		}
	})
}

// archiveOf returns a tar archive of files that may be executed, which are pairs of a name and a
// content.
func archiveOf(t *testing.T, files ...any) []byte {
	t.Helper()
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for i := 0; i < len(files); i += 2 {
		content := files[i+1].([]byte)
		err := writer.WriteHeader(&tar.Header{Name: files[i].(string), Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = writer.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}
