package e2b_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/execd/e2b"
	"sandbox.internal/test/wait"
)

// line is a line of a cell's answer.
type line map[string]any

// asJSON returns a body.
func asJSON(t testing.TB, body map[string]any) io.Reader {
	t.Helper()
	data, err := json.Marshal(body)
	must(t, err)
	return bytes.NewReader(data)
}

// begin runs a cell, and returns its lines as they come.
func (e *envd) begin(t *testing.T, header http.Header, body map[string]any) (*http.Response, *bufio.Reader) {
	t.Helper()
	request, err := http.NewRequestWithContext(wait.Context(t), "POST", e.url+"/execute", asJSON(t, body))
	must(t, err)
	request.Header.Set(tokenHeader, token)
	maps.Copy(request.Header, header)
	response, err := e.client.Do(request)
	must(t, err)
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(response.Body)
		t.Fatalf("status %d: %s", response.StatusCode, data)
	}
	return response, bufio.NewReader(response.Body)
}

// nextLine returns a line, or nil at the end.
func nextLine(t *testing.T, from *bufio.Reader) line {
	t.Helper()
	text, err := from.ReadBytes('\n')
	if err == io.EOF && len(text) == 0 {
		return nil
	}
	must(t, err)
	if slices.ContainsFunc(text, func(b byte) bool { return b > 0x7e }) {
		t.Errorf("a line is not ASCII: %q", text)
	}
	var decoded line
	if err := json.Unmarshal(text, &decoded); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return decoded
}

// run runs a cell to its end, and returns its lines without those that count and end it.
func (e *envd) run(t *testing.T, body map[string]any) []line {
	t.Helper()
	return e.runWith(t, nil, body)
}

func (e *envd) runWith(t *testing.T, header http.Header, body map[string]any) []line {
	t.Helper()
	_, from := e.begin(t, header, body)
	lines := []line{}
	for {
		decoded := nextLine(t, from)
		if decoded == nil {
			break
		}
		lines = append(lines, decoded)
	}
	lines = slices.DeleteFunc(lines, func(l line) bool { return l["type"] == "keepalive" })
	if len(lines) == 0 || lines[len(lines)-1]["type"] != "end_of_execution" || len(lines[len(lines)-1]) != 1 {
		t.Fatalf("the cell ends with %v", lines)
	}
	return slices.DeleteFunc(lines, func(l line) bool {
		return l["type"] == "end_of_execution" || l["type"] == "number_of_executions"
	})
}

// stdout runs a cell that writes only to its standard output.
func (e *envd) stdout(t *testing.T, header http.Header, body map[string]any) string {
	t.Helper()
	var text strings.Builder
	for _, l := range e.runWith(t, header, body) {
		if l["type"] != "stdout" {
			t.Errorf("%v: the cell says %v", body, l)
			continue
		}
		text.WriteString(l["text"].(string))
	}
	return text.String()
}

