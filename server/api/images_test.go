package api_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// images records its calls and returns what a test has set.
type images struct {
	mu      sync.Mutex
	err     error
	ref     string
	auth    *lifecycle.ImageAuth
	archive string
	all     bool
}

var _ lifecycle.ImageStore = (*images)(nil)

// imageOfTests is the one image that there is. It has no name.
var imageOfTests = lifecycle.Image{ID: "sha256:" + strings.Repeat("ab", 32), Bytes: 5 << 30, CreatedAt: birth, InUse: true}

func (i *images) Images(context.Context) ([]lifecycle.Image, error) {
	return []lifecycle.Image{imageOfTests}, i.err
}

func (i *images) Pull(_ context.Context, ref string, auth *lifecycle.ImageAuth) (lifecycle.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ref, i.auth = ref, auth
	return imageOfTests, i.err
}

func (i *images) Load(_ context.Context, archive io.Reader) ([]lifecycle.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	content, err := io.ReadAll(archive)
	if i.archive = string(content); err != nil {
		return nil, err
	}
	return []lifecycle.Image{imageOfTests}, i.err
}

func (i *images) Remove(_ context.Context, ref string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ref = ref
	return i.err
}

func (i *images) Prune(_ context.Context, all bool) (lifecycle.PrunedImages, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all = all
	return lifecycle.PrunedImages{FreedBytes: 1 << 40, Recent: 3, Grace: 10 * time.Minute}, i.err
}

func TestImages(t *testing.T) {
	store := &images{}
	s := serveWith(t, api.Options{Backend: newBackend(), Images: store})
	listed, err := s.client.ListImagesWithResponse(t.Context())
	if err != nil || listed.JSON200 == nil || len(listed.JSON200.Items) != 1 || listed.JSON200.Items[0].Bytes != 5<<30 ||
		!listed.JSON200.Items[0].InUse || !strings.Contains(string(listed.Body), `"names":[]`) {
		t.Errorf("the list is %s, %v", listed.Body, err)
	}
	pulled, err := s.client.PullImageWithResponse(t.Context(), gen.PullImageRequest{Image: gen.Image{
		URI: "registry.example/tool:1", Auth: &gen.ImageAuth{Username: "bob", Password: "secret"}}})
	if err != nil || pulled.JSON200 == nil || store.ref != "registry.example/tool:1" || store.auth == nil ||
		*store.auth != (lifecycle.ImageAuth{Username: "bob", Password: "secret"}) {
		t.Errorf("a pull of %q by %+v: %v", store.ref, store.auth, err)
	}
	if strings.Contains(s.log.text(), "secret") {
		t.Error("the password is in the log")
	}
	// Larger than any JSON body may be.
	archive := strings.Repeat("0123456789abcdef", 1<<18)
	loaded, err := s.client.LoadImagesWithBodyWithResponse(t.Context(), "application/x-tar", strings.NewReader(archive))
	if err != nil || loaded.JSON200 == nil || store.archive != archive {
		t.Errorf("%d bytes arrived of %d: %v", len(store.archive), len(archive), err)
	}
	for _, ref := range []string{"registry.example:5000/team/tool:1", "tool@sha256:" + strings.Repeat("0", 64)} {
		removed, err := s.client.RemoveImageWithResponse(t.Context(), ref)
		if err != nil || removed.StatusCode() != http.StatusNoContent || store.ref != ref {
			t.Errorf("%q was removed as %q: %v", ref, store.ref, err)
		}
	}
	for _, all := range []bool{true, false} {
		pruned, err := s.client.PruneImagesWithResponse(t.Context(), &gen.PruneImagesParams{All: &all})
		if err != nil || pruned.JSON200 == nil || pruned.JSON200.FreedBytes != 1<<40 || store.all != all ||
			*pruned.JSON200.Recent != 3 || *pruned.JSON200.GraceSeconds != 600 {
			t.Errorf("prune with all %t: %t, %v", all, store.all, err)
		}
	}
}

