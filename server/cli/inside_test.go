package cli_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandbox.internal/gen/execd"
	"sandbox.internal/server/cli"
)

// daemon returns a client of a daemon that gives one answer to everything.
func daemon(t *testing.T, status int, contentType, body string) *execd.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	client, err := execd.NewClient(server.URL, execd.WithHTTPClient(server.Client()))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// check compares an error with a part of its text; an empty part means no error.
func check(t *testing.T, err error, part string) {
	t.Helper()
	if (err == nil) != (part == "") || (err != nil && !strings.Contains(err.Error(), part)) {
		t.Errorf("err = %v, want %q in it", err, part)
	}
}

func TestRunCommand(t *testing.T) {
	t.Parallel()
	const (
		stream  = "text/event-stream"
		started = "id: 1\ndata: {\"type\":\"init\",\"text\":\"c1\",\"timestamp\":1}\n\n" +
			"data: {\"type\":\"ping\",\"text\":\"pong\",\"timestamp\":1}\n\n"
		output   = "id: 2\ndata: {\"type\":\"stdout\",\"text\":\"a\",\"timestamp\":1}\n\n"
		grumble  = "id: 3\ndata: {\"type\":\"stderr\",\"text\":\"no such thing\",\"timestamp\":1}\n\n"
		complete = "id: 4\ndata: {\"type\":\"execution_complete\",\"execution_time\":4,\"exit_code\":0,\"timestamp\":1}\n\n"
		failure  = "id: 4\ndata: {\"type\":\"error\",\"exit_code\":2,\"timestamp\":1," +
			"\"error\":{\"ename\":\"CommandExecError\",\"evalue\":\"2\",\"traceback\":[]}}\n\n"
	)
	tests := []struct {
		name        string
		status      int
		contentType string
		body        string
		stdout      string
		err         string
	}{
		{"complete", 200, stream, started + output + output + complete, "a\na\n", ""},
		{"another media type parameter", 200, stream + "; charset=utf-8", started + complete, "",
			""},
		{"failed", 200, stream, started + output + grumble + failure, "a\n",
			"CommandExecError 2: no such thing"},
		{"ended early", 200, stream, started + output, "a\n", "ended before the command did"},
		{"cut within an event", 200, stream, started + output[:12], "", "unexpected EOF"},
		{"two endings", 200, stream, started + complete + failure, "",
			"went on after the event that ends it"},
		{"no JSON", 200, stream, "id: 9\ndata: hello\n\n", "", "event 9"},
		{"no stream", 200, "application/json", `{"id":"c1"}`, "", `not "application/json"`},
		{"refused", 400, "application/json",
			`{"code":"INVALID_REQUEST_BODY","message":"body/cwd: must exist"}`, "",
			"status 400 INVALID_REQUEST_BODY: body/cwd: must exist"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			stdout, err := cli.RunCommand(t.Context(),
				daemon(t, test.status, test.contentType, test.body))
			check(t, err, test.err)
			if stdout != test.stdout {
				t.Errorf("stdout %q, want %q", stdout, test.stdout)
			}
		})
	}
}

func TestFetchComparesEveryByte(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		status int
		body   string
		err    string
	}{
		{"exact", http.StatusPartialContent, "abcdef", ""},
		{"one wrong byte", http.StatusPartialContent, "abcdeX", "byte 5 is 0x58, not 0x66"},
		{"too few", http.StatusPartialContent, "abcde", "only 5 of 6 bytes arrived"},
		{"too many", http.StatusPartialContent, "abcdefg", "more than 6 bytes arrived"},
		{"the whole file instead", http.StatusOK, "abcdef", "status 200: expected status 206"},
		{"refused", http.StatusRequestedRangeNotSatisfiable,
			`{"code":"RANGE_NOT_SATISFIABLE","message":"no"}`,
			"status 416 RANGE_NOT_SATISFIABLE: no"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			byteRange := "bytes=0-5"
			client := daemon(t, test.status, "application/octet-stream", test.body)
			check(t, cli.Fetch(t.Context(), client, &byteRange, http.StatusPartialContent,
				"abcdef"), test.err)
		})
	}
}
