package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/api"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/metrics"
	"sandbox.internal/execd/internal/ports"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
)

// conflicts are things in the way, and things in use: a mount point, and a program that runs.
func conflicts(t *testing.T, transport *conform.Transport) []answer {
	dir := t.TempDir()
	mounted := filepath.Join(dir, "mounted")
	must(t, os.Mkdir(mounted, 0o755))
	program := filepath.Join(dir, "sleep")
	must(t, os.WriteFile(program, []byte(read(t, "/bin/sleep")), 0o755))
	one := write(t, filepath.Join(dir, "one"), "1")
	two := write(t, filepath.Join(dir, "two"), "2")
	execd := &child{Tmpfs: map[string]string{mounted: "size=1m"}, Bind: []string{program}}
	d := execd.start(t, transport)
	// The program runs once its name is that of its process.
	without := d.background(t, "exec "+program+" 60")
	wait.Until(t, "the program runs", func() bool {
		running, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range running {
			if target, err := os.Readlink(link); err == nil && target == program {
				return true
			}
		}
		return false
	})
	conflict := func(operation, target, body, path string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 409, code: "CONFLICT", says: []string{path}}
	}
	sent := conflict("uploadFiles", "POST /files/upload", upload(one+"/sub", "x"), one)
	sent.header = formType
	return []answer{
		conflict("moveFiles", "POST /files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, one, two), two),
		conflict("makeDirectories", "POST /directories", fmt.Sprintf(`{%q:{}}`, one), one),
		conflict("deleteFiles", "DELETE /files"+query(program), "", program),
		conflict("deleteDirectories", "DELETE /directories"+query(mounted), "", mounted),
		conflict("writeCommandStdin", "POST /command/"+without+"/stdin?offset=0", "", "no standard input"),
		conflict("replaceInFiles", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"ELF","new":"FLE"}}`, program), program),
		sent,
	}
}

// refusedByTheKernel are requests to a daemon without rights in a directory that is closed to it.
func refusedByTheKernel(t *testing.T, transport *conform.Transport) []answer {
	dir := filepath.Join(t.TempDir(), "closed")
	must(t, os.Mkdir(dir, 0o700))
	file := write(t, filepath.Join(dir, "file"), "x")
	must(t, os.Chmod(dir, 0))
	t.Cleanup(func() { must(t, os.Chmod(dir, 0o700)) })
	d := (&child{Unprivileged: true}).start(t, transport)
	forbidden := func(operation, target, body string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 403, code: "FORBIDDEN", says: []string{dir, "permission denied"}}
	}
	sent := forbidden("uploadFiles", "POST /files/upload", upload(file, "x"))
	sent.header = formType
	return []answer{
		forbidden("getFilesInfo", "GET /files/info"+query(file), ""),
		forbidden("deleteFiles", "DELETE /files"+query(file), ""),
		forbidden("setPermissions", "POST /files/permissions", fmt.Sprintf(`{%q:{"mode":600}}`, file)),
		forbidden("moveFiles", "POST /files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, file, file+"2")),
		forbidden("searchFiles", "GET /files/search"+query(dir), ""),
		forbidden("replaceInFiles", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"x","new":"y"}}`, file)),
		forbidden("downloadFile", "GET /files/download"+query(file), ""),
		forbidden("makeDirectories", "POST /directories", fmt.Sprintf(`{%q:{}}`, dir+"/sub")),
		forbidden("deleteDirectories", "DELETE /directories"+query(dir+"/sub"), ""),
		forbidden("listDirectory", "GET /directories/list"+query(dir), ""),
		forbidden("watchFiles", "GET /files/watch"+query(dir), ""),
		sent,
		// Only root may become another user.
		{on: d, operation: "runCommand", name: "another user", target: "POST /command", body: `{"command":"id","uid":1}`,
			status: 400, code: "INVALID_REQUEST_BODY", says: []string{"uid"}},
	}
}

