package e2e_test

import (
	"archive/tar"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
)

// saveEmptyImage writes the archive image.tar of an image without files into a directory, and
// leaves the engine without it.
func saveEmptyImage(t *testing.T, directory, name string) {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "empty.tar")
	file, err := os.Create(empty)
	if err == nil {
		err = tar.NewWriter(file).Close()
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	dockerCLI(t, "import", empty, name)
	dockerCLI(t, "save", "--output", filepath.Join(directory, "image.tar"), name)
	dockerCLI(t, "image", "rm", name)
}

// TestImagesOfTheEngine: an archive that was saved is loaded, listed, used, and removed.
func TestImagesOfTheEngine(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	const name = "sandbox-e2e-images/tool:1"
	directory := t.TempDir()
	saveEmptyImage(t, directory, name)
	archive, err := os.ReadFile(filepath.Join(directory, "image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	load := func(body string) conformance.Answer {
		return s.Send(t, http.MethodPost, "/v1/images/load", body, "Content-Type", "application/x-tar")
	}
	named := func(list []lifecycle.StoredImage) int {
		return slices.IndexFunc(list, func(i lifecycle.StoredImage) bool { return slices.Contains(i.Names, name) })
	}
	stored := func() []lifecycle.StoredImage {
		t.Helper()
		listed, err := s.API.ListImagesWithResponse(t.Context())
		if err != nil || listed.JSON200 == nil {
			t.Fatalf("the list: %v, %s", err, listed.Body)
		}
		return listed.JSON200.Items
	}
	var loaded lifecycle.StoredImageList
	if got := load(string(archive)); got.Status != http.StatusOK || json.Unmarshal([]byte(got.Body), &loaded) != nil ||
		len(loaded.Items) != 1 || named(loaded.Items) != 0 {
		t.Fatalf("the load gave %s", got)
	}
	list := stored()
	if at := named(list); at < 0 || list[at].ID != loaded.Items[0].ID || list[at].InUse {
		t.Errorf("the image is listed at %d of %+v", at, list)
	}
	// One that is there needs no registry.
	pulled, err := s.API.PullImageWithResponse(t.Context(), lifecycle.PullImageRequest{Image: lifecycle.Image{URI: name}})
	if err != nil || pulled.JSON200 == nil || pulled.JSON200.ID != loaded.Items[0].ID {
		t.Errorf("the pull gave %s, %v", pulled.Body, err)
	}
	conformance.WantProblem(t, s.Send(t, http.MethodPost, "/v1/images/prune", "{}"), 501, "NOT_IMPLEMENTED", "docker image prune")
	// Docker's own tool would take it for the id.
	short := strings.TrimPrefix(loaded.Items[0].ID, "sha256:")[:16]
	conformance.WantProblem(t, s.Send(t, http.MethodDelete, "/v1/images/"+short, ""), 404, "IMAGE_NOT_FOUND")
	// In use by a container that another program made.
	container := strings.TrimSpace(dockerCLI(t, "create", name, "/none"))
	list = stored()
	if at := named(list); at < 0 || !list[at].InUse {
		t.Errorf("an image in use is listed as %+v", list)
	}
	path := "/v1/images/" + strings.ReplaceAll(name, "/", "%2F")
	conformance.WantProblem(t, s.Send(t, http.MethodDelete, path, ""), 409, "CONFLICT", name)
	dockerCLI(t, "rm", container)
	if got := s.Send(t, http.MethodDelete, path, ""); got.Status != http.StatusNoContent {
		t.Errorf("the removal gave %s", got)
	}
	if at := named(stored()); at >= 0 {
		t.Error("the image is still there")
	}
	conformance.WantProblem(t, s.Send(t, http.MethodDelete, path, ""), 404, "IMAGE_NOT_FOUND", name)
	if got := load(string(archive)); got.Status != http.StatusOK {
		t.Errorf("a second load gave %s", got)
	}
	dockerCLI(t, "tag", name, "sandbox-e2e-images/other:1")
	if got := s.Send(t, http.MethodDelete, "/v1/images/"+loaded.Items[0].ID, ""); got.Status != http.StatusNoContent {
		t.Errorf("the removal of an id with two names gave %s", got)
	}
	if at := named(stored()); at >= 0 {
		t.Error("the image is still there, after a removal by id")
	}
	conformance.WantProblem(t, s.Send(t, http.MethodDelete, "/v1/images/%20", ""), 404, "IMAGE_NOT_FOUND")
	conformance.WantProblem(t, load("no archive"), 400, "INVALID_REQUEST_BODY", "archive")
	// Cut within a block: Docker takes one that is cut between two for a complete one of an older
	// format, and keeps an image without a name.
	conformance.WantProblem(t, load(string(archive[:700])), 400, "INVALID_REQUEST_BODY", "archive")
	conformance.WantProblem(t, s.Send(t, http.MethodPost, "/v1/images/pull", `{"image":{"uri":"127.0.0.1:1/no/such:image"}}`),
		400, "IMAGE_PULL_ERROR", "connection refused")
	conformance.WantProblem(t, s.Send(t, http.MethodPost, "/v1/images/prune", ""), 501, "NOT_IMPLEMENTED", "Docker Engine")
}
