package sshserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"sandbox.internal/clients/cli/sshserver"
	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// These tests are about a daemon that the sandbox's own program has replaced, and about what no
// OpenSSH client does. test/e2e/clients has those with real parts.

const id = "0f9a3c52-8c1c-4b5e-9d0a-5e0b8f6c7d11"

// connection is a client of SSH, connected with a server in this process.
type connection struct {
	*ssh.Client

	mu       sync.Mutex
	warnings []string
}

// connect starts a server of a sandbox whose daemon is mux.
func connect(t *testing.T, mux *http.ServeMux) *connection {
	t.Helper()
	service := http.NewServeMux()
	service.HandleFunc("GET /v1/sandboxes/"+id, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, lifecycle.Sandbox{ID: id, Status: lifecycle.SandboxStatus{State: "Running"}})
	})
	prefix := "/v1/sandboxes/" + id + "/proxy/44772"
	service.Handle(prefix+"/", http.StripPrefix(prefix, mux))
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience()) // that of the test ends before the cleanups
	t.Cleanup(cancel)
	client, err := sandbox.New(&sandbox.Options{URL: server.URL, NoKey: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	box, err := client.Connect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	c := &connection{}
	ours, theirs := pair(t)
	if err := ours.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- sshserver.Serve(ctx, theirs, sshserver.Options{
			Sandbox: box, Warn: c.warn, HTTP: wait.Client(), Header: http.Header{"Service-Api-Key": {"key"}}, Names: []string{"box", "box.sandbox"},
		})
	}()
	conn, channels, requests, err := ssh.NewClientConn(ours, "box", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()}) //nolint:gosec // a pipe
	if err != nil {
		t.Fatal(err)
	}
	c.Client = ssh.NewClient(conn, channels, requests)
	t.Cleanup(func() {
		_ = c.Close()
		if err := wait.For(t, "the end of the server", ended); err != nil {
			t.Errorf("the server ended with: %v", err)
		}
	})
	return c
}

// pair returns both ends of a connection. That of net.Pipe has no room for the first message, which
// both sides of SSH send before they read.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if ours, err = net.DialTimeout("tcp", listener.Addr().String(), wait.Patience()); err != nil {
		t.Fatal(err)
	}
	if theirs, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

func (c *connection) warn(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

func (c *connection) files(t *testing.T) *sftp.Client {
	t.Helper()
	files, err := sftp.NewClient(c.Client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	return files
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// facts are what a daemon says of a file.
func facts(name, kind string) map[string]any {
	return map[string]any{"path": name, "type": kind, "size": 4, "mode": 644, "owner": "root", "group": "root"}
}

// withFiles is a daemon where every path is a regular file, except for the home directory.
func withFiles() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /files/info", func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("path")
		found := facts(name, "file")
		if name == "~" {
			found = facts("/home", "directory")
		}
		answer(w, map[string]any{name: found})
	})
	return mux
}

// TestNames: no name of a list leads out of its directory.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"/..", "/.", "/", "", "..", "/a/../..", "/../../etc/passwd", "/a/b\x00/../c", `/..\x`} {
		mux := withFiles()
		mux.HandleFunc("GET /directories/list", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, []any{facts("/good", "file"), facts(name, "file")})
		})
		entries, err := connect(t, mux).files(t).ReadDir("/")
		base := path.Base(name)
		if bad := base == "." || base == ".." || base == "/"; bad != (err != nil) {
			t.Errorf("of %q the list is %v, %v", name, entries, err)
		}
		for _, entry := range entries {
			if got := entry.Name(); got != "good" && got != base {
				t.Errorf("of %q a name is %q", name, got)
			}
		}
	}
}

// TestLongLists: the memory for a list is bounded, also for one of values that are nearly no text.
func TestLongLists(t *testing.T) {
	t.Parallel()
	mux := withFiles()
	mux.HandleFunc("GET /directories/list", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "["+strings.Repeat("{},", 1<<20)+"{}]")
	})
	if _, err := connect(t, mux).files(t).ReadDir("/"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("the list is read: %v", err)
	}
}

// TestLinks: links that never end are an error, after a bounded number of requests.
func TestLinks(t *testing.T) {
	t.Parallel()
	for target, others := range map[string]string{
		"a/b": "symlink", strings.Repeat("../", 1000) + "a": "symlink", strings.Repeat("a/", 100_000): "directory",
	} {
		var requests atomic.Int64
		mux := http.NewServeMux()
		mux.HandleFunc("GET /files/info", func(w http.ResponseWriter, r *http.Request) {
			name := r.URL.Query().Get("path")
			found := facts(name, others)
			if name == "/x" || others == "symlink" {
				found = facts(name, "symlink")
				found["link_target"] = target
			}
			if name == "~" {
				found = facts("/home", "directory")
			}
			requests.Add(1)
			answer(w, map[string]any{name: found})
		})
		_, err := connect(t, mux).files(t).Stat("/x")
		if err == nil || !strings.Contains(err.Error(), "too many symbolic links") {
			t.Errorf("a link to %.20q: %v", target, err)
		}
		if n := requests.Load(); n > 300 {
			t.Errorf("a link to %.20q took %d requests", target, n)
		}
	}
}

