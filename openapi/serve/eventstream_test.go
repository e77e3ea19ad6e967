package serve_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/test/wait"
)

// streaming runs a handler that has an event stream, and returns its error in a
// channel.
func streaming(options respond.EventStreamOptions,
	run func(*respond.EventStream) error) (handlers, chan error) {
	ended := make(chan error, 1)
	return handlers{"watchWidgets": func(c echo.Context) error {
		err := run(respond.NewEventStream(c.Request().Context(), c.Response(), options))
		ended <- err
		return err
	}}, ended
}

func TestEventStreamFormat(t *testing.T) {
	h, _ := streaming(respond.EventStreamOptions{}, func(s *respond.EventStream) error {
		s.Event(7, []byte(`{"text":"one"}`))
		s.Data([]byte(`{"text":"two"}`))
		s.Append(8, func(b []byte) []byte { return append(b, "three"...) })
		s.Ping()
		s.Event(-1, nil)
		s.Data([]byte("a\nb\r\nc\rd"))
		if want := len("id: 7\ndata: {\"text\":\"one\"}\n\n"); s.Buffered() <= want {
			return fmt.Errorf("%d bytes buffered", s.Buffered())
		}
		if err := s.Flush(); err != nil {
			return err
		}
		if s.Buffered() != 0 {
			return fmt.Errorf("%d bytes buffered after Flush", s.Buffered())
		}
		return nil
	})
	got := start(t, h, setup{}).request("GET", "/v1/watch", "")
	want := "id: 7\ndata: {\"text\":\"one\"}\n\n" + "data: {\"text\":\"two\"}\n\n" +
		"id: 8\ndata: three\n\n" + ": ping\n\n" + "id: -1\ndata: \n\n" +
		"data: a\ndata: b\ndata: c\ndata: d\n\n"
	if got.StatusCode != 200 || got.body != want {
		t.Errorf("%d\n got %q\nwant %q", got.StatusCode, got.body, want)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no",
		"Content-Encoding": "",
	} {
		if got := got.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestErrorBeforeTheFirstFlushIsAnswered(t *testing.T) {
	h, _ := streaming(respond.EventStreamOptions{}, func(s *respond.EventStream) error {
		s.Event(1, []byte("{}"))
		return serve.Invalid("body/cwd: no such directory")
	})
	got := start(t, h, setup{}).request("GET", "/v1/watch", "")
	if _, message := got.problem(t); got.StatusCode != 400 ||
		message != "body/cwd: no such directory" {
		t.Errorf("%d %q", got.StatusCode, message)
	}
	if got.Header.Get("X-Accel-Buffering") != "" {
		t.Error("the answer has the headers of a stream")
	}
}

func TestEveryFlushReachesTheClient(t *testing.T) {
	next := make(chan int64)
	h, _ := streaming(respond.EventStreamOptions{}, func(s *respond.EventStream) error {
		if err := s.Flush(); err != nil {
			return err
		}
		for id := range next {
			s.Event(id, []byte("{}"))
			if err := s.Flush(); err != nil {
				return err
			}
		}
		return nil
	})
	s := start(t, h, setup{})
	r, _ := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/watch", nil)
	r.Header.Set(keyHeader, key)
	// The header alone is there before any event.
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	reader := bufio.NewReader(response.Body)
	for id := range int64(3) {
		next <- id
		line, err := reader.ReadString('\n')
		if err != nil || line != fmt.Sprintf("id: %d\n", id) {
			t.Fatalf("line %q, error %v", line, err)
		}
		for range 2 {
			if _, err := reader.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(next)
	if rest, err := io.ReadAll(reader); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

func TestStreamEndsWhenTheClientLeaves(t *testing.T) {
	tick := make(chan struct{})
	h, ended := streaming(respond.EventStreamOptions{}, func(s *respond.EventStream) error {
		for {
			s.Data([]byte("{}"))
			if err := s.Flush(); err != nil {
				if again := s.Flush(); again != err {
					return fmt.Errorf("second Flush: %w", again)
				}
				return err
			}
			tick <- struct{}{}
		}
	})
	s := start(t, h, setup{})
	r, _ := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/watch", nil)
	r.Header.Set(keyHeader, key)
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	<-tick
	response.Body.Close()
	wait.Until(t, "the end of the stream", func() bool {
		select {
		case <-tick:
			return false
		case err := <-ended:
			if err == nil {
				t.Error("the stream ended without an error")
			}
			return true
		}
	})
	s.logs.find(t, "client left", "level", "debug")
}

func TestStuckClientIsDropped(t *testing.T) {
	h, ended := streaming(respond.EventStreamOptions{WriteTimeout: 100 * time.Millisecond},
		func(s *respond.EventStream) error {
			chunk := []byte(strings.Repeat("x", 1<<20))
			for {
				s.Data(chunk)
				if err := s.Flush(); err != nil {
					return err
				}
			}
		})
	s := start(t, h, setup{})
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/watch HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n", keyHeader, key)
	if err := wait.For(t, "the end of the stream of a client that reads nothing", ended); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v, want a deadline", err)
	}
}

// pipeListener accepts what is put into it.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	if conn, open := <-l; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (l pipeListener) Close() error   { close(l); return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// slowReader reads 16 KiB a second.
type slowReader struct{ net.Conn }

func (r slowReader) Read(p []byte) (int, error) {
	time.Sleep(time.Second) // of the clock of synctest
	return r.Conn.Read(p[:min(len(p), 16<<10)])
}

// An event may be long. A client that takes longer for it than the write timeout is not
// stuck: dropped, it would ask for the same event again, for ever.
func TestSlowClientGetsALongEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20 // takes twice the write timeout
		ended := make(chan error, 1)
		handler := func(w http.ResponseWriter, r *http.Request) {
			s := respond.NewEventStream(r.Context(), w, respond.EventStreamOptions{})
			s.Data(bytes.Repeat([]byte("x"), size))
			ended <- s.Flush()
		}
		server := &http.Server{Handler: http.HandlerFunc(handler)}
		listener := make(pipeListener, 1)
		near, far := net.Pipe()
		listener <- far
		go server.Serve(listener)
		defer server.Close()
		defer near.Close()
		if _, err := io.WriteString(near,
			"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReaderSize(slowReader{near}, 16<<10), nil)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, response.Body)
		if err != nil || n < size {
			t.Errorf("%d bytes, %v", n, err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The deadline of a stream's last write must not hit later requests on the same
// connection.
func TestConnectionIsReusableAfterAStream(t *testing.T) {
	const timeout = time.Second // a busy machine writes within it
	flushed := make(chan time.Time, 1)
	h, _ := streaming(respond.EventStreamOptions{WriteTimeout: timeout},
		func(s *respond.EventStream) error {
			s.Data([]byte("{}"))
			defer func() { flushed <- time.Now() }()
			return s.Flush()
		})
	h["listWidgets"] = func(c echo.Context) error {
		<-time.After(time.Until((<-flushed).Add(2 * timeout)))
		return c.String(http.StatusOK, c.Request().RemoteAddr)
	}
	h["getWidget"] = func(c echo.Context) error {
		return c.String(http.StatusOK,
			c.Request().RemoteAddr)
	}
	s := start(t, h, setup{})
	before := s.request("GET", "/v1/widgets/w1", "").body
	s.request("GET", "/v1/watch", "")
	if after := s.request("GET", "/v1/widgets", "").body; after != before {
		t.Errorf("answered on %s, want the connection from %s", after, before)
	}
}
