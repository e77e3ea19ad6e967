package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/config"
	"sandbox.internal/test/wait"
)

// opensandbox asks as a client of OpenSandbox does, and returns the status and the body.
func (d *daemon) opensandbox(t *testing.T, target, body string) (int, string) {
	t.Helper()
	method, path, _ := strings.Cut(target, " ")
	request, err := http.NewRequestWithContext(t.Context(), method, d.url+"/proxy/44772"+path, strings.NewReader(body))
	must(t, err)
	request.Header.Set(tokenHeader, token)
	request.Header.Set("X-Sandbox-Dialect", "opensandbox")
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := d.http.Do(request)
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(data)
}

// want is what an answer must be; the body only has to contain its text.
func (d *daemon) want(t *testing.T, target, body string, status int, says string) {
	t.Helper()
	if got, text := d.opensandbox(t, target, body); got != status || !strings.Contains(text, says) {
		t.Errorf("%s %s: %d %s, want %d with %s", target, body, got, text, status, says)
	}
}

func TestClientsOfOpenSandbox(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{AccessToken: token})
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	long := strings.Repeat("x", 100_000)
	must(t, os.WriteFile(file, []byte("one\ntwo\n"+long+"\nfour"), 0o600))

	for query, want := range map[string]string{
		"&offset=2":         "two\n" + long + "\nfour",
		"&limit=1":          "one",
		"&offset=2&limit=2": "two\n" + long,
		"&offset=4&limit=9": "four",
		"&offset=5":         "",
		"":                  "one\ntwo\n" + long + "\nfour",
	} {
		if status, text := d.opensandbox(t, "GET /files/download?path="+file+query, ""); status != http.StatusOK || text != want {
			t.Errorf("%s: %d and %d bytes, want %d", query, status, len(text), len(want))
		}
	}
	d.want(t, "GET /files/download?offset=0&path="+file, "", 400, "query parameter offset")
	d.want(t, "GET /files/download?limit=all&path="+file, "", 400, "query parameter limit")
	d.want(t, "GET /files/download?limit=1", "", 400, "query parameter path")
	d.want(t, "GET /files/download?limit=1&path=/no/such", "", 404, "FILE_NOT_FOUND")

	d.want(t, "GET /code/contexts", "", 200, "[]")
	d.want(t, "GET /code/contexts?language=python", "", 200, "[]")

	replacement := `{"` + file + `":{"old":"o","new":"0"}}`
	d.want(t, "POST /files/replace?verbose=maybe", replacement, 400, "verbose")
	d.want(t, "POST /files/replace?verbose=true", replacement, 200, `{"`+file+`":{"replacedCount":3}}`)
	d.want(t, "POST /files/replace?verbose=true", replacement, 200, `{"`+file+`":{"replacedCount":0}}`)
	d.want(t, "POST /files/replace?verbose=false", replacement, 200, "{}")
	d.want(t, "POST /files/replace?verbose=true", `{"`+file+`":{"old":"a","now":"b"}}`, 400, "now")
	d.want(t, "POST /files/replace?verbose=true", "", 400, "body: is required")
	d.want(t, "GET /files/download?limit=1&ofset=2&path="+file, "", 400, "query parameter ofset")
	d.want(t, "GET /code/contexts?lang=python", "", 400, "query parameter lang")
	d.want(t, "GET /metrics?offset=2", "", 400, "query parameter offset")

	// Nothing of this is there for other clients, or without the token.
	for _, path := range []string{"/code/contexts", "/files/download?limit=1&path=" + file} {
		if status, text := d.get(t, path, token); status != http.StatusBadRequest {
			t.Errorf("%s of another client: %d %s", path, status, text)
		}
	}
	if status, text := d.get(t, "/opensandbox/contexts", token); status != http.StatusNotFound {
		t.Errorf("contexts of all languages for another client: %d %s", status, text)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/session", nil)
	must(t, err)
	request.Header.Set("X-Sandbox-Dialect", "opensandbox")
	response, err := d.http.Do(request)
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("a session without the token: %s", response.Status)
	}
}

// TestSecretOfSecureAccess: the header of an endpoint of a sandbox with secureAccess lets in like
// the token, and no program gets it.
func TestSecretOfSecureAccess(t *testing.T) {
	t.Parallel()
	const secure = "OpenSandbox-Secure-Access"
	d := start(t, config.Settings{AccessToken: token})
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get(secure)+"|"+r.Header.Get(tokenHeader))
	}))
	defer program.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(program.URL, "http://"), ":")
	for name, c := range map[string]struct {
		header map[string]string
		status int
		says   string // what the program got
	}{
		"neither":               {nil, 401, ""},
		"the secret":            {map[string]string{secure: token}, 200, "|"},
		"both":                  {map[string]string{secure: token, tokenHeader: token}, 200, "|"},
		"another's secret":      {map[string]string{secure: token + "x"}, 401, ""},
		"another's token":       {map[string]string{secure: token, tokenHeader: "x"}, 401, ""},
		"a header of one's own": {map[string]string{secure: "own", tokenHeader: token}, 200, "own|"},
	} {
		for _, path := range []string{"/proxy/" + port + "/a", "/pty", "/proxy/44772/pty"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+path, nil)
			must(t, err)
			for name, value := range c.header {
				request.Header.Set(name, value)
			}
			response, err := d.http.Do(request)
			must(t, err)
			data, err := io.ReadAll(response.Body)
			response.Body.Close()
			must(t, err)
			if response.StatusCode != c.status || c.status == 200 && strings.HasSuffix(path, "/a") && string(data) != c.says {
				t.Errorf("%s, %s: %s %s", name, path, response.Status, data)
			}
		}
	}
}