// usersOfNoNamespace are requests that name a user or a group that the sandbox's user namespace
// does not have. They change nothing.
func usersOfNoNamespace(t *testing.T, transport *conform.Transport) []answer {
	dir := t.TempDir()
	first, second := write(t, filepath.Join(dir, "first"), "x"), write(t, filepath.Join(dir, "second"), "x")
	made, sent := filepath.Join(dir, "made"), filepath.Join(dir, "sent")
	t.Cleanup(func() {
		info, err := os.Stat(first)
		if must(t, err); info.Mode().Perm() != 0o644 {
			t.Errorf("the mode of %s became %v", first, info.Mode())
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
			t.Errorf("%s has %v, %v; want the two files that it had", dir, entries, err)
		}
	})
	d := (&child{Users: 65536}).start(t, transport)
	var answers []answer
	for field, who := range map[string]struct{ id, rule string }{
		"owner": {"65536", "owner: the sandbox's user namespace has no such user"},
		"group": {"4294967294", "group: the sandbox's user namespace has no such group"},
	} {
		refused := func(operation, target, body, path string) answer {
			return answer{on: d, operation: operation, name: field, target: target, body: body,
				status: 400, code: "INVALID_REQUEST_BODY", says: []string{path, who.rule, who.id}}
		}
		upload := refused("uploadFiles", "POST /files/upload", form("metadata", fmt.Sprintf(`{"path":%q,%q:%q}`, sent, field, who.id), "file", "x"), sent)
		upload.header = formType
		answers = append(answers, upload,
			refused("setPermissions", "POST /files/permissions", fmt.Sprintf(`{%q:{"mode":600},%q:{%q:%q}}`, first, second, field, who.id), second),
			refused("makeDirectories", "POST /directories", fmt.Sprintf(`{%q:{%q:%q}}`, made, field, who.id), made))
	}
	return answers
}

