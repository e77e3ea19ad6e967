package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/execd/config"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/conform"
)

// TestCode is one table for both ways to kernels: those that execd starts itself, and those of a Jupyter Server.
func TestCode(t *testing.T) {
	for name, settings := range map[string]func(t *testing.T) config.Settings{
		"direct": func(*testing.T) config.Settings { return config.Settings{} },
		"server": func(t *testing.T) config.Settings {
			url, token, _ := jupyterServer(t)
			return config.Settings{JupyterHost: url, JupyterToken: token}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startWith(t, settings(t))
			for name, test := range map[string]func(*testing.T, *daemon){
				"variables persist in a context":        variablesPersist,
				"contexts are isolated":                 contextsAreIsolated,
				"stateless cells leak nothing":          statelessLeaksNothing,
				"results have their types":              resultsHaveTheirTypes,
				"what a cell raises is the last event":  raisedIsLast,
				"cells queue in order":                  cellsQueue,
				"an interrupt ends the cell":            interruptEndsTheCell,
				"much output arrives complete":          muchOutput,
				"a cut stream resumes":                  cutStreamResumes,
				"a context is created, read and ended":  contextLife,
				"a killed kernel is told and forgotten": killedKernel,
			} {
				t.Run(name, func(t *testing.T) { test(t, d) })
			}
		})
	}
}

func variablesPersist(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	d.cell(t, id, "x = 41\nprint('set')").ends(t, "set\n")
	events := d.cell(t, id, "x + 1").all(1)
	if got := result(events, "text/plain"); got != `"42"` {
		t.Errorf("result: %s", got)
	}
	if end := last(events); end.Type != "execution_complete" || end.Count != 2 || end.ExecutionTime == nil {
		t.Errorf("last event: %s", end.data)
	}
}

func contextsAreIsolated(t *testing.T, d *daemon) {
	first, second := d.newContext(t, "python"), d.newContext(t, "Python")
	d.cell(t, first, "secret = 1").ends(t, "")
	if end := last(d.cell(t, second, "secret").all(1)); end.Error == nil || end.Error.Ename != "NameError" {
		t.Errorf("last event: %s", end.data)
	}
}

func statelessLeaksNothing(t *testing.T, d *daemon) {
	for range 2 {
		response, err := d.client.RunCode(t.Context(), gen.CodeRequest{Code: "print('y' in globals()); y = 1", Language: new("python")})
		d.stream(t, response, err).ends(t, "False\n")
	}
}

// pixel is a program that shows a PNG of 3 by 2 pixels, made with the standard library alone.
const pixel = `
import struct, zlib
from IPython.display import Image, display, JSON, HTML
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
rows = b"".join(b"\0" + b"\xff\0\0" * 3 for _ in range(2))
png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 2, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
display(Image(data=png)); display(JSON({"a": [1, 12345678901234567890]})); display(HTML("<b>bold</b>"))
`

func resultsHaveTheirTypes(t *testing.T, d *daemon) {
	events := d.cell(t, d.newContext(t, "python"), pixel).all(1)
	var encoded string
	must(t, json.Unmarshal([]byte(result(events, "image/png")), &encoded))
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	must(t, err)
	picture, err := png.Decode(bytes.NewReader(data))
	must(t, err)
	if size := picture.Bounds().Size(); size.X != 3 || size.Y != 2 {
		t.Errorf("the picture is %v", size)
	}
	if got := strings.ReplaceAll(result(events, "application/json"), " ", ""); got != `{"a":[1,12345678901234567890]}` {
		t.Errorf("JSON: %s", got)
	}
	if got := result(events, "text/html"); got != `"\u003cb\u003ebold\u003c/b\u003e"` && got != `"<b>bold</b>"` {
		t.Errorf("HTML: %s", got)
	}
}

func raisedIsLast(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	events := d.cell(t, id, "print('before')\nraise ValueError('bad')").all(1)
	if got := joined(events, "stdout"); got != "before\n" {
		t.Errorf("stdout: %q", got)
	}
	end := last(events)
	if end.Error == nil || end.Error.Ename != "ValueError" || end.Error.Evalue != "bad" || len(end.Error.Traceback) == 0 {
		t.Errorf("last event: %s", end.data)
	}
	d.cell(t, id, "print('after')").ends(t, "after\n")
}

func cellsQueue(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	streams := make([]*stream, 5)
	for i := range streams {
		streams[i] = d.cell(t, id, "import time; time.sleep(0.05); n = globals().get('n', 0) + 1; print(n)")
		streams[i].until("init")
	}
	for i, s := range streams {
		if e := s.until("stdout"); e.Text != strconv.Itoa(i+1) {
			t.Errorf("cell %d ran as number %s", i+1, e.Text)
		}
	}
}

func interruptEndsTheCell(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	running := d.cell(t, id, "import time\nprint('on')\nwhile True: time.sleep(0.01)")
	running.until("stdout")
	body200(t)(d.client.InterruptCode(t.Context(), &gen.InterruptCodeParams{ID: id}))
	if end := running.until("error"); end.Error.Ename != "KeyboardInterrupt" {
		t.Errorf("last event: %s", end.data)
	}
	d.cell(t, id, "print('works')").ends(t, "works\n")
}