// session makes one and returns its path.
func (d *daemon) session(t *testing.T, body string) string {
	t.Helper()
	status, text := d.opensandbox(t, "POST /session", body)
	var made struct {
		ID string `json:"session_id"`
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusOK || made.ID == "" {
		t.Fatalf("a session: %d %s", status, text)
	}
	return "/session/" + made.ID
}

// run returns what a command of a session prints, and how it ends.
func (d *daemon) run(t *testing.T, session, body string) (output, end string) {
	t.Helper()
	status, text := d.opensandbox(t, "POST "+session+"/run", body)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", body, status, text)
	}
	for line := range strings.Lines(text) {
		var event struct {
			Type, Text string
			Error      struct{ Evalue string }
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		must(t, json.Unmarshal([]byte(data), &event))
		switch event.Type {
		case "stdout", "stderr":
			output += event.Text + "\n"
		case "execution_complete", "error":
			end = event.Type + event.Error.Evalue
		}
	}
	return output, end
}

func TestSessionsOfOpenSandbox(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{AccessToken: token})
	dir, other := t.TempDir(), t.TempDir()
	s := d.session(t, `{"cwd":"`+dir+`"}`)
	for _, step := range []struct{ body, output, end string }{
		{`{"command":"pwd"}`, dir + "\n", "execution_complete"},
		{`{"command":"mkdir sub; cd sub; export A='it is'; b=\"two\nlines\""}`, "", "execution_complete"},
		{`{"command":"pwd; echo \"$A $b\"; sh -c 'echo $A'"}`, dir + "/sub\nit is two\nlines\nit is\n", "execution_complete"},
		{`{"command":"f() { echo \"f of $1\"; }; exit 7"}`, "", "error7"},
		{`{"command":"f 1; pwd","cwd":"` + other + `"}`, "f of 1\n" + other + "\n", "execution_complete"},
		{`{"command":"pwd","timeout":60000}`, other + "\n", "execution_complete"},
		{`{"command":"echo $#; false"}`, "0\n", "error1"},
	} {
		if output, end := d.run(t, s, step.body); output != step.output || end != step.end {
			t.Errorf("%s: %q and %s, want %q and %s", step.body, output, end, step.output, step.end)
		}
	}
	// What a command does to the session's own files harms that session alone.
	if _, end := d.run(t, s, `{"command":"trap - EXIT; cd \"$__session\"; rm -f command folder; mkfifo command; ln -s /dev/zero folder; cd /"}`); end != "execution_complete" {
		t.Errorf("the command ended with %s", end)
	}
	if output, end := d.run(t, s, `{"command":"echo on"}`); output != "on\n" || end != "execution_complete" {
		t.Errorf("after that: %q and %s", output, end)
	}
	// One session has nothing of another.
	if output, _ := d.run(t, d.session(t, ""), `{"command":"echo \"<$A>\""}`); output != "<>\n" {
		t.Errorf("another session: %q", output)
	}
	d.want(t, "POST /session", `{"cwd":"/no/such"}`, 400, "body/cwd")
	d.want(t, "POST /session", `{"folder":"/"}`, 400, "folder")
	d.want(t, "POST "+s+"/run", `{"command":" "}`, 400, "body/command")
	d.want(t, "POST "+s+"/run", `{"command":"pwd","cwd":"/no/such"}`, 400, "cwd")
	d.want(t, "POST "+s+"/run", `{"command":"pwd","timeout":-1}`, 400, "timeout")
	d.want(t, "DELETE "+s, "", 200, "{}")
	d.want(t, "DELETE "+s, "", 404, "no session")
	d.want(t, "POST "+s+"/run", `{"command":"pwd"}`, 404, "NOT_FOUND")
}

func TestDeletedSessionEndsItsCommand(t *testing.T) {
	t.Parallel()
	d := start(t, config.Settings{AccessToken: token})
	dir := t.TempDir()
	s := d.session(t, `{"cwd":"`+dir+`"}`)
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	ended := make(chan string, 1)
	go func() {
		_, end := d.run(t, s, `{"command":": > fifo; sleep 1000"}`)
		ended <- end
	}()
	fifo, err := os.Open(filepath.Join(dir, "fifo")) // until the command runs
	must(t, err)
	fifo.Close()
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		d.want(t, "POST "+s+"/run", `{"command":"sleep 1000"}`, 404, "NOT_FOUND") // whether it waits for its turn or comes too late
	}()
	d.want(t, "DELETE "+s, "", 200, "{}")
	if end := wait.For(t, "the end of the command", ended); !strings.HasPrefix(end, "error") {
		t.Errorf("the command ended with %q", end)
	}
	wait.For(t, "the end of the request", waited)
}
