package serve_test

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/test/wait"
)

const content = "0123456789"

// downloads serves one file at /v1/widgets/{widgetId}, under the id as its name.
func downloads(t *testing.T, path string) handlers {
	t.Helper()
	return handlers{"getWidget": func(c echo.Context) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		return respond.Download{
			Request: serve.Request(c.Request().Context()),
			Name:    "tenbytes.txt", ModTime: info.ModTime(), Content: file,
			Tag:          fmt.Sprint(info.ModTime().UnixNano()),
			WriteTimeout: time.Second,
		}.Serve(c.Response())
	}}
}

func writeFile(t *testing.T, data string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDownloadRanges(t *testing.T) {
	s := start(t, downloads(t, writeFile(t, content)), setup{})
	cases := map[string]struct {
		header string
		status int
		body   string
		span   string
	}{
		"whole":            {"", 200, content, ""},
		"first":            {"bytes=0-3", 206, "0123", "bytes 0-3/10"},
		"from":             {"bytes=7-", 206, "789", "bytes 7-9/10"},
		"last":             {"bytes=-2", 206, "89", "bytes 8-9/10"},
		"over the end":     {"bytes=8-99", 206, "89", "bytes 8-9/10"},
		"other case":       {"Bytes=0-0", 206, "0", "bytes 0-0/10"},
		"several":          {"bytes=0-1,4-5", 200, content, ""},
		"unknown unit":     {"lines=1-2", 200, content, ""},
		"behind the end":   {"bytes=10-", 416, "", "bytes */10"},
		"backwards":        {"bytes=5-2", 416, "", "bytes */10"},
		"no numbers":       {"bytes=a-b", 416, "", "bytes */10"},
		"no range":         {"bytes=", 416, "", "bytes */10"},
		"nothing sensible": {"garbage", 416, "", "bytes */10"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := s.request("GET", "/v1/widgets/w1", "", "Range: "+c.header)
			if got.StatusCode != c.status || got.Header.Get("Content-Range") != c.span {
				t.Errorf("status %d, Content-Range %q; want %d, %q", got.StatusCode,
					got.Header.Get("Content-Range"), c.status, c.span)
			}
			if c.status == 416 {
				code, message := got.problem(t)
				if code != "RANGE_NOT_SATISFIABLE" ||
					message != "header Range: must be one range of bytes within the 10 of the file" {
					t.Errorf("%s %q", code, message)
				}
				if got.Header.Get("Content-Disposition") != "" || got.Header.Get("ETag") != "" {
					t.Errorf("the error has the file's headers: %v", got.Header)
				}
				return
			}
			if got.body != c.body || got.ContentLength != int64(len(c.body)) {
				t.Errorf("body %q of announced %d, want %q", got.body, got.ContentLength, c.body)
			}
			if got.Header.Get("Content-Type") != "application/octet-stream" ||
				got.Header.Get("Content-Disposition") != "attachment; filename=tenbytes.txt" {
				t.Errorf("headers %v", got.Header)
			}
		})
	}
	if got := s.request("HEAD", "/v1/widgets/w1", ""); got.StatusCode != 200 ||
		got.ContentLength != 10 || got.body != "" {
		t.Errorf("HEAD: %d, length %d, %q", got.StatusCode, got.ContentLength, got.body)
	}
}

// TestDownloadIsCounted: the kernel moves the bytes past the layer that counts them for the access
// log.
func TestDownloadIsCounted(t *testing.T) {
	big := strings.Repeat(content, 100_000)
	s := start(t, downloads(t, writeFile(t, big)), setup{})
	if got := s.request("GET", "/v1/widgets/w1", "", "Range: bytes=5-"); got.body != big[5:] {
		t.Errorf("%d bytes arrive, want %d", len(got.body), len(big)-5)
	}
	if line := s.logs.find(t, "request", "operation",
		"getWidget"); fmt.Sprint(line["bytes"]) != fmt.Sprint(float64(len(big)-5)) {
		t.Errorf("the access line counts %v bytes, want %d", line["bytes"], len(big)-5)
	}
}

func TestDownloadOfAnEmptyFile(t *testing.T) {
	s := start(t, downloads(t, writeFile(t, "")), setup{})
	for _, header := range []string{"", "bytes=0-", "bytes=0-5"} {
		if got := s.request("GET", "/v1/widgets/w1", "", "Range: "+header); got.StatusCode != 200 ||
			got.body != "" {
			t.Errorf("Range %q: %d %q", header, got.StatusCode, got.body)
		}
	}
}

