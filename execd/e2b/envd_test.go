package e2b_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/execd/e2b"
	"sandbox.internal/test/wait"
)

// envd is an execd that listens, as E2B's clients reach it.
type envd struct {
	url    string
	client *http.Client
}

// startEnvd runs execd in this process until the test ends.
func startEnvd(t *testing.T) *envd {
	t.Helper()
	d := start(t)
	return &envd{d.url + e2b.Prefix, d.http}
}

// as names the user of a request.
func as(user string) http.Header {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, "")
	return r.Header
}

// header has names and values in turn.
func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// do sends a request and returns the answer with its body.
func (e *envd) do(t *testing.T, method, path string, header http.Header, body io.Reader) (*http.Response, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(wait.Context(t), method, e.url+path, body)
	must(t, err)
	request.Header.Set(tokenHeader, token)
	maps.Copy(request.Header, header)
	response, err := e.client.Do(request)
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	return response, data
}

// call calls a procedure with one answer.
func (e *envd) call(t *testing.T, procedure string, header http.Header, message string) (int, string) {
	t.Helper()
	header = header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	response, data := e.do(t, "POST", "/filesystem.Filesystem/"+procedure, header, strings.NewReader(message))
	if media := response.Header.Get("Content-Type"); media != "application/json" {
		t.Errorf("%s: Content-Type is %q", procedure, media)
	}
	return response.StatusCode, strings.TrimSpace(string(data))
}

// want calls a procedure and compares its status, and its answer or the code of its error.
func (e *envd) want(t *testing.T, procedure string, header http.Header, message string, status int, answer string) {
	t.Helper()
	got, data := e.call(t, procedure, header, message)
	if status != http.StatusOK {
		var failed struct{ Code, Message string }
		must(t, json.Unmarshal([]byte(data), &failed))
		if failed.Message == "" {
			t.Errorf("%s %s: an error without a message: %s", procedure, message, data)
		}
		data = failed.Code
	}
	if got != status || data != answer {
		t.Errorf("%s %s: %d %s, want %d %s", procedure, message, got, data, status, answer)
	}
}

// entryInfo is an entry as clients see it.
type entryInfo map[string]any

// entries calls a procedure that answers with entries.
func (e *envd) entries(t *testing.T, procedure string, header http.Header, message string) []entryInfo {
	t.Helper()
	status, data := e.call(t, procedure, header, message)
	var answer struct {
		Entry   entryInfo
		Entries []entryInfo
	}
	must(t, json.Unmarshal([]byte(data), &answer))
	if status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", procedure, message, status, data)
	}
	if answer.Entry != nil {
		return []entryInfo{answer.Entry}
	}
	return answer.Entries
}

// frames reads the messages of a stream.
type frames struct {
	t    *testing.T
	body io.ReadCloser
}

// stream calls a procedure with a stream of answers.
func (e *envd) stream(t *testing.T, procedure string, header http.Header, message string) *frames {
	t.Helper()
	body := append([]byte{0, 0, 0, 0, 0}, message...)
	binary.BigEndian.PutUint32(body[1:], uint32(len(message)))
	request, err := http.NewRequestWithContext(wait.Context(t), "POST", e.url+procedure, bytes.NewReader(body))
	must(t, err)
	request.Header.Set(tokenHeader, token)
	maps.Copy(request.Header, header)
	request.Header.Set("Content-Type", "application/connect+json")
	response, err := e.client.Do(request)
	must(t, err)
	t.Cleanup(func() { response.Body.Close() })
	if media := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || media != "application/connect+json" {
		t.Fatalf("status %d, Content-Type %q", response.StatusCode, media)
	}
	return &frames{t, response.Body}
}

// next returns the next message, and whether it is the last.
func (f *frames) next() (message string, last bool) {
	f.t.Helper()
	var header [5]byte
	_, err := io.ReadFull(f.body, header[:])
	must(f.t, err)
	data := make([]byte, binary.BigEndian.Uint32(header[1:]))
	_, err = io.ReadFull(f.body, data)
	must(f.t, err)
	return string(data), header[0] == 2
}

// ends expects the end of the stream, with an error of a code unless it is empty. What comes before
// is passed over.
func (f *frames) ends(code string) {
	f.t.Helper()
	for {
		message, last := f.next()
		if !last {
			continue
		}
		var end struct {
			Error struct{ Code, Message string }
		}
		must(f.t, json.Unmarshal([]byte(message), &end))
		if end.Error.Code != code {
			f.t.Errorf("the stream ends with %s, want %q", message, code)
		}
		return
	}
}

func write(t testing.TB, path, content string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// wantOwner checks whom files belong to.
func wantOwner(t *testing.T, uid uint32, paths ...string) {
	t.Helper()
	for _, path := range paths {
		info, err := os.Lstat(path)
		must(t, err)
		if got := info.Sys().(*syscall.Stat_t); got.Uid != uid || got.Gid != uid {
			t.Errorf("%s belongs to %d:%d, want %d", path, got.Uid, got.Gid, uid)
		}
	}
}

// names returns the paths of entries below root, sorted.
func names(root string, entries []entryInfo) []string {
	out := []string{}
	for _, entry := range entries {
		name, err := filepath.Rel(root, entry["path"].(string))
		if err != nil {
			name = err.Error()
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// quote returns a request with a path.
func quote(path string) string {
	data, _ := json.Marshal(map[string]string{"path": path}) // strings can be encoded
	return string(data)
}
