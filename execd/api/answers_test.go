package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/openapi/document"
	"sandbox.internal/test/wait"
)

// unprovoked are the answers that the contract declares and no test can bring about, with the
// reason.
var unprovoked = map[string]string{
	// A 503 comes from a request that the daemon cuts off at the end of its grace, together with
	// the connection; or from a command that is started while it stops, which is tested.
	"getCommandLogs 503":    "cut off together with its connection",
	"getCommandStatus 503":  "cut off together with its connection",
	"interruptCommand 503":  "cut off together with its connection",
	"streamCommand 503":     "cut off together with its connection",
	"writeCommandStdin 503": "cut off together with its connection",
	"getMetrics 503":        "cut off together with its connection",
	"watchMetrics 503":      "cut off together with its connection",
	"listCommands 503":      "cut off together with its connection",
	"listPorts 503":         "cut off together with its connection",
	"getHolds 500":          "works on memory",
	"getHolds 503":          "cut off together with its connection",
	"keepAwake 500":         "works on memory",
	"watchIdle 500":         "works on memory",
	"getActivity 500":       "works on memory",
	"getActivity 503":       "cut off together with its connection",
	"watchActivity 500":     "works on memory",
	"watchActivity 503":     "cut off together with its connection",
	"deleteDirectories 503": "cut off together with its connection",
	"deleteFiles 503":       "cut off together with its connection",
	"downloadFile 503":      "cut off together with its connection",
	"getFilesInfo 503":      "cut off together with its connection",
	"listDirectory 503":     "cut off together with its connection",
	"makeDirectories 503":   "cut off together with its connection",
	"moveFiles 503":         "cut off together with its connection",
	"replaceInFiles 503":    "cut off together with its connection",
	"searchFiles 503":       "cut off together with its connection",
	"setPermissions 503":    "cut off together with its connection",
	"uploadFiles 503":       "cut off together with its connection",

	"attachTerminal 500": "every error of a handshake is the client's",
	"attachTerminal 503": "cut off together with its connection",
	"getTerminal 500":    "works on memory",
	"getTerminal 503":    "cut off together with its connection",
	"killTerminal 500":   "works on memory",
	"killTerminal 503":   "cut off together with its connection",
	"listTerminals 500":  "works on memory",
	"listTerminals 503":  "cut off together with its connection",
	"watchFiles 500":     "every error of inotify(7) has a kind",
	"uploadFiles 404":    "needs a directory that is removed while its file arrives",

	"claim 500": "works on memory",
	"claim 503": "cut off together with its connection",

	"freeze 500": "needs a process that does not stop",
	"freeze 503": "cut off together with its connection",
	"thaw 500":   "needs a process that may not be signalled",
	"thaw 503":   "cut off together with its connection",

	"createContext 500":   "every error of a kernel's host is a 503",
	"runCode 500":         "every error of a kernel's host is a 503",
	"interruptCode 500":   "every error of a kernel's host is a 503",
	"deleteContext 500":   "works on memory, and waits",
	"deleteContexts 500":  "works on memory, and waits",
	"getContext 500":      "works on memory",
	"listContexts 500":    "works on memory",
	"streamExecution 500": "works on memory; a log that cannot be read breaks an answer that has begun",
	"interruptCode 503":   "needs a Jupyter Server that dies between two requests",
	"deleteContext 503":   "cut off together with its connection",
	"deleteContexts 503":  "cut off together with its connection",
	"getContext 503":      "cut off together with its connection",
	"listContexts 503":    "cut off together with its connection",
	"streamExecution 503": "cut off together with its connection",

	"getCommandLogs 500":   "works on memory; a log that cannot be read breaks an answer that has begun",
	"getCommandStatus 500": "works on memory",
	"interruptCommand 500": "works on memory",
	"listCommands 500":     "works on memory",

	"writeCommandStdin 500": "every error of a pipe is the end of its command's input",
	"streamCommand 500":     "works on memory; a log that cannot be read breaks an answer that has begun",
	"deleteFiles 500":       "every error of unlink(2) has a kind",
	"getFilesInfo 500":      "every error of statx(2) has a kind",
	"makeDirectories 500":   "every error of mkdir(2) but a failing disk has a kind",
	"setPermissions 500":    "every error of chown(2) and chmod(2) has a kind",
	"setPermissions 409":    "no file system at hand calls a file busy for chown(2) or chmod(2)",
}