// A resumed download of a file that changed meanwhile starts again.
func TestDownloadIfRange(t *testing.T) {
	path := writeFile(t, content)
	s := start(t, downloads(t, path), setup{})
	tag := s.request("GET", "/v1/widgets/w1", "").Header.Get("ETag")
	if got := s.request("GET", "/v1/widgets/w1", "", "Range: bytes=8-",
		"If-Range: "+tag); got.StatusCode != 206 || got.body != "89" {
		t.Errorf("unchanged: %d %q, want 206", got.StatusCode, got.body)
	}
	for _, condition := range []string{
		s.request("GET", "/v1/widgets/w1", "").Header.Get("Last-Modified"),
		"W/" + tag, strings.Trim(tag, `"`), tag + ", " + tag, `""`,
	} {
		if got := s.request("GET", "/v1/widgets/w1", "", "Range: bytes=8-",
			"If-Range: "+condition); got.StatusCode != 200 || got.body != content {
			t.Errorf("If-Range %q: %d %q, want 200", condition, got.StatusCode, got.body)
		}
	}
	if err := os.Chtimes(path, time.Time{}, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	if got := s.request("GET", "/v1/widgets/w1", "", "Range: bytes=8-",
		"If-Range: "+tag); got.StatusCode != 200 || got.body != content {
		t.Errorf("changed: %d %q, want 200", got.StatusCode, got.body)
	}
	// The contract has neither 304 nor 412.
	if got := s.request("GET", "/v1/widgets/w1", "", "If-None-Match: *",
		"If-Match: x"); got.StatusCode != 200 {
		t.Errorf("conditions: status %d, want 200", got.StatusCode)
	}
}

func TestDownloadNames(t *testing.T) {
	cases := map[string]struct{ value, name string }{
		"plain.txt": {"attachment; filename=plain.txt", "plain.txt"},
		"two words": {`attachment; filename="two words"`, "two words"},
		`a"b\c`:     {`attachment; filename="a\"b\\c"`, `a"b\c`},
		"größe.txt": {"attachment; filename=gr__e.txt; filename*=UTF-8''gr%C3%B6%C3%9Fe.txt",
			"größe.txt"},
		"line\nbreak": {"attachment; filename=line_break; filename*=UTF-8''line%0Abreak",
			"line\nbreak"},
		"it's (ö)*.a/b;c": {`attachment; filename="it's (_)*.a/b;c"; filename*=UTF-8''it%27s%20%28%C3%B6%29%2A.a%2Fb%3Bc`, "it's (ö)*.a/b;c"},
		"bad\xffutf8": {"attachment; filename=bad_utf8; filename*=UTF-8''bad%EF%BF%BDutf8",
			"bad\uFFFDutf8"},
	}
	for name, c := range cases {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			s := start(t, handlers{"getWidget": func(ctx echo.Context) error {
				return respond.Download{Request: ctx.Request(), Name: name,
					Content: strings.NewReader(content)}.Serve(ctx.Response())
			}}, setup{})
			got := s.request("GET", "/v1/widgets/w1", "").Header.Get("Content-Disposition")
			if got != c.value {
				t.Errorf("\n got %s\nwant %s", got, c.value)
			}
			// Go's parser prefers filename as a duplicate; so look at the encoded one alone.
			encoded := got
			if i := strings.Index(got, "filename*"); i >= 0 {
				encoded = "attachment; " + got[i:]
			}
			_, params, err := mime.ParseMediaType(encoded)
			if err != nil || params["filename"] != c.name {
				t.Errorf("a client reads %q (%v), want %q", params["filename"], err, c.name)
			}
		})
	}
}

// brokenDisk fails in the middle.
type brokenDisk struct{ *strings.Reader }

func (b brokenDisk) Read(p []byte) (int, error) {
	if b.Len() <= int(b.Size())/2 {
		return 0, errLost
	}
	return b.Reader.Read(p)
}

func TestDownloadFailures(t *testing.T) {
	big := strings.Repeat(content, 100_000)
	s := start(t, handlers{
		"getWidget": func(c echo.Context) error {
			return respond.Download{Request: c.Request(),
				Content: brokenDisk{strings.NewReader(big)}}.Serve(c.Response())
		},
		"listWidgets": func(c echo.Context) error {
			return respond.Download{Request: c.Request(), Content: closedFile(t)}.Serve(c.Response())
		},
	}, setup{})
	r, _ := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/widgets/w1", nil)
	r.Header.Set(keyHeader, key)
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if data, err := io.ReadAll(response.Body); err == nil || len(data) >= len(big) {
		t.Errorf("a half read file arrives with %d bytes, error %v", len(data), err)
	}
	line := s.logs.find(t, "response cut short", "level", "warn")
	if !strings.Contains(fmt.Sprint(line["error"]), errLost.Error()) {
		t.Errorf("log line %v, want the cause", line)
	}
	if got := s.request("GET", "/v1/widgets", ""); got.StatusCode != 500 {
		t.Errorf("unseekable: status %d, want 500", got.StatusCode)
	}
}

func closedFile(t *testing.T) *os.File {
	file, err := os.Open(writeFile(t, content))
	if err != nil {
		t.Error(err)
	}
	file.Close()
	return file
}

func TestDownloadDropsStuckClient(t *testing.T) {
	ended := make(chan error, 1)
	file, err := os.Create(filepath.Join(t.TempDir(), "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	s := start(t, handlers{"getWidget": func(c echo.Context) error {
		err := respond.Download{Request: c.Request(), Content: file,
			WriteTimeout: 100 * time.Millisecond}.Serve(c.Response())
		ended <- err
		return err
	}}, setup{})
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/widgets/w1 HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n", keyHeader, key)
	if err := wait.For(t, "the end of the download of a client that reads nothing", ended); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v, want a deadline", err)
	}
}
