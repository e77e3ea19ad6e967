package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// part adds one part to a form; a file name is left out when it is empty.
func part(t *testing.T, form *multipart.Writer, name, filename, digest, content string) {
	t.Helper()
	disposition := fmt.Sprintf("form-data; name=%q", name)
	if filename != "" {
		disposition += fmt.Sprintf("; filename=%q", filename)
	}
	header := textproto.MIMEHeader{"Content-Disposition": {disposition}}
	if digest != "" {
		header.Set("Repr-Digest", digest)
	}
	out, err := form.CreatePart(header)
	must(t, err)
	_, err = io.WriteString(out, content)
	must(t, err)
}

func TestUploadPairs(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	want := map[string]string{"a.txt": "first", "new/directory/b.bin": "\x00\xff\r\n--b--", "empty": ""}
	var data bytes.Buffer
	form := multipart.NewWriter(&data)
	for name, content := range want {
		// Clients of the field give the metadata a file name.
		part(t, form, "metadata", map[bool]string{true: "metadata.json"}[name == "a.txt"], "",
			fmt.Sprintf(`{"path":%q,"mode":640}`, filepath.Join(dir, name)))
		part(t, form, "file", filepath.Base(name), digestOf(content), content)
	}
	must(t, form.Close())
	response, err := d.client.UploadFilesWithBody(t.Context(), nil, form.FormDataContentType(), &data)
	body(t, response, err)
	if digest := response.Header.Get("Repr-Digest"); digest != "" {
		t.Errorf("three files have the one digest %q", digest)
	}
	for name, content := range want {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		must(t, err)
		if got := read(t, path); got != content || info.Mode().Perm() != 0o640 {
			t.Errorf("%s holds %q with mode %o", name, got, info.Mode().Perm())
		}
	}
}

// TestModeZero: it takes every permission away, wherever it can be given; one that is left out
// changes nothing.
func TestModeZero(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	mode := func(name string) os.FileMode {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		return info.Mode().Perm()
	}
	put := func(metadata string) {
		t.Helper()
		var data bytes.Buffer
		form := multipart.NewWriter(&data)
		part(t, form, "metadata", "", "", metadata)
		part(t, form, "file", "", "", "content")
		must(t, form.Close())
		response, err := d.client.UploadFilesWithBody(t.Context(), nil, form.FormDataContentType(), &data)
		body(t, response, err)
	}
	file, directory := filepath.Join(dir, "file"), filepath.Join(dir, "directory")
	for _, step := range []struct {
		name string
		do   func()
		of   string
		want os.FileMode
	}{
		{"upload", func() { put(fmt.Sprintf(`{"path":%q,"mode":0}`, file)) }, "file", 0},
		{"upload over it", func() { put(fmt.Sprintf(`{"path":%q}`, file)) }, "file", 0},
		{"permissions", func() {
			response, err := d.client.SetPermissions(t.Context(), gen.PermissionByPath{file: {Mode: new(600)}})
			body(t, response, err)
		}, "file", 0o600},
		{"permissions that name no mode", func() {
			response, err := d.client.SetPermissions(t.Context(), gen.PermissionByPath{file: {Owner: new("root")}})
			body(t, response, err)
		}, "file", 0o600},
		{"permissions of 0", func() {
			response, err := d.client.SetPermissions(t.Context(), gen.PermissionByPath{file: {Mode: new(0)}})
			body(t, response, err)
		}, "file", 0},
		{"directory", func() {
			response, err := d.client.MakeDirectories(t.Context(), gen.PermissionByPath{directory: {Mode: new(0)}})
			body(t, response, err)
		}, "directory", 0},
	} {
		step.do()
		if got := mode(step.of); got != step.want {
			t.Errorf("%s: mode %o, want %o", step.name, got, step.want)
		}
	}
}

func TestUploadDigest(t *testing.T) {
	t.Parallel()
	d := start(t)
	const content = "the content"
	tests := []struct {
		name, header, part string
		status             int
	}{
		{"none", "", "", http.StatusOK},
		{"of the request", digestOf(content), "", http.StatusOK},
		{"of the part", "", digestOf(content), http.StatusOK},
		{"wrong in the request", digestOf("other"), "", http.StatusBadRequest},
		{"wrong in the part", "", digestOf("other"), http.StatusBadRequest},
		{"no digest at all", "sha-256=:x:", "", http.StatusBadRequest},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			var data bytes.Buffer
			form := multipart.NewWriter(&data)
			part(t, form, "metadata", "", "", fmt.Sprintf(`{"path":%q}`, path))
			part(t, form, "file", "", test.part, content)
			must(t, form.Close())
			params := &gen.UploadFilesParams{}
			if test.header != "" {
				params.ReprDigest = &test.header
			}
			response, err := d.client.UploadFilesWithBody(t.Context(), params, form.FormDataContentType(), &data)
			must(t, err)
			defer response.Body.Close()
			if response.StatusCode != test.status {
				t.Fatalf("status %d, want %d", response.StatusCode, test.status)
			}
			if test.status == http.StatusOK {
				if got := response.Header.Get("Repr-Digest"); got != digestOf(content) || read(t, path) != content {
					t.Errorf("the digest is %q", got)
				}
				return
			}
			nothingIn(t, dir)
		})
	}
}