// fullDisk are requests that need more than a very small disk holds.
func fullDisk(t *testing.T, transport *conform.Transport) []answer {
	small, crowded, below := t.TempDir(), t.TempDir(), t.TempDir()
	file, directory := write(t, filepath.Join(below, "file"), "x"), filepath.Join(below, "directory")
	must(t, os.Mkdir(directory, 0o755))
	execd := &child{Tmpfs: map[string]string{small: "size=16k", crowded: "nr_inodes=4"}, Full: map[string]string{below: t.TempDir()}}
	d := execd.start(t, transport)
	t.Cleanup(func() { // nothing partial is left, as the daemon sees it
		for dir, want := range map[string]string{small: "a", crowded: "first"} {
			left, err := os.ReadDir(fmt.Sprintf("/proc/%d/root%s", execd.pid, dir))
			if must(t, err); len(left) != 1 || left[0].Name() != want {
				t.Errorf("a full disk holds %v, want %s alone", left, want)
			}
		}
	})
	large := strings.Repeat("x", 64<<10)
	outside := write(t, filepath.Join(t.TempDir(), "large"), large)
	inside := filepath.Join(small, "a")
	response, err := d.client.UploadFilesWithBody(t.Context(), nil, formType["Content-Type"], strings.NewReader(upload(inside, "a")))
	body(t, response, err)
	response, err = d.client.MakeDirectories(t.Context(), gen.PermissionByPath{filepath.Join(crowded, "first"): {}})
	body(t, response, err)
	full := func(operation, target, body, path string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 507, code: "INSUFFICIENT_STORAGE", says: []string{path, "no space left"}}
	}
	sent := full("uploadFiles", "POST /files/upload", upload(small+"/b", large), small+"/b")
	sent.header = formType
	return []answer{
		sent,
		full("replaceInFiles", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"a","new":%q}}`, inside, large), inside),
		full("moveFiles", "POST /files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, outside, small+"/c"), small+"/c"),
		full("setPermissions", "POST /files/permissions", fmt.Sprintf(`{%q:{"mode":600}}`, file), file),
		full("deleteFiles", "DELETE /files"+query(file), "", file),
		full("deleteDirectories", "DELETE /directories"+query(directory), "", directory),
		full("makeDirectories", "POST /directories", fmt.Sprintf(`{%q:{}}`, crowded+"/second/third/fourth"), crowded+"/second"),
	}
}

// withoutToken are all operations but the open one, asked with a wrong token.
func withoutToken(t *testing.T, transport *conform.Transport) []answer {
	d := (&child{Args: []string{"--access-token=open-sesame"}}).start(t, transport)
	doc, err := contract()
	must(t, err)
	var answers []answer
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.OperationID == "ping" {
				continue
			}
			answers = append(answers, answer{
				on: d, operation: operation.OperationID, target: method + " " + strings.NewReplacer("{id}", "x", "{context_id}", "x").Replace(path),
				header: map[string]string{"X-EXECD-ACCESS-TOKEN": "open-sesam"},
				status: 401, code: "UNAUTHORIZED", says: []string{"header X-EXECD-ACCESS-TOKEN"},
			})
		}
	}
	return answers
}

func tooLarge(d *daemon) []answer {
	json := `{"a":"` + strings.Repeat("x", 16<<20) + `"}`
	large := func(operation, target, body, what string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 413, code: "REQUEST_TOO_LARGE", says: []string{what, "at most"}}
	}
	metadata := large("uploadFiles", "POST /files/upload", upload("/"+strings.Repeat("x", 64<<10), "x"), "body/metadata")
	metadata.header = formType
	return []answer{
		large("runCode", "POST /code", json, "body"),
		large("createContext", "POST /code/context", json, "body"),
		large("startTerminal", "POST /pty", json, "body"),
		large("runCommand", "POST /command", json, "body"),
		large("setPermissions", "POST /files/permissions", json, "body"),
		large("moveFiles", "POST /files/mv", json, "body"),
		large("replaceInFiles", "POST /files/replace", json, "body"),
		large("makeDirectories", "POST /directories", json, "body"),
		large("claim", "POST /claim", json, "body"),
		metadata,
	}
}

// notAvailable are requests to an API whose command engine has stopped, on a machine that shows no
// control groups.
func notAvailable(t *testing.T, transport *conform.Transport) []answer {
	commands := command.New(command.Options{LogLimit: 1 << 20, Clock: time.Now})
	commands.Stop(context.Background())
	freezer, err := freeze.New(freeze.Options{})
	must(t, err)
	handler, err := api.New(api.Options{
		Commands: commands,
		Files:    files.New(files.Options{Root: t.TempDir()}),
		Freezer:  freezer,
		Metrics:  metrics.New(metrics.Options{ProcRoot: t.TempDir()}),
		Ports:    ports.New(ports.Options{ProcRoot: t.TempDir()}),
		Logger:   zerolog.Nop(),
	})
	must(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	d := connect(t, server.URL, transport)
	return []answer{
		{on: d, operation: "runCommand", target: "POST /command", body: `{"command":"ls"}`,
			status: 503, code: "SERVICE_UNAVAILABLE", says: []string{"shutting down"}},
		internal(d, "getMetrics", "GET /metrics", ""),
		internal(d, "watchMetrics", "GET /metrics/watch", ""),
		internal(d, "listPorts", "GET /ports", ""),
	}
}

// internal is a failure whose cause the client does not see.
func internal(d *daemon, operation, target, body string) answer {
	return answer{on: d, operation: operation, target: target, body: body, status: 500, code: "RUNTIME_ERROR",
		header: map[string]string{"X-Request-ID": "find-me"}, says: []string{"internal error", "find-me"}}
}

// outOfDescriptors are requests to a daemon that may open no more files.
func outOfDescriptors(t *testing.T, transport *conform.Transport) []answer {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "file"), "x")
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	write(t, filepath.Join(dir, "sub", "file"), "x")
	execd := &child{}
	d := execd.start(t, transport)
	execd.takeDescriptors(t, d)
	sent := internal(d, "uploadFiles", "POST /files/upload", upload(file, "x"))
	sent.header["Content-Type"] = formType["Content-Type"]
	return []answer{
		internal(d, "runCommand", "POST /command", `{"command":"ls"}`),
		internal(d, "startTerminal", "POST /pty", `{}`),
		{on: d, operation: "watchFiles", target: "GET /files/watch" + query(dir), status: 503, code: "SERVICE_UNAVAILABLE", says: []string{dir, "watch"}},
		internal(d, "searchFiles", "GET /files/search"+query(dir), ""),
		internal(d, "listDirectory", "GET /directories/list"+query(dir), ""),
		internal(d, "downloadFile", "GET /files/download"+query(file), ""),
		internal(d, "downloadFile", "GET /files/download"+query("/proc/self/mem"), ""),
		internal(d, "replaceInFiles", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"x","new":"y"}}`, file)),
		internal(d, "deleteDirectories", "DELETE /directories"+query(dir+"/sub"), ""),
		internal(d, "moveFiles", "POST /files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, file, "/dev/shm/execd-test-moved")),
		sent,
	}
}