// TestCutDownload: a download that fails on its way is an error and never looks like the end of the
// file.
func TestCutDownload(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	mux := withFiles()
	mux.HandleFunc("GET /files/download", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", strconv.Itoa(size))
			_, _ = w.Write(make([]byte, 50000))
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	})
	files := connect(t, mux).files(t)
	file, err := files.Open("/file")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := file.ReadAt(make([]byte, 10), size/2); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%d bytes came from a daemon that does not answer, %v", n, err)
	}
	file, err = files.Open("/file")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, struct{ io.Reader }{file}); err == nil {
		t.Errorf("%d of %d bytes are taken for the file", n, size)
	}
}

// TestReads: pieces of a file in any order have the bytes that the file has there.
func TestReads(t *testing.T) {
	t.Parallel()
	content := make([]byte, 11<<20+123)
	for i := range content {
		content[i] = byte(i>>16) ^ byte(i>>8) ^ byte(i)
	}
	mux := withFiles()
	var streams atomic.Int64
	mux.HandleFunc("GET /files/download", func(w http.ResponseWriter, r *http.Request) {
		streams.Add(1)
		w.Header().Set("Etag", `"1"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
	files := connect(t, mux).files(t)
	file, err := files.Open("/file")
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	if _, err := file.WriteTo(&all); err != nil || !bytes.Equal(all.Bytes(), content) {
		t.Errorf("%d bytes of %d came, or other ones: %v", all.Len(), len(content), err)
	}
	if n := streams.Load(); n > 2 {
		t.Errorf("the file took %d downloads", n)
	}
	random := random.New(t)
	for range 200 {
		offset, length := random.IntN(len(content)+1000), random.IntN(300<<10)
		end := min(len(content), offset+length)
		want := content[min(offset, len(content)):end]
		got := make([]byte, length)
		n, err := file.ReadAt(got, int64(offset))
		if short := len(want) < length; !bytes.Equal(got[:n], want) || short != errors.Is(err, io.EOF) || !short && err != nil {
			t.Fatalf("%d bytes at %d: %d came, want %d, or other ones: %v", length, offset, n, len(want), err)
		}
	}
}

// TestChannels: the number of channels is bounded, and the connection outlives the refusal.
func TestChannels(t *testing.T) {
	t.Parallel()
	c := connect(t, http.NewServeMux())
	var sessions []*ssh.Session
	for range 256 {
		session, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, session)
	}
	if _, err := c.NewSession(); err == nil || !strings.Contains(err.Error(), "too many channels") {
		t.Errorf("channel 257: %v, want the refusal of too many channels", err)
	}
	_ = sessions[0].Close()
	wait.Succeeds(t, "there is room again", func() error {
		_, err := c.NewSession()
		return err
	})
}

// TestOutputCut: a command whose output the daemon keeps no longer is ended, and fails.
func TestOutputCut(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	var interrupted atomic.Bool
	mux.HandleFunc("POST /command", func(w http.ResponseWriter, _ *http.Request) { answer(w, map[string]any{"id": "c1"}) })
	mux.HandleFunc("GET /command/c1/stream", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\ndata: {\"type\":\"stdout\",\"text\":\"a\",\"timestamp\":1}\n\n"+
			"id: 2\ndata: {\"type\":\"status\",\"text\":\"output is cut here\",\"timestamp\":1}\n\n"+
			"id: 3\ndata: {\"type\":\"execution_complete\",\"exit_code\":0,\"timestamp\":1}\n\n")
	})
	mux.HandleFunc("DELETE /command", func(w http.ResponseWriter, _ *http.Request) {
		interrupted.Store(true)
		answer(w, map[string]any{})
	})
	session, err := connect(t, mux).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	session.Stdout, session.Stderr = &stdout, &stderr
	err = session.Run("yes")
	var exit *ssh.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 255 || stdout.String() != "a\n" || !strings.Contains(stderr.String(), "output is cut here") {
		t.Errorf("it ended with %v, printed %q and %q", err, stdout.String(), stderr.String())
	}
	if !interrupted.Load() {
		t.Error("the command goes on")
	}
}