// answer is a request and the error that it must get.
type answer struct {
	name      string
	on        *daemon
	operation string
	target    string // method, path and query
	body      string
	header    map[string]string
	twice     string // a header that is sent two times
	status    int
	code      string
	says      []string // what the message must contain: the place and the rule
}

func (a answer) check(t *testing.T) {
	method, target, _ := strings.Cut(a.target, " ")
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience()) // instead of the error there may be a stream that does not end
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, a.on.url+target, strings.NewReader(a.body))
	must(t, err)
	if a.body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, value := range a.header {
		request.Header.Set(name, value)
	}
	if a.twice != "" {
		request.Header[http.CanonicalHeaderKey(a.twice)] = []string{"a", "b"}
	}
	response, err := a.on.http.Do(request)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != a.status {
		start := make([]byte, 1000)
		n, _ := response.Body.Read(start) // all of it may take for ever
		t.Fatalf("status %d, want %d: %s", response.StatusCode, a.status, start[:n])
	}
	data, err := io.ReadAll(response.Body)
	must(t, err)
	var problem map[string]string
	if err := json.Unmarshal(data, &problem); err != nil || len(problem) != 2 {
		t.Fatalf("the body is %s, want a code and a message", data)
	}
	if problem["code"] != a.code {
		t.Errorf("the code is %q, want %q", problem["code"], a.code)
	}
	for _, part := range a.says {
		if !strings.Contains(problem["message"], part) {
			t.Errorf("the message %q does not say %q", problem["message"], part)
		}
	}
	if a.status == http.StatusRequestedRangeNotSatisfiable && !strings.HasPrefix(response.Header.Get("Content-Range"), "bytes */") {
		t.Errorf("Content-Range is %q", response.Header.Get("Content-Range"))
	}
}

// form is a multipart body of name, content pairs.
func form(pairs ...string) string {
	var out strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&out, "--b\r\nContent-Disposition: form-data; name=%q\r\n\r\n%s\r\n", pairs[i], pairs[i+1])
	}
	return out.String() + "--b--\r\n"
}

var formType = map[string]string{"Content-Type": "multipart/form-data; boundary=b"}

func upload(path, content string) string {
	return form("metadata", fmt.Sprintf(`{"path":%q}`, path), "file", content)
}

// TestEveryDeclaredAnswer brings about every pair of operation and status that the contract
// declares, but for a written list.
func TestEveryDeclaredAnswer(t *testing.T) {
	t.Parallel()
	transport := newTransport(t)
	check := func(answers []answer) {
		t.Helper()
		for _, a := range answers {
			name := fmt.Sprintf("%s %d %s", a.operation, a.status, a.name)
			t.Run(name, a.check)
			if !slices.Contains(transport.Seen(), fmt.Sprintf("%s %d", a.operation, a.status)) {
				t.Errorf("%s: the answer came from another operation", name)
			}
		}
	}
	plain := connect(t, start(t).url, transport)
	check(invalidRequests(t, plain))
	check(unknownParameters(t, plain))
	check(missingThings(t, plain))
	check(conflicts(t, transport))
	check(refusedByTheKernel(t, transport))
	check(usersOfNoNamespace(t, transport))
	check(fullDisk(t, transport))
	check(withoutToken(t, transport))
	check(tooLarge(plain))
	check(notAvailable(t, transport))
	check(codeRefusals(t, plain, transport))
	check(terminalRefusals(t, plain, transport))
	check(watchRefusals(t, plain))
	check(outOfDescriptors(t, transport))
	check(atProcessLimit(t, transport))
	check(frozen(t, transport))
	check(claimRefusals(t, plain))
	check(idleRefusals(t, plain, transport))
	successes(t, plain)
	codeSuccesses(t, plain)
	terminalSuccesses(t, plain)
	watchSuccesses(t, plain)
	claimSuccess(t, transport)
	idleSuccesses(t, plain)

	for _, pair := range transport.Unseen() {
		if unprovoked[pair] == "" {
			t.Errorf("declared, and never seen: %s", pair)
		}
	}
	for pair := range unprovoked {
		if slices.Contains(transport.Seen(), pair) {
			t.Errorf("written down as impossible, and seen: %s", pair)
		}
	}
}

func query(path string) string { return "?path=" + url.QueryEscape(path) }

