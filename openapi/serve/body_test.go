package serve_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	bind "github.com/oapi-codegen/runtime"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/test/wait"
)

const validWidget = `{"image":{"uri":"busybox"},"timeout":60,"entrypoint":["sh"]}`

// widgetWith is a valid body with one member added or replaced.
func widgetWith(member, value string) string {
	var body map[string]json.RawMessage
	if err := json.Unmarshal([]byte(validWidget), &body); err != nil {
		panic(err)
	}
	body[member] = json.RawMessage(value)
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func TestInvalidBodies(t *testing.T) {
	s := start(t, handlers{"createWidget": func(echo.Context) error {
		t.Error("the handler was reached")
		return nil
	}}, setup{})
	long := strings.Repeat("x", 5000)
	cases := map[string]struct{ body, want string }{
		"empty":      {"", "body: is required"},
		"only space": {"  ", "body: is not valid JSON: it ends too early"},
		"cut off":    {`{"timeout":`, "body: is not valid JSON: it ends too early"},
		"syntax": {`{"timeout":60,}`,
			"body: is not valid JSON: invalid character '}' looking for beginning of object key string at byte 15"},
		"trailing value": {validWidget + validWidget,
			"body: is not valid JSON: there is more after the first value"},
		"not an object":   {`[1]`, "body: value must be an object"},
		"null":            {`null`, "body: must not be null"},
		"missing":         {`{"timeout":60,"entrypoint":["sh"]}`, "body/image: is required"},
		"missing, nested": {widgetWith("image", `{}`), "body/image/uri: is required"},
		"too small": {widgetWith("timeout", "59"),
			"body/timeout: number must be at least 60"},
		"too large": {widgetWith("timeout", "86401"),
			"body/timeout: number must be at most 86400"},
		"fraction": {widgetWith("timeout", "60.5"),
			"body/timeout: value must be an integer"},
		"wrong type": {widgetWith("timeout", `"60"`),
			"body/timeout: value must be an integer"},
		"empty list": {widgetWith("entrypoint", "[]"),
			"body/entrypoint: minimum number of items is 1"},
		"item": {widgetWith("entrypoint", `["sh",""]`),
			"body/entrypoint/1: minimum string length is 1"},
		"enum": {widgetWith("mode", `"warm"`),
			`body/mode: value must be one of ["soft","hard"]`},
		"format": {widgetWith("expiresAt", `"tomorrow"`),
			"body/expiresAt: must be a valid date-time"},
		"no such day": {widgetWith("expiresAt", `"2027-02-30T00:00:00Z"`),
			"body/expiresAt: must be a valid date-time"},
		"no such offset": {widgetWith("expiresAt", `"2027-02-20T00:00:00+99:99"`),
			"body/expiresAt: must be a valid date-time"},
		"no number": {widgetWith("timeout", "1e400"), "body/timeout: number is too large"},
		"pattern": {widgetWith("size", `"500"`),
			`body/size: string doesn't match the regular expression "^[0-9]+m$"; an example is "500m"`},
		"not nullable": {widgetWith("mode", "null"), "body/mode: must not be null"},
		"map value": {widgetWith("labels", `{"a":"12345"}`),
			"body/labels/a: maximum string length is 4"},
		"map size": {widgetWith("labels", `{"a":"1","b":"2","c":"3"}`),
			"body/labels: there must be at most 2 properties"},
		"unknown field":      {widgetWith("foo", "1"), "body/foo: unknown field"},
		"other case":         {widgetWith("Timeout", "5"), "body/Timeout: unknown field"},
		"unknown, long name": {widgetWith(long, "1"), "body/" + long[:128] + "...: unknown field"},
		"no alternative": {widgetWith("source", `{}`),
			"body/source: value must match exactly one of the allowed forms"},
		"inside all of": {widgetWith("limits", `{"cpu":"1"}`),
			"body/limits/cpu: minimum string length is 2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := s.request("POST", "/v1/widgets", c.body)
			code, message := got.problem(t)
			if got.StatusCode != 400 || code != "INVALID_REQUEST_BODY" || message != c.want {
				t.Errorf("%d %s\n got %q\nwant %q", got.StatusCode, code, message, c.want)
			}
			if strings.Contains(message, "\n") {
				t.Errorf("message has several lines: %q", message)
			}
		})
	}
}

