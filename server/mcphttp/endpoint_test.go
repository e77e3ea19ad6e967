package mcphttp_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	tools "sandbox.internal/clients/mcp"
	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/mcphttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service has one sandbox, "box", with an image in each of its files.
type service struct {
	*serve.Server
	asked, sent atomic.Int32 // images, and those that were taken whole
}

func newService(t *testing.T, imageBytes int, register func(*serve.Server)) *service {
	t.Helper()
	server, err := serve.New(serve.Options{Rules: &rules.Contract{}, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Server: server}
	image := append([]byte("\x89PNG\r\n\x1a\n"), make([]byte, imageBytes-8)...)
	server.Echo().GET("/v1/sandboxes/box", func(c echo.Context) error {
		return c.JSONBlob(http.StatusOK, []byte(`{"id":"box","status":{"state":"Running"}}`))
	})
	server.Echo().GET("/v1/sandboxes/box/proxy/44772/files/download", func(c echo.Context) error {
		s.asked.Add(1)
		c.Response().Header().Set("Content-Length", fmt.Sprint(len(image)))
		err := c.Blob(http.StatusOK, "application/octet-stream", image)
		if err == nil {
			s.sent.Add(1)
		}
		return err
	})
	register(server)
	return s
}

func registered(s *serve.Server) { mcphttp.Register(s, "test", nil) }

const readImage = `{"jsonrpc":"2.0","id":1,"method":"tools/call",` +
	`"params":{"name":"read_file","arguments":{"sandbox":"box","path":"/a.png"}}}`

func post(t *testing.T, message string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, mcphttp.Path,
		strings.NewReader(message))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	return r
}

// TestAgent: the library's client gets an image.
func TestAgent(t *testing.T) {
	s := httptest.NewServer(newService(t, 100<<10, registered))
	defer s.Close()
	agent := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := agent.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: s.URL + mcphttp.Path, DisableStandaloneSSE: true, HTTPClient: s.Client(),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_file",
		Arguments: map[string]any{"sandbox": "box", "path": "/a.png"}})
	if err != nil || result.IsError {
		t.Fatalf("%+v, %v", result, err)
	}
	if image, ok := result.Content[0].(*mcp.ImageContent); !ok || len(image.Data) != 100<<10 {
		t.Errorf("the content is a %T", result.Content[0])
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}
}

// TestNoBatches: the calls of a batch would run all at once.
func TestNoBatches(t *testing.T) {
	for _, version := range []string{"", "2025-03-26", "2025-06-18"} {
		for _, body := range []string{"[" + readImage + "]", "\r\n\t [" + readImage + "]", "[]", "["} {
			s := newService(t, 100, registered)
			r, answer := post(t, body), httptest.NewRecorder()
			if version != "" {
				r.Header.Set("Mcp-Protocol-Version", version)
			}
			s.ServeHTTP(answer, r)
			if text := answer.Body.String(); answer.Code != http.StatusBadRequest ||
				!strings.Contains(text, `"code":-32600`) || !strings.Contains(text, `"id":null`) ||
				!strings.Contains(text, "batches") {
				t.Errorf("%q, version %q: %d %s", body, version, answer.Code, text)
			}
			if s.asked.Load() > 0 {
				t.Errorf("%q, version %q: a call was run", body, version)
			}
		}
	}
}

// stuck is a client that takes nothing until it is released.
type stuck struct {
	*httptest.ResponseRecorder
	released chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.released
	return s.ResponseRecorder.Write(p)
}

// TestImagesHeldAtOnce: clients that do not read hold no more images than there is room for, and
// the calls of others wait until there is.
func TestImagesHeldAtOnce(t *testing.T) {
	const size, calls, fit = 64 << 10, 5, 2 // a call waits for the room of the largest image
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, size, func(server *serve.Server) {
			mcphttp.RegisterWithin(server, tools.MaxImages+(fit-1)*size)
		})
		released := make(chan struct{})
		var served sync.WaitGroup
		for range calls {
			served.Go(func() {
				client := &stuck{httptest.NewRecorder(), released}
				s.ServeHTTP(client, post(t, readImage))
				if !bytes.Contains(client.Body.Bytes(), []byte(`"mimeType":"image/png"`)) {
					t.Errorf("%d %.200s", client.Code, client.Body)
				}
			})
		}
		synctest.Wait()
		for taken := range calls {
			want := min(int32(taken+fit), calls)
			if asked, sent := s.asked.Load(), s.sent.Load(); asked != calls || sent != want {
				t.Errorf("%d clients have their image: %d were opened, and %d read; want %d and %d",
					taken, asked, sent, calls, want)
			}
			released <- struct{}{}
			synctest.Wait()
		}
		served.Wait()
	})
}

// deadlines is a client that records the deadlines of writes.
type deadlines struct {
	*httptest.ResponseRecorder
	now   time.Time // the deadline that is set
	bound bool      // every write and flush had one
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.now = at
	return nil
}

