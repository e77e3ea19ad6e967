package e2e_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"sync"
	"testing"

	"sandbox.internal/gen/execd"
)

// forkBomb fills the sandbox with shells that try to become more. All of them belong to the command.
const forkBomb = `bomb() { bomb & bomb & wait; }; bomb`

// TestForkBomb lets a command take every process that the sandbox may have. Nothing of ours may end by that, and what
// cannot be done must say so.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	s := start(t, plan{settings: "[docker]\npids_limit = 64\n"})
	id := s.running(t, limited(request(baseImage, "sleep", "1000"), "1", "256Mi"))
	inside := s.enter(t, id)
	// A process is the same as before if its id and its start are. The first one is process 1, the second the daemon.
	const identities = `cut -d' ' -f1,22 /proc/1/stat /proc/$PPID/stat`
	before := inside.run(t, identities)
	if before.code != 0 || strings.Count(before.stdout, "\n") != 2 {
		t.Fatalf("the processes are %+v", before)
	}
	background := true
	started, err := inside.client.RunCommandWithResponse(t.Context(), execd.CommandRequest{Command: forkBomb, Background: &background})
	if err != nil || started.StatusCode() != http.StatusOK {
		t.Fatalf("the bomb: %v, %v", started, err)
	}
	bomb := started.HTTPResponse.Header.Get("X-Command-ID")

	refused := func() bool {
		response, err := inside.client.RunCommandWithResponse(t.Context(), execd.CommandRequest{Command: "true", Background: &background})
		switch {
		case err != nil:
			t.Errorf("the daemon is gone: %v", err)
		case response.StatusCode() == http.StatusServiceUnavailable:
			contains(t, string(response.Body), "SERVICE_UNAVAILABLE", "processes")
			return true
		case response.StatusCode() != http.StatusOK: // a process had just ended
			t.Errorf("%s: %s", response.Status(), response.Body)
		}
		return false
	}
	eventually(t, "the sandbox has no process left", refused)

	// The daemon goes on with everything that needs no process, and is asked for more at a time than it has processors.
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 5 {
				refused()
				inside.upload(t, "/tmp/uploaded", strings.Repeat("x", 64<<10))
				found, err := inside.client.SearchFilesWithResponse(t.Context(), &execd.SearchFilesParams{Path: "/etc"})
				if err != nil || found.StatusCode() != http.StatusOK {
					t.Errorf("a search: %v, %v", found, err)
					return
				}
			}
		})
	}
	clients.Wait()

	ended, err := inside.client.InterruptCommandWithResponse(t.Context(), &execd.InterruptCommandParams{ID: bomb})
	if err != nil || ended.StatusCode() != http.StatusOK {
		t.Fatalf("the end of the bomb: %v, %v", ended, err)
	}
	eventually(t, "commands run again", func() bool { return !refused() })
	eventually(t, "the bomb has ended", func() bool {
		status, err := inside.client.GetCommandStatusWithResponse(t.Context(), bomb)
		return err == nil && status.JSON200 != nil && !status.JSON200.Running
	})
	if after := inside.run(t, identities); after != before {
		t.Errorf("the processes were %+v and are %+v: one has ended and was started again", before, after)
	}
}

// upload sends a file, which must succeed.
func (b *box) upload(t *testing.T, path, content string) {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part := func(name, text string) {
		field, err := form.CreateFormField(name)
		if err == nil {
			_, err = field.Write([]byte(text))
		}
		if err != nil {
			t.Error(err)
		}
	}
	part("metadata", `{"path":"`+path+`"}`)
	part("file", content)
	if err := form.Close(); err != nil {
		t.Error(err)
	}
	response, err := b.client.UploadFilesWithBodyWithResponse(t.Context(), nil, form.FormDataContentType(), &body)
	if err != nil || response.StatusCode() != http.StatusOK {
		t.Errorf("an upload: %v, %v", response, err)
	}
}
