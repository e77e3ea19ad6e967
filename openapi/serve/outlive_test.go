package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/test/wait"
)

// conclusions are what an audit log recorded of the ends of requests.
type conclusions struct {
	mu       sync.Mutex
	recorded []string
}

func (*conclusions) Intend(serve.Admission) (uint64, func() error, error) {
	return 1, func() error { return nil }, nil
}

func (w *conclusions) Conclude(a serve.Admission, _ uint64, o serve.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorded = append(w.recorded,
		fmt.Sprintf("%s %s %s %d %s %v", a.RequestID, a.Route, a.Params["widgetId"], o.Status,
			o.Code, o.Field("widget")))
}

func (w *conclusions) of(id string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.recorded),
		func(line string) bool { return !strings.HasPrefix(line, id+" ") })
}

// Echo gives a request's context to the next request as soon as the handler has returned. What is
// recorded of a stream at its end must be the stream's own all the same, and none of it may be
// recorded before.
func TestStreamsKeepNothingOfAContextThatOthersHave(t *testing.T) {
	const streams = 8
	seen, ends, release := &counts{}, &conclusions{}, make(chan struct{})
	s := start(t, nil, setup{
		options: func(o *serve.Options) { o.AuditLog, o.Observer = ends, seen },
		routes: func(s *serve.Server) {
			watch := func(c echo.Context) error {
				id := c.Param("widgetId")
				serve.LogField(c.Request().Context(), "widget", id)
				return serve.StreamEvents(c.Request().Context(), c.Response(),
					func(ctx context.Context, out *respond.EventStream) error {
						out.Data([]byte("begin"))
						if err := out.Flush(); err != nil {
							return err
						}
						<-release
						out.Data([]byte(id))
						if id == "w0" {
							return errLost
						}
						return out.Flush()
					})
			}
			s.Echo().POST("/watch/:widgetId", watch, s.Named("follow", false), s.Authenticated)
		},
	})

	var bodies [streams]io.ReadCloser
	for i := range bodies {
		r, err := http.NewRequestWithContext(t.Context(), "POST",
			fmt.Sprintf("%s/watch/w%d", s.url, i), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{keyHeader: {key}, "X-Request-Id": {fmt.Sprintf("stream-%d", i)}}
		response, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.ReadFull(response.Body, make([]byte, len("data: begin\n\n"))); err != nil {
			t.Fatal(err)
		}
		bodies[i] = response.Body
	}

	var others sync.WaitGroup
	for i := range 4 * streams {
		others.Go(func() {
			s.request("DELETE", fmt.Sprintf("/v1/widgets/other%d?force=true", i), "")
			s.request("GET", "/nothing", "", keyHeader+": wrong")
		})
	}
	others.Wait()
	for i := range bodies {
		if recorded := ends.of(fmt.Sprintf("stream-%d", i)); len(recorded) > 0 {
			t.Errorf("the audit log recorded the end of an open stream: %q", recorded)
		}
	}
	close(release)
	for i, body := range bodies {
		id := fmt.Sprintf("w%d", i)
		data, err := io.ReadAll(body)
		code, bytes := "", len("data: begin\n\ndata: w0\n\n")
		if i == 0 {
			code, bytes = "INTERNAL_ERROR", len("data: begin\n\n")
			if err == nil {
				t.Errorf("a stream that failed ended like a whole one: %q", data)
			}
		} else if string(data) != "data: "+id+"\n\n" || err != nil {
			t.Errorf("stream %s: %q, %v", id, data, err)
		}
		line := s.logs.find(t, "request", "request_id", "stream-"+id[1:])
		for name, want := range map[string]any{
			"method": "POST", "route": "/watch/:widgetId", "operation": "follow", "status": 200.0,
			"bytes":  float64(bytes),
			"widget": id, "stream": true,
		} {
			if line[name] != want {
				t.Errorf("the line of stream %s has %s = %v, want %v", id, name, line[name], want)
			}
		}
		want := []string{fmt.Sprintf("stream-%s /watch/:widgetId %s 200 %s %s", id[1:], id, code,
			id)}
		if recorded := ends.of("stream-" + id[1:]); !slices.Equal(recorded, want) {
			t.Errorf("the audit log recorded %q, want %q", recorded, want)
		}
	}
	const all = 9 * streams
	wait.Until(t, "the observer to see every request end", func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return len(seen.ended) == all
	})
	if seen.began != all || seen.streaming != 0 {
		t.Errorf("the observer saw %d begin and %d open; want %d and none", seen.began,
			seen.streaming, all)
	}
}

// A handler that fails after it has announced a stream is recorded as any other.
func TestAnnouncedStreamThatNeverBegins(t *testing.T) {
	seen := &counts{}
	s := start(t, handlers{"watchWidgets": func(c echo.Context) error {
		_ = serve.StreamEvents(c.Request().Context(), c.Response(),
			func(context.Context, *respond.EventStream) error {
				t.Error("the stream was written")
				return nil
			})
		return errLost
	}}, setup{options: func(o *serve.Options) { o.Observer = seen }})
	response, err := s.get("/v1/watch")
	if err == nil {
		_, err = io.ReadAll(response.Body)
		response.Body.Close()
	}
	if err == nil {
		t.Error("the answer ended like a whole one")
	}
	s.logs.find(t, "request", "operation", "watchWidgets")
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if seen.began != 1 || len(seen.ended) != 1 || seen.streaming != 0 {
		t.Errorf("the observer saw %+v", seen)
	}
}

// There may be a thousand streams, and a body may have a megabyte.
func TestStreamsReleaseTheBody(t *testing.T) {
	s := start(t, handlers{"createWidget": func(c echo.Context) error {
		ctx := c.Request().Context()
		body := weak.Make(&serve.JSONBody(ctx)[0])
		return serve.StreamEvents(ctx, c.Response(),
			func(ctx context.Context, out *respond.EventStream) error {
				for deadline := wait.Deadline(); body.Value() != nil; {
					if time.Now().After(deadline) {
						return errors.New("the stream holds the body")
					}
					runtime.GC() // more than once, for what echo's pool still holds
				}
				out.Data([]byte("gone"))
				return out.Flush()
			})
	}}, setup{})
	long := `{"image":{"uri":"a"},"timeout":60,"entrypoint":["` + strings.Repeat("b",
		100<<10) + `"]}`
	if got := s.request("POST", "/v1/widgets", long); got.body != "data: gone\n\n" {
		t.Errorf("%d %q", got.StatusCode, got.body)
	}
}