func invalidRequests(t *testing.T, d *daemon) []answer {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "file"), "0123456789")
	never := filepath.Join(dir, "never")
	meta := fmt.Sprintf(`{"path":%q}`, never)
	t.Cleanup(func() {
		if _, err := os.Stat(never); err == nil {
			t.Error("a refused upload left its file")
		}
	})
	id := d.background(t, "echo one")
	d.ended(t, id)
	bad := func(operation, name, target, body string, says ...string) answer {
		return answer{on: d, operation: operation, name: name, target: target, body: body, status: 400, code: "INVALID_REQUEST_BODY", says: says}
	}
	multipart := func(name, body string, says ...string) answer {
		a := bad("uploadFiles", name, "POST /files/upload", body, says...)
		a.header = formType
		return a
	}
	lastEvent := func(id, value string) answer {
		a := bad("streamCommand", value, "GET /command/"+id+"/stream", "", "header Last-Event-ID", value)
		a.header = map[string]string{"Last-Event-ID": value}
		return a
	}
	mode := func(operation, path string) []answer {
		return []answer{
			bad(operation, "malformed", "POST "+path, `{"x":`, "body", "JSON"),
			bad(operation, "unknown field", "POST "+path, `{"/x":{"mod":644}}`, "body//x/mod", "unknown field"),
			bad(operation, "mode that is not octal", "POST "+path, fmt.Sprintf(`{%q:{"mode":689}}`, dir), "mode", "0 to 7"),
			bad(operation, "unknown owner", "POST "+path, fmt.Sprintf(`{%q:{"owner":"nobody-at-all"}}`, dir), "owner", "nobody-at-all"),
		}
	}
	return slices.Concat([]answer{
		bad("getMetrics", "unknown format", "GET /metrics?format=xml", "", "query parameter format", "json"),

		bad("runCommand", "no body", "POST /command", "", "body", "required"),
		bad("runCommand", "malformed", "POST /command", `{"command":"ls`, "body", "JSON"),
		bad("runCommand", "two values", "POST /command", `{"command":"ls"}{}`, "body", "more after"),
		bad("runCommand", "missing field", "POST /command", `{}`, "body/command", "required"),
		bad("runCommand", "unknown field", "POST /command", `{"command":"ls","Timeout":5}`, "body/Timeout", "unknown field"),
		bad("runCommand", "wrong type", "POST /command", `{"command":7}`, "body/command", "string"),
		bad("runCommand", "null", "POST /command", `{"command":null}`, "body/command", "null"),
		bad("runCommand", "empty command", "POST /command", `{"command":""}`, "body/command", "1"),
		bad("runCommand", "blank command", "POST /command", `{"command":" \n"}`, "command", "empty"),
		bad("runCommand", "NUL byte", "POST /command", `{"command":"ls \u0000"}`, "command", "NUL"),
		bad("runCommand", "negative timeout", "POST /command", `{"command":"ls","timeout":-1}`, "body/timeout", "at least 0"),
		bad("runCommand", "endless timeout", "POST /command", `{"command":"ls","timeout":9223372036854775807}`, "body/timeout", "at most"),
		bad("runCommand", "timeout beyond integers", "POST /command", `{"command":"ls","timeout":9223372036854775808}`, "body/timeout"),
		bad("runCommand", "missing cwd", "POST /command", `{"command":"ls","cwd":"/no/such/directory"}`, "cwd", "/no/such/directory"),
		bad("runCommand", "file as cwd", "POST /command", fmt.Sprintf(`{"command":"ls","cwd":%q}`, file), "cwd", "not a directory"),
		bad("runCommand", "bad variable", "POST /command", `{"command":"ls","envs":{"A=B":"c"}}`, "envs", "A=B"),
		bad("runCommand", "negative uid", "POST /command", `{"command":"ls","uid":-1}`, "body/uid", "at least 0"),
		bad("runCommand", "large gid", "POST /command", `{"command":"ls","gid":4294967295}`, "body/gid", "at most"),
		{on: d, operation: "runCommand", name: "content type", target: "POST /command", body: `command=ls`, status: 400,
			header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
			code:   "INVALID_REQUEST_BODY", says: []string{"header Content-Type", "application/json"}},

		{on: d, operation: "ping", name: "two challenges", target: "GET /ping", twice: "X-EXECD-CHALLENGE", status: 400,
			code: "INVALID_REQUEST_BODY", says: []string{"X-EXECD-CHALLENGE"}},

		bad("interruptCommand", "missing id", "DELETE /command", "", "query parameter id", "required"),
		bad("listCommands", "running", "GET /command?running=some", "", "query parameter running", "boolean"),
		bad("getCommandLogs", "cursor", "GET /command/"+id+"/logs?cursor=-2", "", "query parameter cursor", "-1"),
		bad("getCommandLogs", "cursor", "GET /command/"+id+"/logs?cursor=first", "", "query parameter cursor", "integer"),
		lastEvent(id, "first"), lastEvent(id, "-1"), lastEvent(id, "1000"),

		bad("getFilesInfo", "missing path", "GET /files/info", "", "query parameter path", "required"),
		bad("getFilesInfo", "empty path", "GET /files/info?path=", "", "query parameter path"),
		bad("getFilesInfo", "NUL byte", "GET /files/info?path=a%00b", "", "NUL"),
		bad("getFilesInfo", "bad escape", "GET /files/info?path=%zz", "", "query", "%zz"),
		bad("deleteFiles", "directory", "DELETE /files"+query(dir), "", dir, "is a directory"),
		bad("downloadFile", "directory", "GET /files/download"+query(dir), "", dir, "is a directory"),
		bad("downloadFile", "device", "GET /files/download"+query("/dev/null"), "", "/dev/null", "regular file"),
		bad("downloadFile", "path twice", "GET /files/download?path=a&path=b", "", "query parameter path", "only once"),
		bad("searchFiles", "bad pattern", "GET /files/search"+query(dir)+"&pattern=%5B", "", "pattern"),
		bad("searchFiles", "file as root", "GET /files/search"+query(file), "", file, "directory"),
		bad("listDirectory", "file", "GET /directories/list"+query(file), "", file, "directory"),
		bad("listDirectory", "depth", "GET /directories/list"+query(dir)+"&depth=0", "", "query parameter depth", "at least 1"),
		bad("deleteDirectories", "file", "DELETE /directories"+query(file), "", file, "not a directory"),
		bad("deleteDirectories", "root", "DELETE /directories?path=/", "", "must not be removed"),

		bad("moveFiles", "missing dest", "POST /files/mv", `[{"src":"/a"}]`, "body/0/dest", "required"),
		bad("moveFiles", "into itself", "POST /files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, dir, dir+"/sub"), dir),
		bad("moveFiles", "no array", "POST /files/mv", `{}`, "body", "array"),
		bad("replaceInFiles", "empty old", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"","new":"b"}}`, file), "old", "1"),
		bad("replaceInFiles", "missing new", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"a"}}`, file), "new", "required"),
		bad("replaceInFiles", "directory", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"a","new":"b"}}`, dir), dir, "regular file"),

		multipart("no parts", "--b--\r\n", "body", "metadata"),
		multipart("no file part", form("metadata", meta), "file part", never),
		multipart("wrong order", form("file", "x", "metadata", meta), "metadata", "file"),
		multipart("two metadata parts", form("metadata", meta, "metadata", meta), "metadata", never),
		multipart("unknown part", form("meta", meta), "meta"),
		multipart("metadata that is no JSON", form("metadata", `path=/x`, "file", "x"), "body/metadata"),
		multipart("metadata with more behind", form("metadata", meta+`{}`, "file", "x"), "body/metadata"),
		multipart("metadata with an unknown field", form("metadata", `{"path":"/dev/shm/x","size":1}`, "file", "x"), "body/metadata", "size"),
		multipart("metadata with more behind that closes it", form("metadata", meta+`]`, "file", "x"), "body/metadata", "more after"),
		multipart("metadata with a field twice", form("metadata", `{"path":"/dev/shm/x",`+meta[1:], "file", "x"), "body/metadata/path", "only once"),
		multipart("metadata in other letters", form("metadata", `{"Path":"/dev/shm/x"}`, "file", "x"), "body/metadata", "Path"),
		multipart("metadata with a number as path", form("metadata", `{"path":7}`, "file", "x"), "body/metadata/path", "a string", "number"),
		multipart("metadata with a text as mode", form("metadata", meta[:len(meta)-1]+`,"mode":"644"}`, "file", "x"), "body/metadata/mode", "a whole number", "string"),
		multipart("metadata that is no UTF-8", form("metadata", "{\"path\":\"/dev/shm/\xff\"}", "file", "x"), "body/metadata", "UTF-8"),
		multipart("metadata without path", form("metadata", `{"mode":644}`, "file", "x"), "body/metadata/path", "required"),
		multipart("metadata with a bad mode", form("metadata", fmt.Sprintf(`{"path":%q,"mode":999}`, never), "file", "x"), "mode", "0 to 7"),
		multipart("link with a mode", form("metadata", meta[:len(meta)-1]+`,"symlink":true,"mode":644}`, "file", "x"), "mode"),
		multipart("link without a target", form("metadata", meta[:len(meta)-1]+`,"symlink":true}`, "file", ""), "target"),
		multipart("link with a text as its mark", form("metadata", meta[:len(meta)-1]+`,"symlink":"yes"}`, "file", "x"), "body/metadata/symlink"),
		multipart("path of a directory", upload(dir, "x"), dir, "directory"),
		multipart("no boundary in the body", "no parts at all", "body", "metadata"),
		{on: d, operation: "uploadFiles", name: "no boundary", target: "POST /files/upload", body: "x", status: 400, code: "INVALID_REQUEST_BODY",
			header: map[string]string{"Content-Type": "multipart/form-data"}, says: []string{"header Content-Type", "boundary"}},
		{on: d, operation: "uploadFiles", name: "an empty boundary", target: "POST /files/upload", body: "x", status: 400, code: "INVALID_REQUEST_BODY",
			header: map[string]string{"Content-Type": "multipart/form-data; boundary="}, says: []string{"header Content-Type", "boundary"}},
	}, mode("setPermissions", "/files/permissions"), mode("makeDirectories", "/directories"))
}

// unknownParameters asks every operation for something with a parameter that it does not have.
func unknownParameters(t *testing.T, d *daemon) []answer {
	doc, err := document.LoadExecd()
	must(t, err)
	placeholder := regexp.MustCompile(`\{[^}]*\}`)
	var answers []answer
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			answers = append(answers, answer{on: d, operation: operation.OperationID, name: "unknown parameter",
				target: method + " " + placeholder.ReplaceAllString(path, "x") + "?no-such=1", status: 400, code: "INVALID_REQUEST_BODY",
				says: []string{"query parameter no-such", "unknown"}})
		}
	}
	return answers
}

func missingThings(t *testing.T, d *daemon) []answer {
	dir := t.TempDir()
	there := write(t, filepath.Join(dir, "there"), "x")
	gone := filepath.Join(dir, "gone")
	file := func(operation, target, body string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 404, code: "FILE_NOT_FOUND", says: []string{gone}}
	}
	id := func(operation, target string) answer {
		return answer{on: d, operation: operation, target: target, status: 404, code: "NOT_FOUND", says: []string{"no-such-id"}}
	}
	loop := filepath.Join(dir, "dangling")
	must(t, os.Symlink(gone+"/a/b", loop))
	return []answer{
		id("getCommandStatus", "GET /command/status/no-such-id"),
		id("getCommandLogs", "GET /command/no-such-id/logs"),
		id("streamCommand", "GET /command/no-such-id/stream"),
		id("writeCommandStdin", "POST /command/no-such-id/stdin?offset=0"),
		id("interruptCommand", "DELETE /command?id=no-such-id"),
		file("getFilesInfo", "GET /files/info"+query(there)+"&path="+gone, ""),
		file("deleteFiles", "DELETE /files"+query(there)+"&path="+gone, ""),
		file("deleteDirectories", "DELETE /directories"+query(gone), ""),
		file("searchFiles", "GET /files/search"+query(gone), ""),
		file("listDirectory", "GET /directories/list"+query(gone), ""),
		file("downloadFile", "GET /files/download"+query(gone), ""),
		file("setPermissions", "POST /files/permissions", fmt.Sprintf(`{%q:{"mode":600}}`, gone)),
		file("replaceInFiles", "POST /files/replace", fmt.Sprintf(`{%q:{"old":"a","new":"b"}}`, gone)),
		file("moveFiles", "POST /files/mv", fmt.Sprintf(`[{"src":%q,"dest":%q}]`, gone, there+"2")),
		{on: d, operation: "moveFiles", name: "directory of the target", target: "POST /files/mv", status: 404, code: "FILE_NOT_FOUND",
			body: fmt.Sprintf(`[{"src":%q,"dest":%q}]`, there, gone+"/x"), says: []string{gone}},
	}
}
