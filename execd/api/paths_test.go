package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// pathRequest is a request about one path.
type pathRequest struct {
	name   string
	target func(path string) string // method, path and query
	body   func(path string) string
	header map[string]string
}

// pathRequests are all of the requests that name a path, the harmless ones first.
func pathRequests(elsewhere string) []pathRequest {
	inQuery := func(start string) func(string) string {
		return func(path string) string { return start + "path=" + url.QueryEscape(path) }
	}
	always := func(target string) func(string) string { return func(string) string { return target } }
	format := func(format string) func(string) string {
		return func(path string) string { return fmt.Sprintf(format, path) }
	}
	n := 0
	return []pathRequest{
		{name: "info", target: inQuery("GET /files/info?")},
		{name: "download", target: inQuery("GET /files/download?")},
		{name: "search", target: inQuery("GET /files/search?pattern=*&")},
		{name: "list", target: inQuery("GET /directories/list?")},
		{name: "watch", target: inQuery("GET /files/watch?")},
		{name: "cwd", target: always("POST /command"), body: format(`{"command":"true","background":true,"cwd":%q}`)},
		{name: "replace", target: always("POST /files/replace"), body: format(`{%q:{"old":"a","new":"b"}}`)},
		{name: "permissions", target: always("POST /files/permissions"), body: format(`{%q:{"mode":755}}`)},
		{name: "make directory", target: always("POST /directories"), body: format(`{%q:{}}`)},
		{name: "upload", target: always("POST /files/upload"), body: func(path string) string { return upload(path, "x") }, header: formType},
		{name: "move to", target: always("POST /files/mv"), body: func(path string) string {
			return fmt.Sprintf(`[{"src":%q,"dest":%q}]`, filepath.Join(elsewhere, "nothing"), path)
		}},
		{name: "move from", target: always("POST /files/mv"), body: func(path string) string {
			n++
			return fmt.Sprintf(`[{"src":%q,"dest":%q}]`, path, filepath.Join(elsewhere, fmt.Sprint("moved-", n)))
		}},
		{name: "delete file", target: inQuery("DELETE /files?")},
		{name: "delete directory", target: inQuery("DELETE /directories?")},
	}
}

// send sends the request about a path and returns the status and, but for an answer without an end,
// the body.
func (p pathRequest) send(t *testing.T, d *daemon, path string) (int, string) {
	t.Helper()
	method, target, _ := strings.Cut(p.target(path), " ")
	body := ""
	if p.body != nil {
		// Go writes a byte that is not UTF-8, and NUL, in a way of its own.
		body = strings.NewReplacer(`\x00`, `\u0000`, `\xff`, "\xff").Replace(p.body(path))
	}
	request, err := http.NewRequestWithContext(t.Context(), method, d.url+target, strings.NewReader(body))
	must(t, err)
	request.Header.Set("Content-Type", "application/json")
	for name, value := range p.header {
		request.Header.Set(name, value)
	}
	response, err := d.http.Do(request)
	must(t, err)
	defer response.Body.Close()
	if response.Header.Get("Content-Type") == "text/event-stream" {
		return response.StatusCode, ""
	}
	data, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(data)
}

// TestOddPaths asks everything of every odd thing that can be at a path. Nothing may hang, and
// nothing may be our fault.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, asked := range pathRequests(t.TempDir()) {
		t.Run(asked.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, path := range oddThings(t, dir) {
				status, body := asked.send(t, d, path)
				if status >= http.StatusInternalServerError {
					t.Errorf("%s of %q: %d %s", asked.name, strings.TrimPrefix(path, dir), status, body)
				}
			}
		})
	}
}

// oddThings makes odd things and returns their paths, and some that cannot be.
func oddThings(t *testing.T, dir string) []string {
	t.Helper()
	path := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(path("directory"), 0o755))
	write(t, path("file"), "abc")
	must(t, unix.Mkfifo(path("fifo"), 0o644))
	socket, err := net.Listen("unix", path("socket"))
	must(t, err)
	t.Cleanup(func() { socket.Close() })
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(path("device"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5)))) // as /dev/zero
	} else {
		write(t, path("device"), "")
	}
	for name, target := range map[string]string{
		"to-fifo": "fifo", "to-device": "device", "to-directory": "directory", "to-nothing": "nothing", "to-itself": "to-itself", "there": "back", "back": "there",
		"up": "..", "to-socket": "socket",
	} {
		must(t, os.Symlink(target, path(name)))
	}
	paths := []string{
		path("nothing"), path("file/below"), path("fifo/below"), path("socket/below"), path("to-itself/below"), path("to-nothing/below"),
		path(strings.Repeat("n", 256)), path(strings.Repeat("long/", 1000)), path("directory/../../") + "/" + filepath.Base(dir) + "/directory/../nothing",
		path("up/nothing/at/all"), dir + "/directory/", dir + "/file/", dir + "/./directory/.", path("nul") + "\x00", path("no-utf8-\xff"), path("a\nb\r\tc\x1b"), path("ü✓"), path("~nobody"),
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, entry := range entries {
		paths = append(paths, path(entry.Name()))
	}
	return paths
}

