package e2b_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/execd/app"
	"sandbox.internal/execd/config"
	"sandbox.internal/test/wait"
)

const (
	tokenHeader = "X-EXECD-ACCESS-TOKEN"
	token       = "open-sesame"
)

func TestMain(m *testing.M) {
	// Under nohup a SIGHUP is ignored, and terminals would inherit that; a handler is not
	// inherited.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	goleak.VerifyTestMain(m)
}

// daemon is an execd that serves until its test ends.
type daemon struct {
	url  string
	http *http.Client
	stop context.CancelFunc // begins its end, as a sandbox that is deleted does
}

func start(t *testing.T) *daemon {
	t.Helper()
	settings := config.Settings{Host: "127.0.0.1", CommandLogLimit: 1 << 30, AccessToken: token}
	execd, err := app.New(settings, zerolog.Nop())
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- execd.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, wait.For(t, "the end of the daemon", stopped))
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &daemon{url: "http://" + execd.Addr(), http: &http.Client{Transport: transport, Timeout: wait.Patience()}, stop: stop}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// message is a message in JSON.
type message = map[string]any

// headers are those of a request besides the token.
type headers = map[string]string

// post sends a body to a path below the prefix.
func (d *daemon) post(ctx context.Context, t *testing.T, path string, body []byte, more headers) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/e2b"+path, bytes.NewReader(body))
	must(t, err)
	request.Header.Set(tokenHeader, token)
	for name, value := range more {
		request.Header.Set(name, value)
	}
	response, err := d.http.Do(request)
	must(t, err)
	return response
}

func encode(t *testing.T, in any) []byte {
	t.Helper()
	if text, ok := in.(string); ok {
		return []byte(text)
	}
	body, err := json.Marshal(in)
	must(t, err)
	return body
}

// unary makes a call with one answer. in is JSON, or what becomes JSON.
func (d *daemon) unary(t *testing.T, procedure string, in any, more headers) (status int, out message) {
	t.Helper()
	all := headers{"Content-Type": "application/json"}
	maps.Copy(all, more)
	response := d.post(t.Context(), t, "/"+procedure, encode(t, in), all)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatalf("%s: %d %s: %v", procedure, response.StatusCode, data, err)
	}
	return response.StatusCode, out
}

// refused makes a call that must fail.
func (d *daemon) refused(t *testing.T, procedure string, in any, status int, code, says string) {
	t.Helper()
	got, out := d.unary(t, procedure, in, nil)
	text, _ := out["message"].(string)
	if got != status || out["code"] != code || !strings.Contains(text, says) {
		t.Errorf("%s %v: %d %v, want %d %s with %q", procedure, in, got, out, status, code, says)
	}
}

// succeeds makes a call that must succeed.
func (d *daemon) succeeds(t *testing.T, procedure string, in any) message {
	t.Helper()
	status, out := d.unary(t, procedure, in, nil)
	if status != http.StatusOK {
		t.Fatalf("%s %v: %d %v", procedure, in, status, out)
	}
	return out
}

// frame returns a message in its envelope.
func frame(flags byte, body []byte) []byte {
	framed := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(body)))
	return append(framed, body...)
}

// stream is an answer of many messages.
type stream struct {
	t      *testing.T
	body   io.ReadCloser
	cancel context.CancelFunc
}

// stream makes a call with many answers.
func (d *daemon) stream(t *testing.T, procedure string, in any, more headers) *stream {
	t.Helper()
	all := headers{"Content-Type": "application/connect+json"}
	maps.Copy(all, more)
	ctx, cancel := context.WithCancel(wait.Context(t))
	response := d.post(ctx, t, "/"+procedure, frame(0, encode(t, in)), all)
	if media := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || media != "application/connect+json" {
		t.Fatalf("%s: %s, %s", procedure, response.Status, media)
	}
	s := &stream{t: t, body: response.Body, cancel: cancel}
	t.Cleanup(s.leave)
	return s
}

// leave closes the connection.
func (s *stream) leave() {
	s.cancel()
	s.body.Close()
}

// next returns the next message, and whether it is the last.
func (s *stream) next() (out message, last bool) {
	s.t.Helper()
	var header [5]byte
	if _, err := io.ReadFull(s.body, header[:]); err != nil {
		s.t.Fatalf("the stream was cut: %v", err)
	}
	body := make([]byte, binary.BigEndian.Uint32(header[1:]))
	_, err := io.ReadFull(s.body, body)
	must(s.t, err)
	if err := json.Unmarshal(body, &out); err != nil {
		s.t.Fatalf("%s: %v", body, err)
	}
	if header[0] == 2 {
		if n, err := s.body.Read(header[:]); n != 0 || err != io.EOF {
			s.t.Errorf("behind the last message: %d bytes, %v", n, err)
		}
	}
	return out, header[0] == 2
}