func muchOutput(t *testing.T, d *daemon) {
	s := d.cell(t, d.newContext(t, "python"), "for i in range(50000): print(i)")
	s.sparse = true
	var want strings.Builder
	for i := range 50000 {
		want.WriteString(strconv.Itoa(i) + "\n")
	}
	if got := joined(s.all(1), "stdout"); got != want.String() {
		t.Errorf("%d bytes arrived, want %d", len(got), want.Len())
	}
}

func cutStreamResumes(t *testing.T, d *daemon) {
	s := d.cell(t, d.newContext(t, "python"), "import time\nfor i in range(50):\n    print(i, flush=True); time.sleep(0.002)")
	execution := s.response.Header.Get("X-Execution-ID")
	head := []event{s.until("init"), s.until("execution_count"), s.until("stdout")}
	if head[0].Text != execution {
		t.Errorf("init tells %q, the header %q", head[0].Text, execution)
	}
	s.response.Body.Close()
	params := &gen.StreamExecutionParams{LastEventID: new(strconv.FormatInt(last(head).id, 10))}
	response, err := d.client.StreamExecution(t.Context(), execution, params)
	tail := d.stream(t, response, err).all(last(head).id + 1)
	if got := strings.Count(joined(append(head, tail...), "stdout"), "\n"); got != 50 || last(tail).Type != "execution_complete" {
		t.Errorf("%d lines, then %s", got, last(tail).data)
	}
}

func contextLife(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	var got gen.CodeContext
	must(t, json.Unmarshal(body200(t)(d.client.GetContext(t.Context(), id)), &got))
	if got.ID != id || got.Language != "python" {
		t.Errorf("context: %+v", got)
	}
	var listed []gen.CodeContext
	must(t, json.Unmarshal(body200(t)(d.client.ListContexts(t.Context(), &gen.ListContextsParams{Language: "python"})), &listed))
	if len(listed) == 0 {
		t.Error("the context is not listed")
	}
	body200(t)(d.client.DeleteContext(t.Context(), id))
	if status, text := statusAndBody(t)(d.client.GetContext(t.Context(), id)); status != http.StatusNotFound {
		t.Errorf("a deleted context: %d: %s", status, text)
	}
}

func killedKernel(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	s := d.cell(t, id, "import os\nprint(os.getpid(), flush=True)\nimport time; time.sleep(60)")
	pid, err := strconv.Atoi(s.until("stdout").Text)
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	if end := s.until("error"); end.Error.Ename != "KernelDied" {
		t.Errorf("last event: %s", end.data)
	}
	eventually(t, "the context is gone", func() bool {
		status, _ := statusAndBody(t)(d.client.GetContext(t.Context(), id))
		return status == http.StatusNotFound
	})
	d.cell(t, d.newContext(t, "python"), "print('next')").ends(t, "next\n")
}

// codeRefusals are requests about code that must fail, to a daemon with kernels and to one whose Jupyter Server is not there.
func codeRefusals(t *testing.T, d *daemon, transport *conform.Transport) []answer {
	bad := func(operation, name, target, body string, says ...string) answer {
		return answer{on: d, operation: operation, name: name, target: target, body: body, status: 400, code: "INVALID_REQUEST_BODY", says: says}
	}
	missing := func(operation, target, body, what string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 404, code: "NOT_FOUND", says: []string{what}}
	}
	alone := connect(t, startWith(t, config.Settings{JupyterHost: "http://127.0.0.1:1"}).url, transport)
	unavailable := func(operation, target, body string) answer {
		return answer{on: alone, operation: operation, target: target, body: body, status: 503, code: "SERVICE_UNAVAILABLE", says: []string{"no kernel"}}
	}
	id := d.newContext(t, "python")
	event := bad("streamExecution", "an event that is not there", "GET /code/executions/"+d.execution(t, id)+"/stream", "", "Last-Event-ID", "99")
	event.header = map[string]string{"Last-Event-ID": "99"}
	return []answer{
		bad("createContext", "a language without a kernel", "POST /code/context", `{"language":"cobol"}`, "language", "installed are"),
		bad("createContext", "no language", "POST /code/context", `{}`, "body/language"),
		bad("runCode", "no code", "POST /code", `{}`, "body/code"),
		bad("runCode", "an unknown field", "POST /code", `{"code":"1","contxt":{}}`, "body/contxt"),
		bad("runCode", "two languages", "POST /code", `{"code":"1","language":"bash","context":{"language":"python"}}`, "body/language"),
		bad("runCode", "a language that is not the context's", "POST /code", `{"code":"1","context":{"id":"`+id+`","language":"bash"}}`, "context", "python"),
		bad("interruptCode", "no id", "DELETE /code", "", "id"),
		bad("listContexts", "no language", "GET /code/contexts", "", "language"),
		bad("deleteContexts", "no language", "DELETE /code/contexts", "", "language"),
		event,
		missing("runCode", "POST /code", `{"code":"1","context":{"id":"none"}}`, "none"),
		missing("interruptCode", "DELETE /code?id=none", "", "none"),
		missing("getContext", "GET /code/contexts/none", "", "none"),
		missing("deleteContext", "DELETE /code/contexts/none", "", "none"),
		missing("streamExecution", "GET /code/executions/none/stream", "", "none"),
		unavailable("createContext", "POST /code/context", `{"language":"python"}`),
		unavailable("runCode", "POST /code", `{"code":"1"}`),
	}
}