func TestContentType(t *testing.T) {
	s := start(t, nil, setup{})
	for contentType, want := range map[string]int{
		"application/json":                204,
		"application/json; charset=utf-8": 204,
		"Application/JSON":                204,
		"":                                400,
		"text/plain":                      400,
		"application/xml":                 400,
		"nonsense":                        400,
	} {
		got := s.request("POST", "/v1/widgets", validWidget, "Content-Type: "+contentType)
		if got.StatusCode != want {
			t.Errorf("%q: status %d, want %d", contentType, got.StatusCode, want)
		}
		if want == 400 {
			if _, message := got.problem(t); message != "header Content-Type: must be application/json" {
				t.Errorf("%q: %s", contentType, message)
			}
		}
	}
	// Malformed parameters do not keep a body from being checked.
	for _, contentType := range []string{"application/json; charset", "application/json;=",
		"Application/JSON; a=b; a=c"} {
		if got := s.request("POST", "/v1/widgets", `{"unknown": 1}`,
			"Content-Type: "+contentType); got.StatusCode != 400 {
			t.Errorf("%q: a body that breaks the contract gives status %d", contentType,
				got.StatusCode)
		}
	}
	got := s.request("POST", "/v1/upload", `{}`)
	if _, message := got.problem(t); message != "header Content-Type: must be multipart/form-data" {
		t.Error(message)
	}
}

func TestOptionalBody(t *testing.T) {
	s := start(t, nil, setup{})
	if got := s.request("POST", "/v1/widgets/w1/renew", ""); got.StatusCode != 204 {
		t.Errorf("no body: status %d, want 204", got.StatusCode)
	}
	// Without a length it only turns out at the end that there is nothing.
	r, _ := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/widgets/w1/renew",
		io.MultiReader())
	r.Header = http.Header{keyHeader: {key}, "Content-Type": {"application/json"}}
	if got := s.do(r); got.StatusCode != 204 {
		t.Errorf("empty chunked body: status %d, want 204", got.StatusCode)
	}
}

// What the handler binds is what was validated, also where the schema permits unknown
// members pass and encoding/json would take "Timeout" for "timeout".
func TestHandlerBindsWhatWasValidated(t *testing.T) {
	type renewal struct {
		Timeout int             `json:"timeout"`
		Extra   json.RawMessage `json:"extra"`
	}
	s := start(t, handlers{"renewWidget": func(c echo.Context) error {
		var got renewal
		if err := bind.BindJSONBody(c.Request(), &got); err != nil {
			return err
		}
		return c.String(http.StatusOK, fmt.Sprintf("%d %s", got.Timeout, got.Extra))
	}}, setup{})
	cases := map[string]struct{ body, want string }{
		"other case after":  {`{"timeout":60,"Timeout":5}`, "60 "},
		"other case before": {`{"TIMEOUT":5,"timeout":60}`, "60 "},
		"same name twice":   {`{"timeout":5,"timeout":60}`, "60 "},
		"large number": {`{"timeout":60,"extra":12345678901234567890}`,
			"60 12345678901234567890"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := s.request("POST", "/v1/widgets/w1/renew", c.body); got.body != c.want {
				t.Errorf("bound %q, want %q", got.body, c.want)
			}
		})
	}
	if got := s.request("POST", "/v1/widgets/w1/renew",
		`{"timeout":60,"timeout":5}`); got.StatusCode != 400 {
		t.Errorf("last of two is invalid: status %d, want 400", got.StatusCode)
	}
}

func TestBodyLimit(t *testing.T) {
	s := start(t, nil, setup{options: func(o *serve.Options) { o.MaxJSONBody = 100 }})
	fits := validWidget + strings.Repeat(" ", 100-len(validWidget))
	if got := s.request("POST", "/v1/widgets", fits); got.StatusCode != 204 {
		t.Errorf("100 bytes: status %d, want 204", got.StatusCode)
	}
	got := s.request("POST", "/v1/widgets", fits+" ")
	code, message := got.problem(t)
	if got.StatusCode != 413 || code != "REQUEST_TOO_LARGE" ||
		message != "body: must be at most 100 bytes" {
		t.Errorf("101 bytes: %d %s %q", got.StatusCode, code, message)
	}
}

