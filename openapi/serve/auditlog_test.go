package serve_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/test/wait"
)

// auditLog records its calls.
type auditLog struct {
	mu       sync.Mutex
	recorded []string
	last     uint64
	refuse   error // of every intention
	volatile error // of every wait for the disk
}

func (w *auditLog) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorded = append(w.recorded, fmt.Sprintf(format, args...))
}

func (w *auditLog) Intend(a serve.Admission) (uint64, func() error, error) {
	w.note("intend %s %s %s by %v on %q from %s", a.Operation, a.Method, a.Route, a.Principal,
		a.Params["widgetId"], a.Remote)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	return w.last, func() error {
		w.note("durable %s", a.Operation)
		return w.volatile
	}, w.refuse
}

func (w *auditLog) Conclude(a serve.Admission, reference uint64, o serve.Outcome) {
	w.note("conclude %d %s: %d %s %v", reference, a.Operation, o.Status, o.Code, o.Field("made"))
}

func (w *auditLog) has(t *testing.T, want ...string) {
	t.Helper()
	var recorded []string
	wait.Until(t, fmt.Sprintf("the audit log to record %q", want), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		recorded = slices.Clone(w.recorded)
		return len(recorded) >= len(want)
	})
	if !slices.Equal(recorded, want) {
		t.Errorf("the audit log recorded\n%s\nwant\n%s", strings.Join(recorded, "\n"),
			strings.Join(want, "\n"))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorded = nil
}

func watched(w *auditLog, o serve.Observer) setup {
	return setup{
		options: func(options *serve.Options) {
			options.AuditLog, options.Observer, options.Audited = w, o, []string{"getPart"}
			options.Authenticate = func(r *http.Request) (any, error) {
				if r.Header.Get(keyHeader) != key {
					return nil, serve.Unauthorized("no key")
				}
				return "ada", nil
			}
		},
		routes: func(s *serve.Server) {
			done := func(c echo.Context) error {
				return c.String(http.StatusOK, fmt.Sprint(serve.Principal(c.Request().Context())))
			}
			s.Echo().Any("/keyed", done, s.Named("keyed", true), s.Authenticated)
			s.Echo().GET("/taken", func(c echo.Context) error {
				conn, _, err := http.NewResponseController(c.Response()).Hijack()
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = io.WriteString(conn,
					"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
				return err
			}, s.Named("taken", false))
			s.Echo().Any("/signed", s.Admitted("bob", done), s.Named("signed", false))
		},
	}
}

func TestAuditLogHasEveryAdmittedRequestThatChangesSomething(t *testing.T) {
	w := &auditLog{}
	s := start(t, handlers{
		"createWidget": func(c echo.Context) error {
			w.note("create")
			serve.LogField(c.Request().Context(), "made", "w7")
			return c.JSON(http.StatusAccepted, map[string]string{})
		},
		"deleteWidget": func(echo.Context) error { return errLost },
	}, watched(w, nil))

	s.request("POST", "/v1/widgets", `{"image":{"uri":"a"},"timeout":60,"entrypoint":["b"]}`)
	w.has(t, "intend createWidget POST /v1/widgets by ada on \"\" from 127.0.0.1", "create",
		"durable createWidget", "conclude 1 createWidget: 202  w7")
	s.request("DELETE", "/v1/widgets/w1?force=true", "")
	w.has(t, "intend deleteWidget DELETE /v1/widgets/:widgetId by ada on \"w1\" from 127.0.0.1",
		"durable deleteWidget", "conclude 2 deleteWidget: 500 INTERNAL_ERROR <nil>")
	s.request("POST", "/v1/widgets", `{"timeout":"soon"}`) // refused before anything is done
	w.has(t, "conclude 0 createWidget: 400 INVALID_REQUEST_BODY <nil>")
	s.request("GET", "/v1/widgets/w1/parts/1", "") // reads, and is named
	w.has(t,
		"intend getPart GET /v1/widgets/:widgetId/parts/:number by ada on \"w1\" from 127.0.0.1",
		"durable getPart", "conclude 3 getPart: 204  <nil>")

	// Routes outside the document.
	if got := s.request("POST", "/keyed", ""); got.body != "ada" {
		t.Errorf("the principal is %s", got.body)
	}
	w.has(t, "intend keyed POST /keyed by ada on \"\" from 127.0.0.1", "durable keyed",
		"conclude 4 keyed: 200  <nil>")
	if got := s.request("DELETE", "/signed", "", keyHeader+":"); got.body != "bob" {
		t.Errorf("the principal is %s", got.body)
	}
	w.has(t, "intend signed DELETE /signed by bob on \"\" from 127.0.0.1", "durable signed",
		"conclude 5 signed: 200  <nil>")
	s.request("GET", "/signed", "", "Connection: Upgrade", "Upgrade: websocket")
	w.has(t, "intend signed GET /signed by bob on \"\" from 127.0.0.1", "durable signed",
		"conclude 6 signed: 200  <nil>")

	// The sender of these is unknown, or they change nothing.
	for _, r := range [][2]string{{"POST", "/v1/widgets"}, {"DELETE", "/v1/widgets/w1"},
		{"POST", "/keyed"}} {
		s.request(r[0], r[1], "", keyHeader+": wrong")
	}
	for _, path := range []string{"/v1/widgets", "/v1/widgets/w1", "/health", "/keyed", "/signed",
		"/nothing"} {
		s.request("GET", path, "")
	}
	s.request("DELETE", "/v1/widgets/last?force=true", "")
	w.has(t, "intend deleteWidget DELETE /v1/widgets/:widgetId by ada on \"last\" from 127.0.0.1",
		"durable deleteWidget", "conclude 7 deleteWidget: 500 INTERNAL_ERROR <nil>")
}

func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	w := &auditLog{refuse: errors.New("no space left on the disk of the audit log")}
	s := start(t, handlers{"createWidget": func(c echo.Context) error {
		t.Error("the request was done")
		return c.NoContent(http.StatusAccepted)
	}}, watched(w, nil))
	got := s.request("POST", "/v1/widgets", `{"image":{"uri":"a"},"timeout":60,"entrypoint":["b"]}`,
		"X-Request-ID: full")
	if code, message := got.problem(t); got.StatusCode != 500 || code != "INTERNAL_ERROR" ||
		strings.Contains(message, "space") {
		t.Errorf("%d %s: %s", got.StatusCode, code, message)
	}
	if line := s.logs.find(t, "request failed", "request_id",
		"full"); !strings.Contains(fmt.Sprint(line["error"]), "no space left") {
		t.Errorf("the cause is not in the log: %v", line)
	}
	if got := s.request("GET", "/v1/widgets/w1", ""); got.StatusCode != 204 {
		t.Errorf("a read: %d", got.StatusCode)
	}
}

