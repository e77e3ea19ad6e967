package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"sandbox.internal/gen/execd"
	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/conform"
)

// inside is a port of a sandbox, seen from a client that reaches nothing but the service.
type inside struct {
	host    string // of the service
	prefix  string
	headers map[string]string // that every request needs
	http    *http.Client
}

// portServer is a Running sandbox in which testdata/ports serves a port.
func portServer(t *testing.T, c *client, port int) string {
	t.Helper()
	program := programs.build(t, "./testdata/ports")
	folder := hostVolume(filepath.Dir(program), "/programs")
	yes := true
	folder.ReadOnly = &yes
	r := request(busyboxImage, "/programs/"+filepath.Base(program), strconv.Itoa(port))
	r.Volumes = []lifecycle.Volume{folder}
	return c.running(t, r)
}

func (c *client) inside(t *testing.T, id string, port int) *inside {
	t.Helper()
	return c.below(t, fmt.Sprintf("/v1/sandboxes/%s/proxy/%d", id, port), map[string]string{keyHeader: c.key})
}

func (c *client) below(t *testing.T, prefix string, headers map[string]string) *inside {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	p := &inside{host: strings.TrimPrefix(c.url, "http://"), prefix: prefix, headers: headers}
	p.http = &http.Client{Transport: base, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return p
}

// open sends a request and returns the answer with its body unread.
func (p *inside) open(ctx context.Context, t *testing.T, method, path string, body io.Reader, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.host+p.prefix+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range p.headers {
		r.Header.Set(name, value)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := p.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

func (p *inside) send(t *testing.T, method, path string, body io.Reader, headers ...string) answer {
	t.Helper()
	response := p.open(t.Context(), t, method, path, body, headers...)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(content)}
}

// ready waits until the program in the sandbox listens.
func (p *inside) ready(t *testing.T) {
	t.Helper()
	eventually(t, "the program in the sandbox listens", func() bool {
		return p.send(t, http.MethodGet, "/tell/ready", nil).status == http.StatusOK
	})
}

// dial opens a WebSocket.
func (p *inside) dial(t *testing.T, headers ...string) *websocket.Conn {
	t.Helper()
	header := http.Header{}
	for name, value := range p.headers {
		header.Set(name, value)
	}
	for i := 0; i < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+p.host+p.prefix+"/websocket", &websocket.DialOptions{HTTPHeader: header, HTTPClient: p.http})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	return conn
}

// execdThroughTheService is the inside of a sandbox, held to execd's contract, with nothing but the service's key.
func execdThroughTheService(t *testing.T, p *inside) *box {
	t.Helper()
	document, err := execdContract()
	if err != nil {
		t.Fatal(err)
	}
	endpoint := lifecycle.Endpoint{Endpoint: p.host + p.prefix, Headers: p.headers}
	b := &box{conform: conform.New(document, behind{p.http.Transport, endpoint}, t)}
	b.http = &http.Client{Transport: b.conform, Timeout: patience}
	if b.client, err = execd.NewClientWithResponses("http://sandbox", execd.WithHTTPClient(b.http)); err != nil {
		t.Fatal(err)
	}
	return b
}

// counting is the bytes 0 to 250, again and again.
type counting struct{ n byte }

func (c *counting) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = c.n
		c.n = (c.n + 1) % 251
	}
	return len(p), nil
}

func digestOf(t *testing.T, r io.Reader) string {
	t.Helper()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