// codeSuccesses calls every operation on code once.
func codeSuccesses(t *testing.T, d *daemon) {
	id := d.newContext(t, "python")
	execution := d.execution(t, id)
	response, err := d.client.StreamExecution(t.Context(), execution, &gen.StreamExecutionParams{})
	d.stream(t, response, err).ends(t, "")
	body200(t)(d.client.InterruptCode(t.Context(), &gen.InterruptCodeParams{ID: id}))
	body200(t)(d.client.GetContext(t.Context(), id))
	body200(t)(d.client.ListContexts(t.Context(), &gen.ListContextsParams{Language: "python"}))
	body200(t)(d.client.DeleteContext(t.Context(), id))
	body200(t)(d.client.DeleteContexts(t.Context(), &gen.DeleteContextsParams{Language: "python"}))
}

// execution runs a cell in a context and returns the execution's id.
func (d *daemon) execution(t *testing.T, id string) string {
	t.Helper()
	s := d.cell(t, id, "1")
	s.all(1)
	return s.response.Header.Get("X-Execution-ID")
}

func TestKilledJupyterServer(t *testing.T) {
	url, token, kill := jupyterServer(t)
	d := startWith(t, config.Settings{JupyterHost: url, JupyterToken: token})
	s := d.cell(t, d.newContext(t, "python"), "print('on', flush=True)\nimport time; time.sleep(60)")
	s.until("stdout")
	kill()
	if end := s.until("error"); end.Error.Ename != "KernelDied" && end.Error.Ename != "KernelUnavailable" {
		t.Errorf("last event: %s", end.data)
	}
	status, text := statusAndBody(t)(d.client.CreateContext(t.Context(), gen.ContextRequest{Language: "python"}))
	if status != http.StatusServiceUnavailable {
		t.Errorf("a context without a server: %d: %s", status, text)
	}
}

// jupyterServer runs a Jupyter Server of the test's own, and returns how to reach and how to kill it.
func jupyterServer(t *testing.T) (url, token string, kill func()) {
	t.Helper()
	path, err := exec.LookPath("jupyter-server")
	if err != nil {
		t.Fatal("jupyter-server is missing: run scripts/kernels.sh")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	home := t.TempDir()
	command := exec.Command(path, "--allow-root", "--no-browser", "--ip=127.0.0.1", "--port="+port, "--ServerApp.port_retries=0", "--ServerApp.token=t0ken")
	command.Dir, command.Env = home, append(os.Environ(), "HOME="+home, "JUPYTER_RUNTIME_DIR="+home)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	must(t, command.Start())
	kill = func() { syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	t.Cleanup(func() {
		kill()
		command.Wait()
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	eventually(t, "the Jupyter Server answers", func() bool {
		response, err := client.Get("http://" + address + "/api")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return "http://" + address, "t0ken", kill
}

func (d *daemon) newContext(t *testing.T, language string) string {
	t.Helper()
	var created gen.CodeContext
	must(t, json.Unmarshal(body200(t)(d.client.CreateContext(t.Context(), gen.ContextRequest{Language: language})), &created))
	return created.ID
}

// cell starts a cell in a context.
func (d *daemon) cell(t *testing.T, id, source string) *stream {
	t.Helper()
	response, err := d.client.RunCode(context.WithoutCancel(t.Context()), gen.CodeRequest{Code: source, Context: &gen.ContextChoice{ID: &id}})
	return d.stream(t, response, err)
}

// ends reads a cell's stream to its end, which must be a good one with that output.
func (s *stream) ends(t *testing.T, stdout string) {
	t.Helper()
	events := s.all(1)
	if got := joined(events, "stdout"); got != stdout || last(events).Type != "execution_complete" {
		t.Errorf("stdout %q, want %q; last event: %s", got, stdout, last(events).data)
	}
}

func last(events []event) event { return events[len(events)-1] }

// result returns the first content of a MIME type, as JSON.
func result(events []event, mime string) string {
	for _, e := range events {
		if content, ok := e.Results[mime]; ok && e.Type == "result" {
			return string(content)
		}
	}
	return ""
}

// body200 returns the body of an answer that must be a success.
func body200(t *testing.T) func(*http.Response, error) []byte {
	return func(response *http.Response, err error) []byte {
		t.Helper()
		return body(t, response, err)
	}
}

func statusAndBody(t *testing.T) func(*http.Response, error) (int, string) {
	return func(response *http.Response, err error) (int, string) {
		t.Helper()
		must(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		must(t, err)
		return response.StatusCode, string(text)
	}
}
