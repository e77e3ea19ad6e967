package e2b_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/execd/e2b"
)

// wantRefusal checks the error of an operation that does not use Connect.
func wantRefusal(t *testing.T, response *http.Response, data []byte, status int, says string) {
	t.Helper()
	var failed struct {
		Code    int
		Message string
	}
	if err := json.Unmarshal(data, &failed); err != nil {
		t.Errorf("status %d: %q: %v", response.StatusCode, data, err)
		return
	}
	if response.StatusCode != status || failed.Code != status || !strings.Contains(failed.Message, says) {
		t.Errorf("status %d: %s, want %d with %q", response.StatusCode, data, status, says)
	}
}

func at(path string) string { return "/files?path=" + url.QueryEscape(path) }

func TestDownload(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	file := write(t, dir+"/a b.txt", "0123456789")
	response, data := e.do(t, "GET", at(file), header("Accept-Encoding", "gzip"), nil)
	if response.StatusCode != http.StatusOK || string(data) != "0123456789" || response.Header.Get("Content-Encoding") != "" {
		t.Errorf("status %d: %q, %v", response.StatusCode, data, response.Header)
	}
	if got := response.Header.Get("Content-Disposition"); got != `attachment; filename="a b.txt"` {
		t.Errorf("Content-Disposition is %s", got)
	}
	response, data = e.do(t, "GET", at(file), header("Range", "bytes=2-4"), nil)
	if response.StatusCode != http.StatusPartialContent || string(data) != "234" || response.Header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("a range: status %d: %q, %v", response.StatusCode, data, response.Header)
	}
	response, data = e.do(t, "GET", at(file), header("Range", "bytes=20-"), nil)
	wantRefusal(t, response, data, http.StatusRequestedRangeNotSatisfiable, "Range")

	response, data = e.do(t, "GET", at(write(t, dir+"/empty", "")), nil, nil)
	if got := response.Header["Content-Length"]; response.StatusCode != http.StatusOK || len(data) != 0 || len(got) != 1 || got[0] != "0" {
		t.Errorf("an empty file: status %d, %v", response.StatusCode, response.Header)
	}
	response, data = e.do(t, "GET", "/files?path=empty", header(e2b.DefaultDirectoryHeader, dir), nil)
	if response.StatusCode != http.StatusOK {
		t.Errorf("a relative path: status %d: %s", response.StatusCode, data)
	}
	for path, want := range map[string]int{
		at(dir): 400, "/files": 400, at(dir + "/missing"): 404, at(file) + "&username=no-such-user": 401, at(file) + "&username=root": 200,
	} {
		response, data := e.do(t, "GET", path, nil, nil)
		if response.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, response.StatusCode, data, want)
		}
		if want != http.StatusOK {
			wantRefusal(t, response, data, want, "")
		}
	}
}

var octets = header("Content-Type", "application/octet-stream")

// TestUploadAndDownload: bytes come back as they were, with and without a length, and compressed.
func TestUploadAndDownload(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	content := make([]byte, 10<<20)
	_, err := rand.Read(content)
	must(t, err)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err = zip.Write(content)
	must(t, err)
	must(t, zip.Close())
	for name, send := range map[string]struct {
		body   io.Reader
		header http.Header
	}{
		"plain":   {bytes.NewReader(content), octets},
		"chunked": {struct{ io.Reader }{bytes.NewReader(content)}, octets},
		"gzip":    {&packed, header("Content-Type", "application/octet-stream", "Content-Encoding", "gzip")},
	} {
		path := dir + "/new/" + name
		response, data := e.do(t, "POST", at(path)+"&username=nobody", send.header, send.body)
		if want := fmt.Sprintf(`[{"name":%q,"path":%q,"type":"file"}]`, name, path); response.StatusCode != http.StatusOK || strings.TrimSpace(string(data)) != want {
			t.Errorf("%s: status %d: %s, want %s", name, response.StatusCode, data, want)
		}
		wantOwner(t, nobodyID, dir+"/new", path)
		if _, got := e.do(t, "GET", at(path), nil, nil); !bytes.Equal(got, content) {
			t.Errorf("%s: %d other bytes came back", name, len(got))
		}
	}
}

// part is a part of a form, written as undici and httpx do.
func part(boundary, disposition, content string) string {
	return "--" + boundary + "\r\nContent-Disposition: form-data; " + disposition + "\r\nContent-Type: application/octet-stream\r\n\r\n" + content + "\r\n"
}

