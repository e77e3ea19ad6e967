package conformance

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

	"sandbox.internal/clients/go/execd"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
)

// Inside is a port of a sandbox, seen from a client that reaches nothing but the service.
type Inside struct {
	Host    string // of the service
	Prefix  string
	Headers map[string]string // headers of every request
	HTTP    *http.Client
}

// portsProgram is the package of the program that listens in a sandbox.
const portsProgram = "sandbox.internal/test/e2e/conformance/testdata/ports"

// PortServer is a Running sandbox in which testdata/ports serves a port.
func PortServer(t *testing.T, c *Client, port int) string {
	t.Helper()
	program := Build(t, portsProgram)
	directory := HostVolume(filepath.Dir(program), "/programs")
	yes := true
	directory.ReadOnly = &yes
	r := Request(c.Images.Busybox, "/programs/"+filepath.Base(program), strconv.Itoa(port))
	r.Volumes = []lifecycle.Volume{directory}
	return c.Running(t, r)
}

// Inside returns a port of a sandbox, seen through the service.
func (c *Client) Inside(t *testing.T, id string, port int) *Inside {
	t.Helper()
	return c.Below(t, fmt.Sprintf("/v1/sandboxes/%s/proxy/%d", id, port),
		map[string]string{KeyHeader: c.Key})
}

// Below returns what the service, or another server of the client, serves below a path.
func (c *Client) Below(t *testing.T, prefix string, headers map[string]string) *Inside {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	p := &Inside{Host: strings.TrimPrefix(c.URL, "http://"), Prefix: prefix, Headers: headers}
	p.HTTP = &http.Client{Transport: base, Timeout: wait.Patience(),
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	return p
}

// Open sends a request and returns the answer with its body unread.
func (p *Inside) Open(ctx context.Context, t *testing.T, method, path string, body io.Reader,
	headers ...string) *http.Response {
	t.Helper()
	response, err := p.try(ctx, t, method, path, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// try is [Inside.Open] for a request that may fail.
func (p *Inside) try(ctx context.Context, t *testing.T, method, path string, body io.Reader,
	headers ...string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.Host+p.Prefix+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range p.Headers {
		r.Header.Set(name, value)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := p.HTTP.Do(r)
	if err == nil {
		t.Cleanup(func() { response.Body.Close() })
	}
	return response, err
}

// Send sends a request and reads the answer.
func (p *Inside) Send(t *testing.T, method, path string, body io.Reader, headers ...string) Answer {
	t.Helper()
	response := p.Open(t.Context(), t, method, path, body, headers...)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Answer{response.StatusCode, response.Header, string(content)}
}

// Ready waits until the program in the sandbox listens.
func (p *Inside) Ready(t *testing.T) {
	t.Helper()
	wait.Until(t, "the program in the sandbox listens", func() bool {
		return p.Send(t, http.MethodGet, "/echo/ready", nil).Status == http.StatusOK
	})
}

// Dial opens a WebSocket.
func (p *Inside) Dial(t *testing.T, headers ...string) *websocket.Conn {
	t.Helper()
	header := http.Header{}
	for name, value := range p.Headers {
		header.Set(name, value)
	}
	for i := 0; i < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+p.Host+p.Prefix+"/websocket",
		&websocket.DialOptions{HTTPHeader: header, HTTPClient: p.HTTP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	return conn
}

// ExecdThroughTheService is the inside of a sandbox, held to execd's contract, with nothing but the
// service's key.
func ExecdThroughTheService(t *testing.T, p *Inside) *Box {
	t.Helper()
	document, err := ExecdContract()
	if err != nil {
		t.Fatal(err)
	}
	endpoint := lifecycle.Endpoint{Endpoint: p.Host + p.Prefix, Headers: p.Headers}
	b := &Box{conform: conform.New(document, behind{p.HTTP.Transport, endpoint}, t)}
	b.HTTP = &http.Client{Transport: b.conform, Timeout: wait.Patience()}
	if b.Client, err = execd.NewClientWithResponses("http://sandbox",
		execd.WithHTTPClient(b.HTTP)); err != nil {
		t.Fatal(err)
	}
	return b
}

// Counting is the bytes 0 to 250, again and again.
type Counting struct{ n byte }

// Read fills p and never ends.
func (c *Counting) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = c.n
		c.n = (c.n + 1) % 251
	}
	return len(p), nil
}

// DigestOf returns the SHA-256 of what can be read, in hexadecimal.
func DigestOf(t *testing.T, r io.Reader) string {
	t.Helper()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