// A client must not get an answer that a loss of power could still undo.
func TestAnswerIsWithheldWhileTheRecordIsNotDurable(t *testing.T) {
	w := &auditLog{volatile: errors.New("the disk of the audit log fails")}
	s := start(t,
		handlers{"createWidget": func(c echo.Context) error {
			return c.NoContent(
				http.StatusAccepted)
		}}, watched(w, nil))
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/widgets",
		strings.NewReader(`{"image":{"uri":"a"},"timeout":60,"entrypoint":["b"]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(keyHeader, key)
	r.Header.Set("Content-Type", "application/json")
	if response, err := s.client.Do(r); err == nil {
		response.Body.Close()
		t.Errorf("status %d, want a closed connection", response.StatusCode)
	}
	s.logs.find(t, "the record of a request is not durable; its answer is withheld", "error",
		"the disk of the audit log fails")
}

// counts is an observer.
type counts struct {
	mu               sync.Mutex
	began, streaming int
	ended            []serve.Exchange
}

func (c *counts) RequestBegan() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began++
}

func (c *counts) StreamOpened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streaming++
}

func (c *counts) RequestEnded(e serve.Exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.Took = 0
	c.ended = append(c.ended, e)
	if e.Stream {
		c.streaming--
	}
}

func TestObserverSeesRequestsAndStreams(t *testing.T) {
	seen := &counts{}
	leave := make(chan struct{})
	s := start(t, handlers{"watchWidgets": func(c echo.Context) error {
		stream := respond.NewEventStream(c.Request().Context(), c.Response(),
			respond.EventStreamOptions{})
		stream.Data([]byte("hello"))
		err := stream.Flush()
		<-leave
		return err
	}}, watched(&auditLog{}, seen))
	_ = s
	response, err := s.get("/v1/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	seen.mu.Lock()
	if seen.began != 1 || seen.streaming != 1 || len(seen.ended) != 0 {
		t.Errorf("while it streams: %+v", seen)
	}
	seen.mu.Unlock()
	close(leave)
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Fatal(err)
	}
	s.request("GET", "/v1/widgets/w1", "")
	s.request("GET", "/nothing", "")
	s.request("GET", "/keyed", "", keyHeader+":")
	s.request("GET", "/keyed", "", "Connection: Upgrade", "Upgrade: h2c") // which is not understood
	s.request("GET", "/taken", "", "Connection: Upgrade", "Upgrade: other")
	want := []serve.Exchange{
		{Operation: "watchWidgets", Status: 200, Stream: true},
		{Operation: "getWidget", Status: 204},
		{Status: 404},
		{Operation: "keyed", Status: 401},
		{Operation: "keyed", Status: 200},
		{Operation: "taken", Status: 200, Stream: true},
	}
	wait.Until(t, "every request to end", func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return len(seen.ended) == len(want)
	})
	if !slices.Equal(seen.ended, want) || seen.began != len(want) || seen.streaming != 0 {
		t.Errorf("%+v, want %+v", seen, want)
	}
	if line := s.logs.find(t, "request", "operation", "watchWidgets"); line["stream"] != true {
		t.Errorf("the line of a stream: %v", line)
	}
}

func TestRefusalsCanBeWarnings(t *testing.T) {
	s := start(t, nil, setup{options: func(o *serve.Options) { o.WarnRefusals = true }})
	s.request("GET", "/nothing", "", "X-Request-ID: warn")
	if line := s.logs.find(t, "request", "request_id", "warn"); line["level"] != "warn" {
		t.Errorf("a 404 is logged as %v", line)
	}
}
