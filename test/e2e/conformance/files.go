package conformance

import (
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/clients/go/execd"
)

// testFilesThroughExecd sends a file into a sandbox, uses it there, and fetches it again.
func testFilesThroughExecd(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	inside := s.Enter(t, s.Running(t, s.Idle()))
	content := strings.Repeat("a line of some length\n", 10_000)
	inside.Upload(t, "/tmp/directory/note", content)
	inside.Want(t, "wc -l </tmp/directory/note", "10000\n")
	found, err := inside.Client.SearchFilesWithResponse(t.Context(),
		&execd.SearchFilesParams{Path: "/tmp/directory"})
	if err != nil || found.StatusCode() != http.StatusOK ||
		!strings.Contains(string(found.Body), "/tmp/directory/note") {
		t.Errorf("a search: %v, %s", err, found.Body)
	}
	back, err := inside.Client.DownloadFileWithResponse(t.Context(),
		&execd.DownloadFileParams{Path: "/tmp/directory/note"})
	if err != nil || back.StatusCode() != http.StatusOK || string(back.Body) != content {
		t.Errorf("a download: %v, %d bytes", err, len(back.Body))
	}
}
