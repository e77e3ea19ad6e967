package api_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
)

func TestDownloadRanges(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	digits := write(t, filepath.Join(dir, "digits.txt"), "0123456789")
	empty := write(t, filepath.Join(dir, "empty.txt"), "")
	tests := []struct {
		path   string
		header string
		status int
		want   string
		place  string // Content-Range
	}{
		{digits, "", 200, "0123456789", ""},
		{digits, "bytes=0-3", 206, "0123", "bytes 0-3/10"},
		{digits, "bytes=9-9", 206, "9", "bytes 9-9/10"},
		{digits, "bytes=4-", 206, "456789", "bytes 4-9/10"},
		{digits, "bytes=-3", 206, "789", "bytes 7-9/10"},
		{digits, "bytes=8-100", 206, "89", "bytes 8-9/10"},
		{digits, "bytes=-100", 206, "0123456789", "bytes 0-9/10"},
		{digits, "bytes=0-1,4-5", 200, "0123456789", ""},
		{digits, "lines=0-1", 200, "0123456789", ""},
		{digits, "bytes=10-", 416, "", "bytes */10"},
		{digits, "bytes=5-2", 416, "", "bytes */10"},
		{digits, "bytes=a-b", 416, "", "bytes */10"},
		{digits, "bytes=-0", 416, "", "bytes */10"},
		{digits, "nonsense", 416, "", "bytes */10"},
		{empty, "", 200, "", ""},
		{empty, "bytes=0-", 200, "", ""},
		{empty, "bytes=-5", 200, "", ""},
		{empty, "bytes=-0", 416, "", "bytes */0"},
	}
	for _, test := range tests {
		t.Run(filepath.Base(test.path)+" "+test.header, func(t *testing.T) {
			t.Parallel()
			params := &gen.DownloadFileParams{Path: test.path}
			if test.header != "" {
				params.Range = &test.header
			}
			response, err := d.client.DownloadFile(t.Context(), params)
			must(t, err)
			defer response.Body.Close()
			data, err := io.ReadAll(response.Body)
			must(t, err)
			if response.StatusCode != test.status || response.Header.Get("Content-Range") != test.place {
				t.Fatalf("status %d, Content-Range %q", response.StatusCode, response.Header.Get("Content-Range"))
			}
			if test.status == http.StatusRequestedRangeNotSatisfiable {
				return
			}
			if string(data) != test.want || response.Header.Get("Content-Length") != fmt.Sprint(len(test.want)) {
				t.Errorf("got %q with Content-Length %s, want %q", data, response.Header.Get("Content-Length"), test.want)
			}
			if got := response.Header.Get("Content-Disposition"); got != "attachment; filename="+filepath.Base(test.path) {
				t.Errorf("Content-Disposition is %q", got)
			}
		})
	}
}

// TestResumedDownloadIsNeverAMixture: a range that belongs to an older file gets all of the new
// one.
func TestResumedDownloadIsNeverAMixture(t *testing.T) {
	t.Parallel()
	d := start(t)
	path := write(t, filepath.Join(t.TempDir(), "file"), "old content")
	long := time.Unix(1e9, 0)
	must(t, os.Chtimes(path, long, long))
	response, err := d.client.DownloadFile(t.Context(), &gen.DownloadFileParams{Path: path})
	body(t, response, err)
	tag := response.Header.Get("ETag")
	resume := func() (int, string) {
		response, err := d.client.DownloadFile(t.Context(), &gen.DownloadFileParams{Path: path, Range: new("bytes=4-"), IfRange: &tag})
		must(t, err)
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		must(t, err)
		return response.StatusCode, string(data)
	}
	if status, data := resume(); status != http.StatusPartialContent || data != "content" {
		t.Errorf("unchanged: status %d, %q", status, data)
	}
	// Size and modification time are those of the old content.
	for name, change := range map[string]func(){
		"written over": func() { write(t, path, "NEW CONTENT") },
		"replaced":     func() { must(t, os.Rename(write(t, path+".new", "NEW CONTENT"), path)) },
	} {
		change()
		must(t, os.Chtimes(path, long, long))
		if status, data := resume(); status != http.StatusOK || data != "NEW CONTENT" {
			t.Errorf("%s: status %d, %q", name, status, data)
		}
	}
	write(t, path, "another content")
	if status, data := resume(); status != http.StatusOK || data != "another content" {
		t.Errorf("changed: status %d, %q", status, data)
	}
}

// TestDownloadOfWhatTheKernelMakesUp: such files say that they are empty.
func TestDownloadOfWhatTheKernelMakesUp(t *testing.T) {
	t.Parallel()
	d := start(t)
	response, err := d.client.DownloadFile(t.Context(), &gen.DownloadFileParams{Path: "/proc/version"})
	if got, want := string(body(t, response, err)), read(t, "/proc/version"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
