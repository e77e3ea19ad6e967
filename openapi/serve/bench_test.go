package serve_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
)

// discard is a client that takes everything at no cost.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
func (d discard) Flush()                      {}

// An event of a typical line, 256 to a flush, as a busy command's stream does.
func BenchmarkEventStream(b *testing.B) {
	stream := respond.NewEventStream(b.Context(), discard{http.Header{}}, respond.EventStreamOptions{})
	data := []byte(
		`{"type":"stdout","text":"a line of a usual length, with some words in it","timestamp":1767225600000}`)
	b.ReportAllocs()
	var id int64
	for b.Loop() {
		id++
		stream.Event(id, data)
		if id%256 == 0 {
			if err := stream.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// The stack without a network: what a request costs above its handler.
func BenchmarkGuard(b *testing.B) {
	server, err := serve.New(serve.Options{
		Rules:        rulesOf(b, document(b)),
		Logger:       zerolog.New(io.Discard),
		Authenticate: serve.HeaderSecret(keyHeader, key),
	})
	if err != nil {
		b.Fatal(err)
	}
	guards := server.OperationMiddlewares()
	ok := func(c echo.Context) error { return c.NoContent(http.StatusNoContent) }
	bare := echo.New()
	for id, route := range paths {
		server.Echo().Add(route[0], route[1], ok, guards[id]...)
		bare.Add(route[0], route[1], ok)
	}
	for _, request := range []struct{ name, method, path, body string }{
		{"GET", "GET", "/v1/widgets?state=ok&page=2", ""},
		{"POST", "POST", "/v1/widgets", validWidget},
	} {
		for name, handler := range map[string]http.Handler{"bare": bare, "guarded": server} {
			b.Run(request.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := httptest.NewRequest(request.method, request.path,
						strings.NewReader(request.body))
					r.Header.Set(keyHeader, key)
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, r)
					if w.Code != http.StatusNoContent {
						b.Fatal(w.Code, w.Body)
					}
				}
			})
		}
	}
}

// A file over a real connection, against net/http doing only that.
func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	path := filepath.Join(b.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	ours := start(b, handlers{"getWidget": func(c echo.Context) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		return respond.Download{Request: c.Request(), Name: "file", Content: file}.Serve(c.Response())
	}}, setup{})
	floor := serveHandler(b,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeFile(w, r,
				path)
		}), 0, &logBuffer{})
	for name, s := range map[string]*service{"floor": floor, "ours": ours} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				r, _ := http.NewRequestWithContext(b.Context(), "GET", s.url+"/v1/widgets/w1", nil)
				r.Header.Set(keyHeader, key)
				response, err := s.client.Do(r)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, response.Body); n != size || err != nil {
					b.Fatal(n, err)
				}
				response.Body.Close()
			}
		})
	}
}
