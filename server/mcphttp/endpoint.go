// Package mcphttp puts the tools of package mcp on the lifecycle service, at /mcp: the protocol's
// streamable HTTP. It is apart from them, so that the command line tool links nothing of a service.
package mcphttp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
	tools "sandbox.internal/clients/mcp"
	"sandbox.internal/openapi/serve"
)

const (
	// Path is where the service speaks the protocol.
	Path = "/mcp"
	// maxBody bounds a message, in bytes: the largest has a file to write.
	maxBody = 4 << 20
	// maxHeld bounds what a call holds of one answer of a sandbox, in bytes.
	maxHeld = 8 << 20
	// maxImages bounds what all calls together hold of images, in bytes: some sixteen of the
	// largest. An answer needs a few times as much on its way out.
	maxImages = 16 * tools.MaxImages
	// maxSession bounds the name of a session, in bytes.
	maxSession    = 128
	sessionHeader = "Mcp-Session-Id"
)

// Register puts the protocol on a service, at Path. Requests need a key of the service, and calls
// act with it. classes are the service's runtime classes.
//
// No session is kept: every request stands for itself, so any replica of a service can answer it.
// Clients of the protocol before 2026-07-28 get a name for their session all the same, with which
// they can cancel a call that runs on the same replica.
func Register(server *serve.Server, version string, classes []string) {
	register(server, version, classes, tools.NewImageQuota(maxImages))
}

func register(server *serve.Server, version string, classes []string, images *tools.ImageQuota) {
	h := &handler{
		service: server, images: images, running: make(map[callName]context.CancelFunc),
	}
	h.protocol = mcp.NewStreamableHTTPHandler(
		func() func(*http.Request) *mcp.Server {
			server := tools.New(version, classes, h.client)
			return func(*http.Request) *mcp.Server { return server }
		}(),
		&mcp.StreamableHTTPOptions{
			Stateless:                    true,
			PropagateRequestCancellation: true,
			MaxRequestBodyBytes:          maxBody,
			// A proxy on this machine that passes the Host on is none; browsers are refused below.
			DisableLocalhostProtection: true,
		})
	server.Echo().Any(Path, h.serve, server.Named("mcp", false), refuseBrowsers,
		server.AuthenticatedAndCounted)
}

// refuseBrowsers answers only programs. Whatever page a browser shows, and whatever its name
// resolves to, the browser marks the requests of the page with these headers.
func refuseBrowsers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		for _, name := range []string{"Origin", "Sec-Fetch-Site"} {
			if c.Request().Header.Get(name) != "" {
				return serve.Forbidden("header %s: the page of a browser may not use %s", name, Path)
			}
		}
		return next(c)
	}
}

// handler serves the protocol over HTTP.
type handler struct {
	service  http.Handler
	protocol http.Handler
	images   *tools.ImageQuota

	mu      sync.Mutex
	running map[callName]context.CancelFunc
}

// callName is how a client names a call of a tool.
type callName struct{ session, id string }

// requestKey is where the context of a call holds the request that it came in.
type requestKey struct{}

// message is what is looked at of a message.
type message struct {
	Method string          `json:"method"`
	ID     json.RawMessage `json:"id"`
	Params struct {
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// noBatches is the answer to an array of messages, which the protocol has not had since 2025-06-18.
var noBatches = map[string]any{
	"jsonrpc": "2.0",
	"id":      nil,
	"error": map[string]any{
		"code":    jsonrpc.CodeInvalidRequest,
		"message": "body: must be one message; the protocol has no batches",
	},
}

// serve answers one request.
func (h *handler) serve(c echo.Context) error {
	r := c.Request()
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &serve.Problem{Status: http.StatusRequestEntityTooLarge, Code: "REQUEST_TOO_LARGE",
			Message: "body: must be at most 4194304 bytes"}
	case err != nil:
		return serve.Invalid("body: %v", err)
	}
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		// The library would run all calls of an array at once, however many there are.
		return c.JSON(http.StatusBadRequest, noBatches)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ctx, release := h.images.Limit(ctx)
	defer release()
	var m message
	_ = json.Unmarshal(body, &m) // the protocol's own answer says what is wrong with it
	session := r.Header.Get(sessionHeader)
	if session != "" && len(session) <= maxSession {
		switch m.Method {
		case "tools/call":
			defer h.begin(callName{session, string(m.ID)}, cancel)()
		case "notifications/cancelled":
			h.cancel(callName{session, string(m.Params.RequestID)})
		}
	}
	if m.Method == "initialize" {
		c.Response().Header().Set(sessionHeader, rand.Text())
	}
	r = r.WithContext(tools.WithEnd(context.WithValue(ctx, requestKey{}, r)))
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.protocol.ServeHTTP(newBoundedWriter(c.Response(), r), r)
	return nil
}

// begin notes a call that can be cancelled until the returned function is called.
func (h *handler) begin(c callName, cancel context.CancelFunc) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running[c] != nil {
		return func() {} // the client uses a name twice; the first call keeps it
	}
	h.running[c] = cancel
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.running, c)
	}
}

// cancel ends a call, if it runs.
func (h *handler) cancel(c callName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.running[c]; cancel != nil {
		cancel()
	}
}

// client returns a client that acts for the caller of a tool, in process.
func (h *handler) client(ctx context.Context) (*sandbox.Client, error) {
	request, ok := ctx.Value(requestKey{}).(*http.Request)
	if !ok {
		return nil, errors.New("the call belongs to no request")
	}
	scheme := "http"
	if request.TLS != nil {
		scheme = "https"
	}
	return sandbox.New(&sandbox.Options{
		URL: scheme + "://" + request.Host,
		// What sandboxes send is held in the memory of the service.
		MaxAnswer: maxHeld,
		Key:       "of the caller", // the transport sets it; none of this process is used
		HTTPClient: &http.Client{
			Transport: &inProcess{
				handler: h.service, caller: request, id: serve.RequestID(request.Context()),
			},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	})
}