// TestArchiveThatIsCutOff: the answer is about the body, and not about what the engine makes of a
// part of an archive.
func TestArchiveThatIsCutOff(t *testing.T) {
	s := serveWith(t, api.Options{Backend: newBackend(), Images: cutImages{&images{}}})
	connection, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(connection, "POST /v1/images/load HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-tar\r\nContent-Length: 100\r\n\r\nhalf")
	if err == nil {
		err = connection.(*net.TCPConn).CloseWrite()
	}
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte("body: ended before its announced end")) {
		t.Errorf("%s %s, %v", response.Status, body, err)
	}
}

// cutImages are those of an engine that takes an archive whose body fails for one that is damaged.
type cutImages struct{ *images }

func (cutImages) Load(_ context.Context, archive io.Reader) ([]lifecycle.Image, error) {
	_, err := io.ReadAll(archive)
	return nil, lifecycle.Invalidf("body: is no archive: %v", err)
}

// TestErrorsOfImages has every answer but those of the whole service.
func TestErrorsOfImages(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"no such image": {&lifecycle.Error{Kind: lifecycle.KindNoImage, Message: "there is no such image"}, 404, "IMAGE_NOT_FOUND"},
		"in use":        {lifecycle.Conflictf("it is in use"), 409, "CONFLICT"},
		"unavailable":   {&lifecycle.Error{Kind: lifecycle.KindUnavailable, Message: "no answer", RetryAfter: 1}, 503, "SERVICE_UNAVAILABLE"},
		"internal":      {io.ErrUnexpectedEOF, 500, "INTERNAL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveWith(t, api.Options{Backend: newBackend(), Images: &images{err: tt.err}})
			removed, err := s.client.RemoveImageWithResponse(t.Context(), "tool")
			if err != nil || removed.StatusCode() != tt.status || !bytes.Contains(removed.Body, []byte(`"`+tt.code+`"`)) {
				t.Errorf("%d %s, %v; want %d %s", removed.StatusCode(), removed.Body, err, tt.status, tt.code)
			}
		})
	}
	refused := &lifecycle.Error{Kind: lifecycle.KindImagePull, Message: "manifest unknown"}
	s := serveWith(t, api.Options{Backend: newBackend(), Images: &images{err: refused}})
	pulled, err := s.client.PullImageWithResponse(t.Context(), gen.PullImageRequest{Image: gen.Image{URI: "none"}})
	if err != nil || pulled.StatusCode() != 400 || !strings.Contains(string(pulled.Body), `"IMAGE_PULL_ERROR"`) || !strings.Contains(string(pulled.Body), "manifest unknown") {
		t.Errorf("a refused pull: %s, %v", pulled.Body, err)
	}
	for name, body := range map[string]string{"no image": `{}`, "no name": `{"image":{"uri":""}}`, "an unknown field": `{"image":{"uri":"a"},"tag":"b"}`} {
		if got := statusOf(t, s, http.MethodPost, "/v1/images/pull", body, ""); got != http.StatusBadRequest {
			t.Errorf("%s: %d", name, got)
		}
	}
	if got := statusOf(t, s, http.MethodPost, "/v1/images/load", "", ""); got != http.StatusBadRequest {
		t.Errorf("an empty archive: %d", got)
	}
}

// TestWithoutImages: a backend without the ability says so, to administrators alone.
func TestWithoutImages(t *testing.T) {
	s := serveWith(t, api.Options{Backend: newBackend(), Keys: keys.Fixed(allKeys()...)})
	for request, body := range map[string]string{
		"GET /v1/images": "", "POST /v1/images/pull": `{"image":{"uri":"a"}}`, "POST /v1/images/load": "an archive",
		"POST /v1/images/prune": "", "DELETE /v1/images/a": "",
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := statusOf(t, s, method, path, body, adminSecret); got != http.StatusNotImplemented {
			t.Errorf("%s: %d, want 501", request, got)
		}
		if got := statusOf(t, s, method, path, body, aliceSecret); got != http.StatusForbidden {
			t.Errorf("%s by a user: %d, want 403", request, got)
		}
	}
}