// TestNamesThatAreNotUTF8: JSON has one text for both files, and a client must not take one for the
// other.
func TestNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	one, other := write(t, filepath.Join(dir, "a\xfe"), "1"), filepath.Join(dir, "a\xff")
	plain := write(t, filepath.Join(dir, "b"), "3")
	ctx, leave := context.WithTimeout(t.Context(), wait.Patience())
	defer leave()
	watched := d.watch(ctx, t, dir, false)
	watched.file()
	write(t, other, "2")
	if event := watched.file(); event.Type != gen.FileEventTypeCreate || event.RawPath == nil || string(*event.RawPath) != other {
		t.Errorf("the event is %+v", event)
	}
	raw := func() (paths []string) {
		response, err := d.client.ListDirectory(t.Context(), &gen.ListDirectoryParams{Path: dir})
		var infos []gen.FileInfo
		must(t, json.Unmarshal(body(t, response, err), &infos))
		for _, info := range infos {
			if info.RawPath == nil {
				paths = append(paths, info.Path)
			} else {
				paths = append(paths, string(*info.RawPath))
			}
		}
		slices.Sort(paths)
		return paths
	}
	if got := raw(); !slices.Equal(got, []string{one, other, plain}) {
		t.Errorf("listed are %q", got)
	}
	response, err := d.client.DeleteFiles(t.Context(), &gen.DeleteFilesParams{Path: []string{one}})
	body(t, response, err)
	if got := raw(); !slices.Equal(got, []string{other, plain}) {
		t.Errorf("after one was deleted, listed are %q", got)
	}
}

// TestExactPaths: what makes files and directories, and changes them, takes the bytes of a path
// that JSON cannot hold.
func TestExactPaths(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	one, other, directory := filepath.Join(dir, "a\xff"), filepath.Join(dir, "a\xfe"), filepath.Join(dir, "f\xff")
	exact := func(path string) string { return base64.StdEncoding.EncodeToString([]byte(path)) }
	put := func(path, rawPath string) (int, string) {
		t.Helper()
		var data bytes.Buffer
		form := multipart.NewWriter(&data)
		part(t, form, "metadata", "", "", fmt.Sprintf(`{"path":%q,"raw_path":%q,"mode":4755}`, path, rawPath))
		part(t, form, "file", "", "", rawPath)
		must(t, form.Close())
		response, err := d.client.UploadFilesWithBody(t.Context(), nil, form.FormDataContentType(), &data)
		must(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		must(t, err)
		return response.StatusCode, string(text)
	}
	for _, path := range []string{one, other} {
		if status, text := put(dir+"/a\ufffd", exact(path)); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	response, err := d.client.MakeDirectories(t.Context(), gen.PermissionByPath{"/f": {RawPath: new(exact(directory)), Mode: new(1777)}})
	body(t, response, err)
	response, err = d.client.SetPermissions(t.Context(), gen.PermissionByPath{"1": {RawPath: new(exact(one)), Mode: new(2750)},
		"2": {RawPath: new(exact(other)), Mode: new(600)}})
	body(t, response, err)
	for path, mode := range map[string]os.FileMode{one: 0o750 | os.ModeSetgid, other: 0o600, directory: 0o777 | os.ModeSticky | os.ModeDir} {
		info, err := os.Lstat(path)
		must(t, err)
		if info.Mode() != mode || !info.IsDir() && read(t, path) != exact(path) {
			t.Errorf("%q has mode %v", path, info.Mode())
		}
	}
	for _, wrong := range []string{"", "%", exact(one)[1:]} {
		if status, text := put(dir+"/x", wrong); status != http.StatusBadRequest || !strings.Contains(text, "raw_path") {
			t.Errorf("raw_path %q: %d %s", wrong, status, text)
		}
	}
	response, err = d.client.SetPermissions(t.Context(), gen.PermissionByPath{"1": {RawPath: new(exact(one))}, "2": {RawPath: new(exact(one))}})
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("one path by two names: %d", response.StatusCode)
	}
}

// TestPathsOfTheKernel asks the same of what the kernel makes up, as a user who can do no harm.
func TestPathsOfTheKernel(t *testing.T) {
	t.Parallel()
	d := (&child{Unprivileged: true}).start(t, newTransport(t))
	for _, path := range []string{
		"/proc", "/proc/self", "/proc/self/mem", "/proc/self/maps", "/proc/self/fd", "/proc/self/fd/0", "/proc/self/exe", "/proc/self/pagemap",
		"/proc/self/clear_refs", "/proc/self/attr/current", "/proc/self/task", "/proc/1/environ", "/proc/kmsg", "/proc/kcore", "/proc/version", "/proc/sys/kernel", "/proc/sys/vm/drop_caches",
		"/proc/sysrq-trigger", "/proc/nothing", "/sys/kernel/uevent_helper", "/sys/kernel/notes", "/sys/devices/system/cpu/online", "/sys/nothing",
		"/dev", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/tty", "/dev/console", "/dev/ptmx", "/dev/pts", "/dev/mem", "/dev/stdin", "/dev/fd/0", "/dev/nothing",
	} {
		for _, asked := range pathRequests(t.TempDir()) {
			if status, body := asked.send(t, d, path); status >= http.StatusInternalServerError {
				t.Errorf("%s of %s: %d %s", asked.name, path, status, body)
			}
		}
	}
}

// TestDownloadsOfTheKernel are read as they are by any other program, or refused with the reason.
func TestDownloadsOfTheKernel(t *testing.T) {
	t.Parallel()
	d := start(t)
	download := pathRequests("")[1]
	for _, path := range []string{"/proc/version", "/proc/filesystems", "/proc/sys/kernel/hostname", "/sys/devices/system/cpu/online", "/proc/self/cmdline"} {
		if status, body := download.send(t, d, path); status != http.StatusOK || body != read(t, path) || body == "" {
			t.Errorf("%s: %d %q, want %q", path, status, body, read(t, path))
		}
	}
	for path, reason := range map[string]string{
		"/proc/self/mem": "cannot be read", "/proc/kmsg": "has no end", "/dev/zero": "not a regular file", "/proc/self/ns/mnt": "cannot be read",
	} {
		if status, body := download.send(t, d, path); status != http.StatusBadRequest || !strings.Contains(body, reason) {
			t.Errorf("%s: %d %s, want one that says %q", path, status, body, reason)
		}
	}
}
