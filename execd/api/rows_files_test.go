package api_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	gen "sandbox.internal/clients/go/execd"
)

func TestRowsOfFileInfo(t *testing.T) {
	t.Parallel()
	d := start(t)
	file := write(t, filepath.Join(t.TempDir(), "file"), "content")
	must(t, os.Chmod(file, 0o640))
	info := object(d.object(t, "GET", "/files/info"+query(file), "")[file].(map[string]any))
	t.Run("row execd/file/path", func(t *testing.T) { info.wantString(t, "path", file) })
	t.Run("row execd/file/size", func(t *testing.T) { info.wantNumber(t, "size", 7, 7) })
	t.Run("row execd/file/modified_at", func(t *testing.T) { info.wantTime(t, "modified_at") })
	t.Run("row execd/file/created_at", func(t *testing.T) { info.wantTime(t, "created_at") })
	t.Run("row execd/file/mode", func(t *testing.T) { info.wantNumber(t, "mode", 640, 640) })
	ls := d.run(t, gen.CommandRequest{Command: "stat -c '%U %G' " + file}).all(1)
	owner, group, _ := strings.Cut(strings.TrimSpace(joined(ls, "stdout")), " ")
	t.Run("row execd/file/owner", func(t *testing.T) { info.wantString(t, "owner", owner) })
	t.Run("row execd/file/group", func(t *testing.T) { info.wantString(t, "group", group) })
}