func (d *deadlines) Write(p []byte) (int, error) {
	d.bound = d.bound && time.Until(d.now) > time.Minute
	return d.ResponseRecorder.Write(p)
}

func (d *deadlines) Flush() { d.bound = d.bound && time.Until(d.now) > time.Minute }

// TestWritesHaveDeadlines: over HTTP/1 the last one stays for what is sent when the handler has
// returned; over HTTP/2 one that stays would end an answer that is silent for a while.
func TestWritesHaveDeadlines(t *testing.T) {
	for major, stays := range map[int]bool{1: true, 2: false} {
		client := &deadlines{ResponseRecorder: httptest.NewRecorder(), bound: true}
		r := post(t, readImage)
		r.ProtoMajor = major
		newService(t, 100, registered).ServeHTTP(client, r)
		if client.Code != http.StatusOK || client.Body.Len() == 0 || !client.bound ||
			client.now.IsZero() == stays {
			t.Errorf("HTTP/%d: %d, %d bytes, all writes bounded: %t, deadline after them %v", major,
				client.Code, client.Body.Len(), client.bound, client.now)
		}
	}
}

// cells adds what runs cells: cell answers each of them, in a context that is called "kernel".
func (s *service) cells(cell echo.HandlerFunc) {
	const path = "/v1/sandboxes/box/proxy/44772/code"
	s.Echo().POST(path+"/context", func(c echo.Context) error {
		return c.JSONBlob(http.StatusOK, []byte(`{"id":"kernel","language":"python"}`))
	})
	s.Echo().POST(path, cell)
	s.Echo().GET(path+"/executions/execution/stream", cell)
	s.Echo().DELETE(path, func(c echo.Context) error { return c.NoContent(http.StatusOK) })
}

// showing answers a cell with events.
func showing(events ...string) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Header().Set("Content-Type", "text/event-stream")
		c.Response().Header().Set("X-Execution-Id", "execution")
		for i, event := range events {
			_, err := fmt.Fprintf(c.Response(), "id: %d\ndata: %s\n\n", i+1, event)
			if err != nil {
				return err
			}
		}
		c.Response().Flush()
		return nil
	}
}

// runCode runs a cell and returns the answer.
func runCode(t *testing.T, s *service, kernel string) string {
	t.Helper()
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, post(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":`+
		`"run_code","arguments":{"sandbox":"box","code":"x","timeout_seconds":1,"context":"`+kernel+`"}}}`))
	return answer.Body.String()
}

// TestContextOfACellThatFails: the agent learns the id of the context that its call has made.
func TestContextOfACellThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		cell echo.HandlerFunc
		want string
	}{
		"refused": {func(echo.Context) error { return serve.Invalid("body/code: no") }, "body/code: no"},
		"late": {func(c echo.Context) error {
			if err := showing(`{"type":"stdout","text":"halfway"}`)(c); err != nil {
				return err
			}
			<-c.Request().Context().Done()
			return nil
		}, "interrupted after 1s. It had printed:\\nhalfway"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, 100, registered)
				s.cells(c.cell)
				got := runCode(t, s, "new")
				if !strings.Contains(got, `"isError":true`) || !strings.Contains(got, c.want) ||
					!strings.Contains(got, `"text":"context: kernel\n`) {
					t.Errorf("a new context: %s", got)
				}
				got = runCode(t, s, "old")
				if !strings.Contains(got, c.want) || strings.Contains(got, "context: ") {
					t.Errorf("a context that was there: %s", got)
				}
			})
		})
	}
}

// TestResultsOfACell: images come apart from the rest, as far as there is room for them.
func TestResultsOfACell(t *testing.T) {
	cell := showing(`{"type":"stdout","text":"out"}`,
		`{"type":"result","results":{"image/png":"`+strings.Repeat("QUJD", 100)+`"}}`,
		`{"type":"result","results":{"image/jpeg":"`+strings.Repeat("REVG", 100)+`"}}`,
		`{"type":"result","results":{"text/plain":"42"}}`,
		`{"type":"execution_complete","execution_time":1}`)
	const both, one = "ended well\\nout\\n42\\n",
		"ended well\\nout\\n[an image of 300 bytes is left out; save it to a file and read_file it]\\n42\\n"
	for room, want := range map[int64]string{tools.MaxImages: both, 300: one} {
		s := newService(t, 100, func(s *serve.Server) { mcphttp.RegisterWithin(s, room) })
		s.cells(cell)
		got := runCode(t, s, "")
		if !strings.Contains(got, `"text":"`+want+`"`) ||
			!strings.Contains(got, `"mimeType":"image/png"`) ||
			strings.Contains(got, `"mimeType":"image/jpeg"`) != (want == both) {
			t.Errorf("room for %d bytes: %s", room, got)
		}
	}
}
