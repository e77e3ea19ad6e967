package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/cli"
)

// These tests are about a daemon that the sandbox's own program has replaced.

// daemon starts a service with one Running sandbox, whose daemon is mux, with paths such as /files/info.
func daemon(t *testing.T, mux *http.ServeMux) (url string) {
	t.Helper()
	service := http.NewServeMux()
	service.HandleFunc("GET /v1/sandboxes/"+sandboxID, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK,
			lifecycle.Sandbox{ID: sandboxID, Status: lifecycle.SandboxStatus{State: "Running"}})
	})
	prefix := "/v1/sandboxes/" + sandboxID + "/proxy/44772"
	service.Handle(prefix+"/", http.StripPrefix(prefix, mux))
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	return server.URL
}

// TestCopiesHaveTheNameThatWasTyped: what the daemon says that a file is called decides nothing.
func TestCopiesHaveTheNameThatWasTyped(t *testing.T) {
	t.Parallel()
	for from, test := range map[string]struct{ path, kind, want string }{
		"/work/report.txt": {"/x/.bashrc", "file", "report.txt"},
		"report.txt":       {"/work/..", "file", "report.txt"},
		"/work/data/":      {"/x/.ssh", "directory", "data"},
		".":                {"/work", "directory", "work"},
		"~":                {"/home/me/.ssh", "directory", ""},
		"/work/..":         {"/.ssh", "directory", ""},
	} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("GET /files/info", func(w http.ResponseWriter, r *http.Request) {
				answer(w, http.StatusOK, map[string]any{r.URL.Query().Get("path"): map[string]any{
					"path": test.path, "type": test.kind, "size": 4, "mode": 644}})
			})
			mux.HandleFunc("GET /files/download", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Etag", `"1"`)
				_, _ = fmt.Fprint(w, "evil")
			})
			mux.HandleFunc("GET /directories/list", func(w http.ResponseWriter, _ *http.Request) {
				answer(w, http.StatusOK, []any{})
			})
			folder := t.TempDir()
			got := run(t.Context(), nil, "--url", daemon(t, mux), "cp", sandboxID+":"+from, folder)
			entries, err := os.ReadDir(folder)
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" {
				if got.code == cli.ExitOK || len(entries) != 0 ||
					!strings.Contains(got.stderr, "write that path instead") {
					t.Errorf("code %d, stderr %q, %v", got.code, got.stderr, entries)
				}
				return
			}
			if _, err := os.Lstat(filepath.Join(folder, test.want)); got.code != cli.ExitOK || err != nil ||
				len(entries) != 1 {
				t.Errorf("code %d, stderr %q, %v; want %s alone", got.code, got.stderr, entries, test.want)
			}
			packed := run(t.Context(), nil, "--url", daemon(t, mux), "cp", sandboxID+":"+from, "-")
			if packed.code != cli.ExitOK || !strings.HasPrefix(packed.stdout, test.want) {
				t.Errorf("code %d, stderr %q, the archive begins with %.20q", packed.code, packed.stderr,
					packed.stdout)
			}
		})
	}
}

// TestInterruptsOfCodeDoNotWait: the third one ends the tool, whatever the daemon does with the first.
func TestInterruptsOfCodeDoNotWait(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /code", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Execution-Id", "1")
		_, _ = fmt.Fprint(w, "id: 1\ndata: {\"type\":\"init\",\"timestamp\":1,\"text\":\"1\"}\n\n"+
			"id: 2\ndata: {\"type\":\"stdout\",\"timestamp\":1,\"text\":\"on\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	first := true
	mux.HandleFunc("DELETE /code", func(http.ResponseWriter, *http.Request) {
		if first {
			first = false
			close(asked)
		}
		<-release
	})
	signals := make(chan os.Signal)
	shown, stdout := io.Pipe()
	var stderr strings.Builder
	program := cli.Program{Env: func(string) string { return "" }, Stdin: strings.NewReader("1"),
		Stdout: stdout, Stderr: &stderr, Signals: signals}
	url := daemon(t, mux)
	t.Cleanup(func() { close(release) }) // before the server is closed
	code := make(chan int, 1)
	go func() { code <- program.Run(t.Context(), []string{"--url", url, "code", sandboxID, "-"}) }()
	if _, err := io.ReadFull(shown, make([]byte, len("on\n"))); err != nil { // an interrupt is for the cell now
		t.Fatal(err)
	}
	deadline := time.After(30 * time.Second)
	for i := range 3 {
		select {
		case signals <- os.Interrupt:
		case <-deadline:
			t.Fatalf("interrupt %d is not taken", i+1)
		case got := <-code:
			code <- got
		}
		if i == 0 {
			select {
			case <-asked:
			case got := <-code:
				t.Fatalf("code %d before the cell was interrupted, stderr %q", got, stderr.String())
			case <-deadline:
				t.Fatal("the cell is not interrupted")
			}
		}
	}
	select {
	case got := <-code:
		if got != cli.ExitInterrupted {
			t.Errorf("code %d, stderr %q", got, stderr.String())
		}
	case <-deadline:
		t.Error("the tool does not end")
	}
}