// wantLine compares a line with JSON.
func wantLine(t *testing.T, got line, want string) {
	t.Helper()
	data, err := json.Marshal(got)
	must(t, err)
	if string(data) != want {
		t.Errorf("the line is %s, want %s", data, want)
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	response, from := e.begin(t, nil, map[string]any{"code": "x = 1\nprint('aé😀')\nimport sys; print('e', file=sys.stderr, end='')\n'it'"})
	if media := response.Header.Get("Content-Type"); media != "application/x-ndjson" {
		t.Errorf("Content-Type is %q", media)
	}
	got := map[string]string{}
	for l := nextLine(t, from); l != nil; l = nextLine(t, from) {
		data, err := json.Marshal(l)
		must(t, err)
		got[l["type"].(string)] += string(data)
	}
	delete(got, "keepalive")
	if want := map[string]string{
		"number_of_executions": `{"execution_count":1,"type":"number_of_executions"}`,
		"stdout":               `{"text":"aé😀\n","type":"stdout"}`,
		"stderr":               `{"text":"e","type":"stderr"}`,
		"result":               `{"is_main_result":true,"text":"it","type":"result"}`,
		"end_of_execution":     `{"type":"end_of_execution"}`,
	}; !maps.Equal(got, want) {
		t.Errorf("the lines are %q, want %q", got, want)
	}

	// The default context keeps its state; a language of its own name is the same context.
	for _, body := range []map[string]any{{"code": "print(x)"}, {"code": "print(x)", "language": "Python "}} {
		if got := e.stdout(t, nil, body); got != "1\n" {
			t.Errorf("%v: %q", body, got)
		}
	}
	raised := e.run(t, map[string]any{"code": "1/0"})
	if len(raised) != 1 || raised[0]["name"] != "ZeroDivisionError" || raised[0]["value"] != "division by zero" ||
		!strings.Contains(raised[0]["traceback"].(string), "Traceback (most recent call last)\n") {
		t.Errorf("raised is %v", raised)
	}
	if got := e.run(t, map[string]any{"code": ""}); len(got) != 0 {
		t.Errorf("an empty cell says %v", got)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	show := func(raw string) string { return "from IPython.display import display\ndisplay(" + raw + ", raw=True)" }
	for _, test := range []struct{ code, want string }{
		{show(`{"text/plain": "t", "text/html": "<b>ü</b>", "text/markdown": "m", "image/svg+xml": "<svg/>", "image/png": "cA==",
 "image/jpeg": "ag==", "application/pdf": "cGRm", "text/latex": "l", "application/json": {"a": [1, None]}, "application/javascript": "j"}`),
			`{"html":"\u003cb\u003eü\u003c/b\u003e","is_main_result":false,"javascript":"j","jpeg":"ag==","json":{"a":[1,null]},"latex":"l",` +
				`"markdown":"m","pdf":"cGRm","png":"cA==","svg":"\u003csvg/\u003e","text":"t","type":"result"}`},
		{show(`{"e2b/chart": {"type": "bar"}, "e2b/data": {"a": [1]}, "application/x-own": {"k": "é"}}`),
			`{"chart":{"type":"bar"},"data":{"a":[1]},"extra":{"application/x-own":{"k":"é"}},"is_main_result":false,"type":"result"}`},
		{`"double 'it'"`, `{"is_main_result":true,"text":"double 'it'","type":"result"}`},
		{`[1]`, `{"is_main_result":true,"text":"[1]","type":"result"}`},
	} {
		lines := e.run(t, map[string]any{"code": test.code})
		if len(lines) != 1 {
			t.Errorf("%s: %v", test.code, lines)
			continue
		}
		wantLine(t, lines[0], test.want)
	}
}

// TestLongOutput: nothing is lost or cut, however it is divided.
func TestLongOutput(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	got := e.stdout(t, nil, map[string]any{"code": "print('ä€😀' * 100_000)\nfor i in range(20_000): print(i)\nprint('end', end='')"})
	var want strings.Builder
	want.WriteString(strings.Repeat("ä€😀", 100_000) + "\n")
	for i := range 20_000 {
		fmt.Fprintln(&want, i)
	}
	want.WriteString("end")
	if got != want.String() {
		t.Errorf("%d bytes, want %d", len(got), want.Len())
	}
}

func TestEnvironmentOfACell(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	const show = "import os; print(os.environ.get('ONE'), os.environ.get('TWO'))"
	value := "a'b\"c\\d\n$é😀"
	e.stdout(t, nil, map[string]any{"code": "import os; os.environ['ONE'] = 'own'"})
	if got := e.stdout(t, nil, map[string]any{"code": show, "env_vars": map[string]string{"ONE": value, "TWO": "2"}}); got != value+" 2\n" {
		t.Errorf("in the cell: %q", got)
	}
	if got := e.stdout(t, nil, map[string]any{"code": show}); got != "own None\n" {
		t.Errorf("after it: %q", got)
	}
	// A cell that raises sets them back too, and none of this counts as a cell.
	e.run(t, map[string]any{"code": "1/0", "env_vars": map[string]string{"TWO": "3"}})
	if got := e.stdout(t, nil, map[string]any{"code": show + "; print(len(In))"}); got != "own None\n6\n" {
		t.Errorf("after a cell that raised: %q", got)
	}
	response, data := e.do(t, "POST", "/execute", nil, asJSON(t, map[string]any{"code": "", "env_vars": map[string]string{"": "x"}}))
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("a variable without a name: %d %s", response.StatusCode, data)
	}
}

// object answers a request with an object.
func (e *envd) context(t *testing.T, header http.Header, body string) (made struct{ ID, Language, CWD string }) {
	t.Helper()
	response, data := e.do(t, "POST", "/contexts", header, strings.NewReader(body))
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", response.StatusCode, data)
	}
	must(t, json.Unmarshal(data, &made))
	return made
}