func TestRowsOfFileOperations(t *testing.T) {
	t.Parallel()
	d := start(t)
	file := func(t *testing.T, content string) string {
		return write(t, filepath.Join(t.TempDir(), "a.txt"), content)
	}
	gone := func(t *testing.T, path string) {
		t.Helper()
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", path, err)
		}
	}
	mode := func(t *testing.T, path string) os.FileMode {
		t.Helper()
		info, err := os.Stat(path)
		must(t, err)
		return info.Mode().Perm()
	}
	t.Run("row execd/operations/GET /files/info", func(t *testing.T) {
		one, two := file(t, "1"), file(t, "22")
		got := d.object(t, "GET", "/files/info"+query(one)+"&"+query(two)[1:], "")
		if len(got) != 2 || got[one] == nil || got[two] == nil {
			t.Errorf("got %v", got)
		}
	})
	t.Run("row execd/operations/DELETE /files", func(t *testing.T) {
		one, two := file(t, "1"), file(t, "2")
		answer{on: d, target: "DELETE /files" + query(filepath.Dir(one)), status: 400, code: "INVALID_REQUEST_BODY"}.check(t)
		d.empty(t, "DELETE", "/files"+query(one)+"&"+query(two)[1:], "")
		gone(t, one)
		gone(t, two)
	})
	t.Run("row execd/operations/POST /files/permissions", func(t *testing.T) {
		path := file(t, "x")
		d.empty(t, "POST", "/files/permissions", fmt.Sprintf(`{%q:{"mode":600}}`, path))
		if got := mode(t, path); got != 0o600 {
			t.Errorf("the mode is %o", got)
		}
	})
	t.Run("row execd/permission/owner group mode", func(t *testing.T) {
		path := file(t, "x")
		d.empty(t, "POST", "/files/permissions", fmt.Sprintf(`{%q:{"owner":"65534","group":"65533","mode":751}}`, path))
		var stat unix.Stat_t
		must(t, unix.Stat(path, &stat))
		if stat.Uid != 65534 || stat.Gid != 65533 || stat.Mode&0o7777 != 0o751 {
			t.Errorf("the owner is %d, the group %d, the mode %o", stat.Uid, stat.Gid, stat.Mode&0o7777)
		}
	})
	t.Run("row execd/operations/POST /files/mv", func(t *testing.T) {
		source := file(t, "moved")
		target := filepath.Join(t.TempDir(), "b.txt")
		answer{on: d, target: "POST /files/mv", body: fmt.Sprintf(`[{"src":%q,"dest":%q}]`, source, filepath.Dir(target)+"/none/b.txt"),
			status: 404, code: "FILE_NOT_FOUND"}.check(t)
		d.empty(t, "POST", "/files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, source, target))
		if got := read(t, target); got != "moved" {
			t.Errorf("the target holds %q", got)
		}
		gone(t, source)
	})
	t.Run("row execd/operations/GET /files/search", func(t *testing.T) {
		dir := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(dir, "deep/er"), 0o755))
		write(t, filepath.Join(dir, "deep/er/test_a.py"), "")
		write(t, filepath.Join(dir, "b.txt"), "")
		for pattern, want := range map[string]string{"**/*.py": "test_a.py", "*.txt": "b.txt", "test_*.py": "test_a.py"} {
			response, data := d.ask(t, "GET", "/files/search"+query(dir)+"&pattern="+pattern, "")
			if response.StatusCode != http.StatusOK || strings.Count(string(data), `"path"`) != 1 || !bytes.Contains(data, []byte(want)) {
				t.Errorf("%s: %d %s", pattern, response.StatusCode, data)
			}
		}
		if _, data := d.ask(t, "GET", "/files/search"+query(dir), ""); !bytes.Contains(data, []byte("b.txt")) || !bytes.Contains(data, []byte("test_a.py")) {
			t.Errorf("without a pattern: %s", data)
		}
	})
	t.Run("row execd/operations/POST /files/replace", func(t *testing.T) {
		path := file(t, "one two one")
		must(t, os.Chmod(path, 0o640))
		d.empty(t, "POST", "/files/replace", fmt.Sprintf(`{%q:{"old":"one","new":"1"}}`, path))
		if got := read(t, path); got != "1 two 1" || mode(t, path) != 0o640 {
			t.Errorf("the file holds %q, its mode is %o", got, mode(t, path))
		}
	})
	t.Run("row execd/operations/POST /files/upload", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "new/file")
		var form bytes.Buffer
		writer := multipart.NewWriter(&form)
		must(t, writer.WriteField("metadata", fmt.Sprintf(`{"path":%q,"mode":600}`, path)))
		part, err := writer.CreateFormFile("file", "file")
		must(t, err)
		_, err = part.Write([]byte("uploaded\x00bytes"))
		must(t, err)
		must(t, writer.Close())
		if got := string(body200(t)(d.client.UploadFilesWithBody(t.Context(), nil, writer.FormDataContentType(), &form))); strings.TrimSpace(got) != "{}" {
			t.Errorf("the answer is %s", got)
		}
		if got := read(t, path); got != "uploaded\x00bytes" || mode(t, path) != 0o600 {
			t.Errorf("the file holds %q, its mode is %o", got, mode(t, path))
		}
	})
	t.Run("row execd/operations/GET /files/download", func(t *testing.T) {
		path := file(t, "0123456789")
		response, err := d.client.DownloadFile(t.Context(), &gen.DownloadFileParams{Path: path, Range: new("bytes=2-4")})
		must(t, err)
		defer response.Body.Close()
		data := make([]byte, 3)
		_, err = response.Body.Read(data)
		if h := response.Header; response.StatusCode != http.StatusPartialContent || string(data) != "234" || h.Get("Content-Range") != "bytes 2-4/10" ||
			h.Get("Content-Length") != "3" || h.Get("Content-Disposition") != "attachment; filename=a.txt" {
			t.Errorf("%d %q (%v), headers %v", response.StatusCode, data, err, h)
		}
	})
	t.Run("row execd/operations/POST /directories", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "a/b/c")
		d.empty(t, "POST", "/directories", fmt.Sprintf(`{%q:{"mode":750}}`, dir))
		if got := mode(t, dir); got != 0o750 {
			t.Errorf("the mode is %o", got)
		}
	})
	t.Run("row execd/operations/DELETE /directories", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "a")
		must(t, os.MkdirAll(filepath.Join(dir, "b"), 0o755))
		write(t, filepath.Join(dir, "b/file"), "x")
		d.empty(t, "DELETE", "/directories"+query(dir), "")
		gone(t, dir)
	})
}
