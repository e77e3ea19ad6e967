package cli_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

// These tests are about a daemon that the sandbox's own program has replaced.

// daemon starts a service with one Running sandbox, whose daemon is mux, with paths such as
// /files/info.
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
			directory := t.TempDir()
			got := run(t.Context(), nil, "--url", daemon(t, mux), "cp", sandboxID+":"+from, directory)
			entries, err := os.ReadDir(directory)
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
			if _, err := os.Lstat(filepath.Join(directory, test.want)); got.code != cli.ExitOK || err != nil ||
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

// TestCopiesThatFail leave the file that they would have replaced, and nothing beside it.
func TestCopiesThatFail(t *testing.T) {
	t.Parallel()
	const before = "what was there"
	half := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "8")
		if r.Header.Get("Range") != "" { // another file by now
			w.Header().Set("Etag", `"2"`)
			w.Header().Set("Content-Range", "bytes 4-7/8")
			w.Header().Set("Content-Length", "4")
			w.WriteHeader(http.StatusPartialContent)
			return
		}
		w.Header().Set("Etag", `"1"`)
		_, _ = fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	missing := func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, map[string]any{"code": "FILE_NOT_FOUND", "message": "there is none"})
	}
	whole := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", `"1"`)
		_, _ = fmt.Fprint(w, "new text")
	}
	for name, test := range map[string]struct {
		kind     string // of the path in the sandbox
		download http.HandlerFunc
		linked   bool // the file here is a link to the one that is looked at
		want     string
	}{
		"a link to nothing":         {"symlink", missing, false, before},
		"cut":                       {"file", half, false, before},
		"cut, in a directory":       {"directory", half, false, before},
		"not cut":                   {"file", whole, false, "new text"},
		"not cut, to a link":        {"file", whole, true, "new text"},
		"not cut, in a directory":   {"directory", whole, false, "new text"},
		"missing, in a directory":   {"directory", missing, false, before},
		"a link to a file, to that": {"symlink", whole, true, "new text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			facts := func(path, kind string) map[string]any {
				return map[string]any{"path": path, "type": kind, "size": 8, "mode": 644}
			}
			mux := http.NewServeMux()
			mux.HandleFunc("GET /files/info", func(w http.ResponseWriter, r *http.Request) {
				answer(w, http.StatusOK, map[string]any{r.URL.Query().Get("path"): facts("/srv/notes", test.kind)})
			})
			mux.HandleFunc("GET /directories/list", func(w http.ResponseWriter, _ *http.Request) {
				if test.kind == "symlink" {
					answer(w, http.StatusBadRequest, map[string]any{"code": "INVALID_REQUEST_BODY", "message": "no directory"})
					return
				}
				answer(w, http.StatusOK, []any{facts("/srv/notes/text", "file")})
			})
			mux.HandleFunc("GET /files/download", test.download)
			directory, elsewhere := t.TempDir(), t.TempDir()
			file := filepath.Join(directory, "text")
			if test.linked {
				target := filepath.Join(elsewhere, "target")
				if err := os.Symlink(target, file); err != nil {
					t.Fatal(err)
				}
				file = target
			}
			if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(file, 0o640); err != nil {
				t.Fatal(err)
			}
			to := filepath.Join(directory, "text")
			if test.kind == "directory" {
				if err := os.Symlink(directory, filepath.Join(elsewhere, "notes")); err != nil {
					t.Fatal(err)
				}
				to = elsewhere
			}
			got := run(t.Context(), nil, "--url", daemon(t, mux), "cp", "-qL", sandboxID+":/srv/notes", to)
			if failed := got.code != cli.ExitOK; failed != (test.want == before) {
				t.Errorf("code %d, stderr %q", got.code, got.stderr)
			}
			text, err := os.ReadFile(filepath.Join(directory, "text"))
			if err != nil || string(text) != test.want {
				t.Errorf("the file has %q (%v)", text, err)
			}
			info, err := os.Lstat(file)
			if err != nil || info.Mode() != 0o640 {
				t.Errorf("the mode is %v (%v)", info, err)
			}
			for _, directory := range []string{directory, elsewhere} {
				if entries, err := os.ReadDir(directory); err != nil || len(entries) > 1 {
					t.Errorf("%v (%v)", entries, err)
				}
			}
		})
	}
}

// TestInterruptsOfCodeDoNotWait: the third one ends the tool, whatever the daemon does with the
// first.
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
	deadline := time.After(wait.Patience())
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

// TestCopiedLinksAreNotFollowed: links are copied as they are, and nothing is written through one,
// neither one of this copy nor one that an earlier copy has left.
func TestCopiedLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	facts := func(path, kind, target string) map[string]any {
		info := map[string]any{"path": "/srv/n" + path, "type": kind, "size": 4, "mode": 755}
		if target != "" {
			info["link_target"] = target
		}
		return info
	}
	for name, test := range map[string]struct {
		before string // the target of a link that is there as d
		list   []map[string]any
		inside []map[string]any // what is in d
		works  bool
		want   map[string]string // the targets of links
	}{
		"links": {list: []map[string]any{facts("/a", "symlink", "d/text"), facts("/d", "directory", ""), facts("/up", "symlink", outside)},
			inside: []map[string]any{facts("/d/dangling", "symlink", "../../nowhere"), facts("/d/text", "file", "")}, works: true,
			want: map[string]string{"a": "d/text", "up": outside, "d/dangling": "../../nowhere"}},
		"link and directory of one name": {list: []map[string]any{facts("/d", "symlink", outside), facts("/d", "directory", "")},
			inside: []map[string]any{facts("/d/text", "file", "")}},
		"link and file of one name": {list: []map[string]any{facts("/text", "symlink", outside+"/text"), facts("/text", "file", "")},
			works: true, want: map[string]string{"text": outside + "/text"}},
		"link of an earlier copy": {before: outside, list: []map[string]any{facts("/d", "directory", "")},
			inside: []map[string]any{facts("/d/text", "file", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc("GET /files/info", func(w http.ResponseWriter, r *http.Request) {
				answer(w, http.StatusOK, map[string]any{r.URL.Query().Get("path"): facts("", "directory", "")})
			})
			mux.HandleFunc("GET /directories/list", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("path") == "/srv/n/d" {
					answer(w, http.StatusOK, test.inside)
					return
				}
				answer(w, http.StatusOK, test.list)
			})
			mux.HandleFunc("GET /files/download", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Etag", `"1"`)
				_, _ = fmt.Fprint(w, "text")
			})
			to := filepath.Join(t.TempDir(), "copy")
			if test.before != "" { // the source keeps its name in a directory that is there
				earlier := filepath.Join(to, "n")
				if err := errors.Join(os.MkdirAll(earlier, 0o700), os.Symlink(test.before, filepath.Join(earlier, "d"))); err != nil {
					t.Fatal(err)
				}
			}
			got := run(t.Context(), nil, "--url", daemon(t, mux), "cp", "-q", sandboxID+":/srv/n", to)
			if works := got.code == cli.ExitOK; works != test.works {
				t.Errorf("code %d, stderr %q", got.code, got.stderr)
			}
			for name, want := range test.want {
				if target, err := os.Readlink(filepath.Join(to, name)); err != nil || target != want {
					t.Errorf("%s: the link has the target %q, %v, want %q", name, target, err, want)
				}
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
				t.Errorf("outside of the copy there are %v, %v", entries, err)
			}
		})
	}
}