// The rest of a body that was too large must not be taken for the next request.
func TestConnectionAfterTooLargeBody(t *testing.T) {
	for name, header := range map[string]string{"plain": "",
		"with an upgrade": "Connection: Upgrade\r\nUpgrade: other\r\n"} {
		t.Run(name, func(t *testing.T) {
			s := start(t, nil, setup{options: func(o *serve.Options) { o.MaxJSONBody = 64 }})
			conn, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			smuggled := "DELETE /v1/widgets/w1?force=true HTTP/1.1\r\nHost: x\r\n" + keyHeader +
				": " + key + "\r\n\r\n"
			body := strings.Repeat(" ", 65) + smuggled
			fmt.Fprintf(conn,
				"POST /v1/widgets HTTP/1.1\r\nHost: x\r\n%s%s: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				header, keyHeader, key, len(body), body)

			reader := bufio.NewReader(conn)
			first, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, first.Body)
			if first.StatusCode != 413 || !first.Close {
				t.Errorf("status %d, closes %v; want 413 and a closing connection",
					first.StatusCode, first.Close)
			}
			if rest, err := io.ReadAll(reader); len(rest) != 0 {
				t.Errorf("after the 413 came %q (%v)", rest, err)
			}
			if strings.Contains(s.logs.String(), "deleteWidget") {
				t.Error("the body's rest was served as a request")
			}
			if got := s.request("POST", "/v1/widgets", validWidget); got.StatusCode != 204 {
				t.Errorf("next connection: status %d, want 204", got.StatusCode)
			}
		})
	}
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestUploadIsNotBuffered(t *testing.T) {
	const size = 256 << 20
	received := make(chan int64, 1)
	s := start(t, handlers{"uploadParts": func(c echo.Context) error {
		parts, err := c.Request().MultipartReader()
		if err != nil {
			return err
		}
		part, err := parts.NextPart()
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, part)
		received <- n
		if err != nil {
			return err
		}
		return c.NoContent(http.StatusNoContent)
	}}, setup{})

	body, pipe := io.Pipe()
	form := multipart.NewWriter(pipe)
	go func() {
		part, err := form.CreateFormFile("file", "zeros")
		if err == nil {
			_, err = io.CopyN(part, zeros{}, size)
		}
		if err == nil {
			err = form.Close()
		}
		pipe.CloseWithError(err)
	}()
	r, _ := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/upload", body)
	r.Header = http.Header{keyHeader: {key}, "Content-Type": {form.FormDataContentType()}}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := s.do(r)
	runtime.ReadMemStats(&after)
	if got.StatusCode != 204 {
		t.Fatalf("status %d %s", got.StatusCode, got.body)
	}
	if n := wait.For(t, "the body", received); n != size {
		t.Errorf("received %d bytes, want %d", n, size)
	}
	// Both ends live in this process, and everything they allocate counts.
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 {
		t.Errorf("%d MiB allocated for an upload of 256 MiB", allocated>>20)
	}
}

func TestUploadFaultsAreTheClients(t *testing.T) {
	read := func(c echo.Context) error {
		parts, err := c.Request().MultipartReader()
		if err != nil {
			return err
		}
		part, err := parts.NextPart()
		if err != nil {
			return fmt.Errorf("next part: %w", err)
		}
		_, err = io.Copy(io.Discard, part)
		return err
	}
	s := start(t, handlers{"uploadParts": read}, setup{})
	got := s.request("POST", "/v1/upload", "x", "Content-Type: multipart/form-data")
	if _, message := got.problem(t); got.StatusCode != 400 ||
		message != "header Content-Type: must name a boundary" {
		t.Errorf("no boundary: %d %q", got.StatusCode, message)
	}

	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/upload HTTP/1.1\r\nHost: x\r\nX-Request-ID: aborted\r\n%s: %s\r\n"+
		"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 9999\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nhalf", keyHeader, key)
	conn.Close()
	line := s.logs.find(t, "request", "request_id", "aborted")
	if line["status"] != 400.0 || line["level"] != "info" {
		t.Errorf("an upload that its client aborted is logged as %v", line)
	}
}

// A handler that passes a part of a body on finds it as it was sent, although what it binds has
// been decoded before.
func TestJSONBodyIsByteForByte(t *testing.T) {
	var before time.Time
	s := start(t, handlers{
		"renewWidget": func(c echo.Context) error {
			if began := serve.Began(c.Request().Context()); began.Before(before) ||
				began.After(time.Now()) {
				t.Errorf("the request began at %v", began)
			}
			return c.Blob(http.StatusOK, "application/json", serve.JSONBody(c.Request().Context()))
		},
	}, setup{})
	before = time.Now()
	for _, body := range []string{"", `{"timeout":60}`,
		"{ \"timeout\" :60.0,\n\t\"x\":\"<\\u003c\u2028\", \"x\":1e400 }"} {
		if got := s.request("POST", "/v1/widgets/w1/renew", body); got.body != body {
			t.Errorf("sent %q, the handler saw %q", body, got.body)
		}
	}
	if serve.JSONBody(t.Context()) != nil || !serve.Began(t.Context()).IsZero() {
		t.Error("there is a request outside of every request")
	}
}