func TestContexts(t *testing.T) {
	t.Parallel()
	e, dir := startEnvd(t), t.TempDir()
	must(t, os.Mkdir(dir+"/sub", 0o755))
	byDefault := header(e2b.DefaultDirectoryHeader, dir)
	first := e.context(t, nil, fmt.Sprintf(`{"language":"python","cwd":%q}`, dir))
	second := e.context(t, byDefault, `{}`)
	third := e.context(t, byDefault, `{"cwd":"sub"}`)
	for _, test := range []struct{ id, language, dir, want string }{
		{first.ID, first.Language, first.CWD, dir}, {second.ID, second.Language, second.CWD, dir}, {third.ID, third.Language, third.CWD, dir + "/sub"},
	} {
		if test.language != "python" || test.dir != test.want {
			t.Errorf("made %+v", test)
		}
		if got := e.stdout(t, nil, map[string]any{"code": "import os; print(os.getcwd()); kept = 1", "context_id": test.id}); got != test.want+"\n" {
			t.Errorf("the directory is %q, want %s", got, test.want)
		}
	}
	if got := e.stdout(t, byDefault, map[string]any{"code": "import os; print(os.getcwd(), 'kept' in globals())"}); got != dir+" False\n" {
		t.Errorf("the default context: %q", got)
	}
	_, data := e.do(t, "GET", "/contexts", nil, nil)
	var list []struct{ ID, Language, CWD string }
	must(t, json.Unmarshal(data, &list))
	if len(list) != 4 || !slices.Contains(list, first) || !slices.Contains(list, third) {
		t.Errorf("the contexts are %s", data)
	}

	if response, data := e.do(t, "POST", "/contexts/"+first.ID+"/restart", nil, nil); response.StatusCode != http.StatusOK {
		t.Errorf("restart: %d %s", response.StatusCode, data)
	}
	if got := e.stdout(t, nil, map[string]any{"code": "import os; print(os.getcwd(), 'kept' in globals())", "context_id": first.ID}); got != dir+" False\n" {
		t.Errorf("after the restart: %q", got)
	}
	if response, data := e.do(t, "DELETE", "/contexts/"+first.ID, nil, nil); response.StatusCode != http.StatusOK {
		t.Errorf("delete: %d %s", response.StatusCode, data)
	}
	for _, gone := range []struct{ method, path, body string }{
		{"POST", "/execute", fmt.Sprintf(`{"code":"","context_id":%q}`, first.ID)},
		{"POST", "/contexts/" + first.ID + "/restart", ""}, {"DELETE", "/contexts/" + first.ID, ""},
	} {
		response, data := e.do(t, gone.method, gone.path, nil, strings.NewReader(gone.body))
		if media := response.Header.Get("Content-Type"); response.StatusCode != http.StatusNotFound ||
			!strings.HasPrefix(media, "text/plain") || !strings.Contains(string(data), first.ID) {
			t.Errorf("%s %s: %d, %s: %s", gone.method, gone.path, response.StatusCode, media, data)
		}
	}
}

// TestDirectoryOfCode: code starts where relative paths of files do.
func TestDirectoryOfCode(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	user, err := user.Current()
	must(t, err)
	if got := e.stdout(t, nil, map[string]any{"code": "import os; print(os.getcwd())"}); got != user.HomeDir+"\n" {
		t.Errorf("the directory is %q, want %s", got, user.HomeDir)
	}
}

// TestEndOfTheSandboxCutsACell: an error of the cell would say that its code failed.
func TestEndOfTheSandboxCutsACell(t *testing.T) {
	t.Parallel()
	d := start(t)
	e := &envd{d.url + e2b.Prefix, d.http}
	_, from := e.begin(t, nil, map[string]any{"code": "print('ready', flush=True); import time; time.sleep(600)"})
	for l := nextLine(t, from); l["type"] != "stdout"; l = nextLine(t, from) {
	}
	d.stop()
	rest, err := io.ReadAll(from)
	if err == nil || strings.Contains(string(rest), "error") {
		t.Errorf("behind the end of the sandbox: %q, %v; want an answer that is cut", rest, err)
	}
}

func TestExecuteRefusals(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	for _, test := range []struct{ path, body, says string }{
		{"/execute", `{"code":"","language":"python","context_id":"x"}`, "only one"},
		{"/execute", `{"code":"","language":"cobol"}`, "cobol"},
		{"/execute", `{"code":"","timeout":1}`, "timeout"},
		{"/execute", `{"code":1}`, "code"},
		{"/execute", `{`, "body"},
		{"/contexts", `{"language":"cobol"}`, "cobol"},
		{"/contexts", `{"cwd":"/no/such/directory"}`, "/no/such/directory"},
		{"/contexts", `{"name":"x"}`, "name"},
	} {
		response, data := e.do(t, "POST", test.path, nil, strings.NewReader(test.body))
		if response.StatusCode != http.StatusBadRequest || !strings.Contains(string(data), test.says) {
			t.Errorf("%s %s: %d %s", test.path, test.body, response.StatusCode, data)
		}
	}
}

// TestKeepAliveAndLeaving: a cell that says nothing sends signs of life, and a client that leaves
// interrupts it.
func TestKeepAliveAndLeaving(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	response, from := e.begin(t, nil, map[string]any{"code": "import time\ntry:\n  print(1, flush=True)\n  while True: time.sleep(0.01)\nexcept KeyboardInterrupt: seen = True"})
	begun := false // a keepalive before that is of the cell that waits for its kernel
	for l := nextLine(t, from); ; l = nextLine(t, from) {
		begun = begun || l["type"] == "stdout"
		if begun && l["type"] == "keepalive" {
			wantLine(t, l, `{"type":"keepalive"}`)
			break
		}
	}
	must(t, response.Body.Close())
	if got := e.stdout(t, nil, map[string]any{"code": "print(seen)"}); got != "True\n" {
		t.Errorf("the next cell: %q", got)
	}
}

// TestExecuteActivity: a cell is in the list of operations, with how it ended.
func TestExecuteActivity(t *testing.T) {
	t.Parallel()
	e := startEnvd(t)
	e.run(t, map[string]any{"code": "1/0"})
	wait.Until(t, "the list has the cell", func() bool {
		_, data := (&envd{strings.TrimSuffix(e.url, e2b.Prefix), e.client}).do(t, "GET", "/activity", nil, nil)
		return strings.Contains(string(data), `"kind":"code"`) && strings.Contains(string(data), "ZeroDivisionError")
	})
}