func TestUploadForm(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	form := header("Content-Type", "multipart/form-data; boundary=b")
	post := func(query string, parts ...string) (*http.Response, []byte) {
		t.Helper()
		return e.do(t, "POST", "/files?username=nobody"+query, form, strings.NewReader(strings.Join(parts, "")+"--b--\r\n"))
	}
	response, data := post("",
		part("b", `name="file"; filename="`+dir+`/x/say %22hi%22; é.txt"`, "one"),
		part("b", `name="other"; filename="ignored"`, "ignored"),
		part("b", `name="file"; filename="`+dir+`/back\\slash"`, ""),
		part("b", `name="file"; filename=`+dir+`/plain; filename*=UTF-8''`+dir+`/%C3%BC`, "three"))
	names := []string{dir + `/x/say "hi"; é.txt`, dir + `/back\slash`, dir + "/ü"}
	var answer []struct{ Name, Path, Type string }
	must(t, json.Unmarshal(data, &answer))
	if response.StatusCode != http.StatusOK || len(answer) != len(names) {
		t.Fatalf("status %d: %s", response.StatusCode, data)
	}
	for i, content := range []string{"one", "", "three"} {
		if got := answer[i]; got.Path != names[i] || !strings.HasSuffix(names[i], "/"+got.Name) || got.Type != "file" {
			t.Errorf("entry %d is %v", i, got)
		}
		if got := read(t, names[i]); got != content {
			t.Errorf("%s has %q", names[i], got)
		}
	}
	wantOwner(t, nobodyID, dir+"/x", names[0], names[1])

	response, data = post("&path="+dir+"/one", part("b", `name="file"; filename="/elsewhere"`, "by path"))
	if response.StatusCode != http.StatusOK || read(t, dir+"/one") != "by path" {
		t.Errorf("status %d: %s", response.StatusCode, data)
	}
	if _, data := post(""); strings.TrimSpace(string(data)) != "[]" {
		t.Errorf("no files: %s", data)
	}

	response, data = post("&path="+dir+"/one", part("b", `name="file"`, "1"), part("b", `name="file"`, "2"))
	wantRefusal(t, response, data, 400, "several files")
	response, data = post("", part("b", `name="file"`, "1"))
	wantRefusal(t, response, data, 400, "filename")
	response, data = post("", part("b", `name="file"; filename="`+dir+`"`, "1"))
	wantRefusal(t, response, data, 400, "directory")
	response, data = e.do(t, "POST", "/files", form, strings.NewReader(part("b", `name="file"; filename="`+dir+`/cut"`, "1")))
	wantRefusal(t, response, data, 400, "completely")
	// Between two files, where the cut could be taken for the end of the form.
	response, data = e.do(t, "POST", "/files", form,
		strings.NewReader(part("b", `name="file"; filename="`+dir+`/whole"`, "1")+"--b\r\n"))
	wantRefusal(t, response, data, 400, "completely")
	if _, err := os.Lstat(dir + "/cut"); err == nil {
		t.Error("a file that was cut is there")
	}
}

func TestUploadRefusals(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	file := write(t, dir+"/file", "kept")
	for name, test := range map[string]struct {
		path   string
		header http.Header
		body   string
		status int
		says   string
	}{
		"onto a directory":    {at(dir), octets, "x", 400, "directory"},
		"below a file":        {at(file + "/below"), octets, "x", 400, "not a directory"},
		"without a path":      {"/files", octets, "x", 400, "path"},
		"unknown user":        {at(file) + "&username=no-such-user", octets, "x", 401, "no-such-user"},
		"no type":             {at(file), nil, "x", 400, "Content-Type"},
		"JSON":                {at(file), header("Content-Type", "text/plain"), "{}", 400, "Content-Type"},
		"no boundary":         {at(file), header("Content-Type", "multipart/form-data"), "x", 400, "boundary"},
		"unknown encoding":    {at(file), header("Content-Type", "application/octet-stream", "Content-Encoding", "br"), "x", 400, "br"},
		"not gzip":            {at(file), header("Content-Type", "application/octet-stream", "Content-Encoding", "gzip"), "x", 400, "body"},
		"metadata":            {at(file), header("Content-Type", "application/octet-stream", "X-Metadata-Kind", "x"), "x", 400, "X-Metadata-Kind"},
		"a NUL byte":          {at(file + "\x00"), octets, "x", 400, "NUL"},
		"metadata, many":      {at(file), header("Content-Type", "multipart/form-data; boundary=b", "X-Metadata-Kind", "x"), "x", 400, "X-Metadata-Kind"},
		"gzip without an end": {at(file), header("Content-Type", "application/octet-stream", "Content-Encoding", "gzip"), "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b", 400, "completely"},
	} {
		t.Run(name, func(t *testing.T) {
			response, data := e.do(t, "POST", test.path, test.header, strings.NewReader(test.body))
			wantRefusal(t, response, data, test.status, test.says)
		})
	}
	if got := read(t, file); got != "kept" {
		t.Errorf("the file has %q", got)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestUploadReplaces: the file that an upload replaces keeps its mode, and becomes the user's.
func TestUploadReplaces(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	file := write(t, dir+"/file", "old")
	must(t, os.Chmod(file, 0o755))
	must(t, os.Symlink("file", dir+"/link"))
	response, data := e.do(t, "POST", at(dir+"/link")+"&username=daemon", octets, strings.NewReader("new"))
	if response.StatusCode != http.StatusOK || read(t, file) != "new" {
		t.Errorf("status %d: %s", response.StatusCode, data)
	}
	wantOwner(t, daemonID, file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
}

func TestUploadOntoFullDisk(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	response, data := e.do(t, "POST", at(dir+"/file"), octets, bytes.NewReader(make([]byte, 1<<20)))
	wantRefusal(t, response, data, http.StatusInsufficientStorage, "space")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