// nothingIn expects that a refused upload left no trace, not even a temporary file.
func nothingIn(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if must(t, err); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestOneDigestForSeveralFiles is refused at the second file; a digest in the request's header can
// only mean one.
func TestOneDigestForSeveralFiles(t *testing.T) {
	t.Parallel()
	d := start(t)
	path := filepath.Join(t.TempDir(), "second")
	pair := form("metadata", fmt.Sprintf(`{"path":%q}`, filepath.Join(t.TempDir(), "first")), "file", "x",
		"metadata", fmt.Sprintf(`{"path":%q}`, path), "file", "x")
	(answer{on: d, target: "POST /files/upload", body: pair, status: 400, code: "INVALID_REQUEST_BODY",
		header: map[string]string{"Content-Type": formType["Content-Type"], "Repr-Digest": digestOf("x")},
		says:   []string{"header Repr-Digest", "one file"}}).check(t)
	nothingIn(t, filepath.Dir(path))
}

func TestUploadCutShort(t *testing.T) {
	t.Parallel()
	d := start(t)
	whole := form("metadata", `{"path":"PATH"}`, "file", strings.Repeat("x", 1<<20))
	for _, test := range []struct {
		name string
		cut  int // bytes missing
	}{
		{"in the file", 1 << 19},
		{"before the last boundary", len("\r\n--b--\r\n")},
	} {
		for _, announced := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, length announced %v", test.name, announced), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				path := write(t, filepath.Join(dir, "file"), "old")
				full := strings.Replace(whole, "PATH", path, 1)
				rest := full[:len(full)-test.cut]
				length := len(full)
				if !announced { // the request is complete, its form is not
					length = len(rest)
				}
				connection, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
				must(t, err)
				defer connection.Close()
				must(t, connection.SetDeadline(wait.Deadline()))
				fmt.Fprintf(connection, "POST /files/upload HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n%s", length, rest)
				must(t, connection.(*net.TCPConn).CloseWrite())
				got, err := io.ReadAll(connection)
				must(t, err)
				if !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) || !bytes.Contains(got, []byte("INVALID_REQUEST_BODY")) {
					t.Errorf("the answer is %q", got)
				}
				must(t, os.Rename(path, path+".kept"))
				if read(t, path+".kept") != "old" {
					t.Error("half a file took the place of a whole one")
				}
				must(t, os.Remove(path+".kept"))
				nothingIn(t, dir)
			})
		}
	}
}

// TestUploadOfSeveralFilesCutShort: a request that is complete, while its form ends between two
// files, is refused wherever that is.
func TestUploadOfSeveralFilesCutShort(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	pair := func(name string) string {
		return form("metadata", fmt.Sprintf(`{"path":%q}`, filepath.Join(dir, name)), "file", "content")
	}
	const last = "--b--\r\n"
	first := strings.TrimSuffix(pair("first"), last)
	second := strings.TrimSuffix(pair("second"), last)
	content := strings.Index(second, "\r\n\r\n") + len("\r\n\r\n")
	send := func(data string) (int, string) {
		t.Helper()
		response, err := d.client.UploadFilesWithBody(t.Context(), nil, formType["Content-Type"], strings.NewReader(data))
		must(t, err)
		defer response.Body.Close()
		answered, err := io.ReadAll(response.Body)
		must(t, err)
		return response.StatusCode, string(answered)
	}
	for n := range content + 1 {
		if status, answered := send(first + second[:n]); status != http.StatusBadRequest {
			t.Errorf("cut behind %q: status %d, %s", second[:n], status, answered)
		}
	}
	for _, end := range []string{last, "--b--", "--b--\r\nbehind the form"} {
		if status, answered := send(first + second + end); status != http.StatusOK {
			t.Errorf("the end %q: status %d, %s", end, status, answered)
		}
	}
}

// peakMemory returns the most memory that a process ever had, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/status", pid))) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			must(t, err)
			return kib << 10
		}
	}
	t.Fatal("the kernel reports no peak memory")
	return 0
}

// TestLargeUploadAndDownload send more than execd would want to hold in memory.
func TestLargeUploadAndDownload(t *testing.T) {
	t.Parallel()
	const size = 256 << 20
	execd := &child{}
	d := execd.start(t, newTransport(t))
	path := filepath.Join(t.TempDir(), "large")
	before := peakMemory(t, execd.pid)
	head, tail, _ := strings.Cut(form("metadata", fmt.Sprintf(`{"path":%q}`, path), "file", "CONTENT"), "CONTENT")
	sent := sha256.New()
	content := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{}), size), sent)
	response, err := d.client.UploadFilesWithBody(t.Context(), nil, formType["Content-Type"],
		io.MultiReader(strings.NewReader(head), content, strings.NewReader(tail)))
	body(t, response, err)
	want := "sha-256=:" + base64.StdEncoding.EncodeToString(sent.Sum(nil)) + ":"
	if got := response.Header.Get("Repr-Digest"); got != want {
		t.Errorf("the digest is %q, want %q", got, want)
	}
	var stat syscall.Stat_t
	must(t, syscall.Stat(path, &stat))
	if stat.Size != size {
		t.Errorf("the file has %d bytes, want %d", stat.Size, size)
	}
	response, err = d.client.DownloadFile(t.Context(), &gen.DownloadFileParams{Path: path})
	must(t, err)
	defer response.Body.Close()
	received := sha256.New()
	n, err := io.Copy(received, response.Body)
	if must(t, err); n != size || !bytes.Equal(received.Sum(nil), sent.Sum(nil)) {
		t.Errorf("%d bytes came back, or others", n)
	}
	if grown := peakMemory(t, execd.pid) - before; grown > 32<<20 {
		t.Errorf("the daemon grew by %d MiB for %d MiB", grown>>20, size>>20)
	}
}
