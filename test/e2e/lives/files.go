package lives

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
	inside.Upload(t, "/tmp/folder/note", content)
	inside.Want(t, "wc -l </tmp/folder/note", "10000\n")
	found, err := inside.Client.SearchFilesWithResponse(t.Context(),
		&execd.SearchFilesParams{Path: "/tmp/folder"})
	if err != nil || found.StatusCode() != http.StatusOK ||
		!strings.Contains(string(found.Body), "/tmp/folder/note") {
		t.Errorf("a search: %v, %s", err, found.Body)
	}
	back, err := inside.Client.DownloadFileWithResponse(t.Context(),
		&execd.DownloadFileParams{Path: "/tmp/folder/note"})
	if err != nil || back.StatusCode() != http.StatusOK || string(back.Body) != content {
		t.Errorf("a download: %v, %d bytes", err, len(back.Body))
	}
}