// atProcessLimit are requests to a daemon that may start no process.
func atProcessLimit(t *testing.T, transport *conform.Transport) []answer {
	// Root has no such limit.
	d := (&child{Unprivileged: true, Alone: true}).start(t, transport)
	refused := func(operation, target, body string) answer {
		return answer{on: d, operation: operation, name: "at the limit of processes", target: target, body: body, status: 503, code: "SERVICE_UNAVAILABLE",
			says: []string{"processes", "DELETE /command"}}
	}
	return []answer{
		refused("runCommand", "POST /command", `{"command":"true"}`),
		refused("runCommand", "POST /command", `{"command":"true","background":true}`),
		refused("startTerminal", "POST /pty", `{}`),
	}
}

// successes are what every operation is for.
func successes(t *testing.T, d *daemon) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	empty := func(response *http.Response, err error) {
		t.Helper()
		if got := strings.TrimSpace(string(body(t, response, err))); got != "{}" {
			t.Errorf("the answer is %q, want an empty object", got)
		}
	}
	ctx := t.Context()

	response, err := d.client.Ping(ctx, nil)
	body(t, response, err)
	response, err = d.client.ListCommands(ctx, nil)
	body(t, response, err)
	empty(d.client.Thaw(ctx, nil)) // nothing is frozen
	empty(d.client.MakeDirectories(ctx, gen.PermissionByPath{path("a/b"): {Mode: new(gen.FileMode(750))}}))
	empty(d.client.UploadFilesWithBody(ctx, nil, formType["Content-Type"], strings.NewReader(upload(path("a/f.txt"), "one two one"))))
	empty(d.client.ReplaceInFiles(ctx, gen.ReplacementByPath{path("a/f.txt"): {Old: "one", New: "three"}}))
	empty(d.client.SetPermissions(ctx, gen.PermissionByPath{path("a/f.txt"): {Mode: new(gen.FileMode(604))}}))
	empty(d.client.MoveFiles(ctx, gen.Moves{{Src: path("a/f.txt"), Dest: path("a/b/g.txt")}}))

	response, err = d.client.GetFilesInfo(ctx, &gen.GetFilesInfoParams{Path: gen.Paths{path("a/b"), path("a/b/g.txt")}})
	var infos gen.FileInfoByPath
	must(t, json.Unmarshal(body(t, response, err), &infos))
	directory, file := infos[path("a/b")], infos[path("a/b/g.txt")]
	if len(infos) != 2 || directory.Type != gen.FileTypeDirectory || directory.Mode != 750 ||
		file.Type != gen.FileTypeFile || file.Mode != 604 || file.Size != 15 || time.Since(file.ModifiedAt) > time.Minute {
		t.Errorf("the facts are %+v", infos)
	}
	for _, list := range []struct {
		operation string
		want      []string
		ask       func() (*http.Response, error)
	}{
		{"search", []string{"a/b/g.txt"}, func() (*http.Response, error) {
			return d.client.SearchFiles(ctx, &gen.SearchFilesParams{Path: dir, Pattern: new("*.txt")})
		}},
		{"search without pattern", []string{"a/b/g.txt"}, func() (*http.Response, error) {
			return d.client.SearchFiles(ctx, &gen.SearchFilesParams{Path: dir})
		}},
		{"search in vain", nil, func() (*http.Response, error) {
			return d.client.SearchFiles(ctx, &gen.SearchFilesParams{Path: dir, Pattern: new("*.go")})
		}},
		{"list", []string{"a"}, func() (*http.Response, error) {
			return d.client.ListDirectory(ctx, &gen.ListDirectoryParams{Path: dir})
		}},
		{"list deeper", []string{"a", "a/b"}, func() (*http.Response, error) {
			return d.client.ListDirectory(ctx, &gen.ListDirectoryParams{Path: dir, Depth: new(2)})
		}},
	} {
		response, err := list.ask()
		var infos gen.FileInfos
		data := body(t, response, err)
		must(t, json.Unmarshal(data, &infos))
		var got []string
		for _, info := range infos {
			got = append(got, strings.TrimPrefix(info.Path, dir+"/"))
		}
		if fmt.Sprint(got) != fmt.Sprint(list.want) || data[0] != '[' {
			t.Errorf("%s: got %s, want %q", list.operation, data, list.want)
		}
	}
	response, err = d.client.DownloadFile(ctx, &gen.DownloadFileParams{Path: path("a/b/g.txt"), Range: new("bytes=6-8")})
	must(t, err)
	part, err := io.ReadAll(response.Body)
	response.Body.Close()
	if must(t, err); response.StatusCode != http.StatusPartialContent || string(part) != "two" || response.Header.Get("Content-Range") != "bytes 6-8/15" {
		t.Errorf("status %d, %q, Content-Range %q", response.StatusCode, part, response.Header.Get("Content-Range"))
	}
	response, err = d.client.DownloadFile(ctx, &gen.DownloadFileParams{Path: path("a/b/g.txt")})
	if got := string(body(t, response, err)); got != "three two three" {
		t.Errorf("the file holds %q", got)
	}
	(answer{on: d, target: "GET /files/download" + query(path("a/b/g.txt")), header: map[string]string{"Range": "bytes=15-"},
		status: 416, code: "RANGE_NOT_SATISFIABLE", says: []string{"header Range", "15"}}).check(t)
	d.put(t, d.run(t, gen.CommandRequest{Command: "cat", Stdin: new(true)}).until("init").Text, "x", 0, true, http.StatusOK)
	empty(d.client.DeleteFiles(ctx, &gen.DeleteFilesParams{Path: gen.Paths{path("a/b/g.txt")}}))
	empty(d.client.DeleteDirectories(ctx, &gen.DeleteDirectoriesParams{Path: gen.Paths{path("a")}}))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	s := d.run(t, gen.CommandRequest{Command: "echo hello"})
	id := s.until("init").Text
	events := s.all(2)
	if got := joined(events, "stdout"); got != "hello\n" {
		t.Errorf("the command says %q", got)
	}
	d.resume(ctx, t, id, 0).all(1)
	if text, _ := d.logs(t, id, nil); text != "hello\n" {
		t.Errorf("the log holds %q", text)
	}
	d.status(t, id)
	empty(d.client.InterruptCommand(ctx, &gen.InterruptCommandParams{ID: id}))
	response, err = d.client.GetMetrics(ctx, nil)
	body(t, response, err)
	response, err = d.client.ListPorts(ctx)
	body(t, response, err)
	if len(d.activity(t, 0).Entries) == 0 {
		t.Error("the list of what clients have done is empty")
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	response, err = d.client.WatchMetrics(ctx)
	d.stream(t, response, err)
	response, err = d.client.WatchActivity(ctx, nil)
	d.stream(t, response, err).entry()
}
