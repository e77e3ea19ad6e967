package proxy_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/test/loopback"

	"sandbox.internal/test/wait"
)

func TestAnswerArrivesWhileTheServerStillWorks(t *testing.T) {
	for name, headers := range map[string][]string{
		"server-sent events": {"Content-Type", "text/event-stream"},
		"a known length":     {"Content-Length", "27"},
	} {
		t.Run(name, func(t *testing.T) {
			server := execd(t)
			// Buffered, because a server whose last byte is out may be gone already.
			goOn := make(chan struct{}, 3)
			port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
				for i := 0; i < len(headers); i += 2 {
					w.Header().Set(headers[i], headers[i+1])
				}
				for i := range 3 {
					fmt.Fprintf(w, "data: %d\n\n", i)
					http.NewResponseController(w).Flush()
					select {
					case <-goOn:
					case <-r.Context().Done():
						return
					}
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+to(port, "/"), nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			events := bufio.NewReader(response.Body)
			for i := range 3 {
				// The server waits for us here, so the event cannot have come with a later one.
				event, err := events.ReadString('\n')
				if want := fmt.Sprintf("data: %d\n", i); err != nil || event != want {
					t.Fatalf("event %q, error %v, want %q", event, err, want)
				}
				if _, err := events.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				goOn <- struct{}{}
			}
			if rest, err := io.ReadAll(events); err != nil || len(rest) != 0 {
				t.Fatalf("after the last event: %q, %v", rest, err)
			}
		})
	}
}

func TestBothDirectionsAtTheSameTime(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintln(w, "echo", lines.Text())
			control.Flush()
		}
	})
	body, feed := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+to(port, "/"), body)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	go io.WriteString(feed, "0\n")
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answers := bufio.NewReader(response.Body)
	for i := range 3 {
		// Each line goes up only after the answer to the one before has come down.
		if i > 0 {
			fmt.Fprintln(feed, i)
		}
		if answer, err := answers.ReadString('\n'); err != nil || answer != fmt.Sprintf("echo %d\n", i) {
			t.Fatalf("answer %q, error %v, after line %d", answer, err, i)
		}
	}
	feed.Close()
	if rest, err := io.ReadAll(answers); err != nil || len(rest) != 0 {
		t.Fatalf("after the last answer: %q, %v", rest, err)
	}
}

// pattern is size bytes that are made while they are read.
func pattern(size int64) io.Reader { return io.LimitReader(&counter{}, size) }

type counter struct{ n byte }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		c.n++
		p[i] = c.n
	}
	return len(p), nil
}

func TestUploadStreams(t *testing.T) {
	const first, size = 1 << 20, 64 << 20
	server := execd(t)
	begun := make(chan struct{})
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		digest := sha256.New()
		if _, err := io.CopyN(digest, r.Body, first); err != nil {
			t.Error(err)
		}
		close(begun)
		rest, err := io.Copy(digest, r.Body)
		fmt.Fprintf(w, "%d %d %x %v", r.ContentLength, first+rest, digest.Sum(nil), err)
	})
	body, feed := io.Pipe()
	go func() {
		source := pattern(size)
		io.CopyN(feed, source, first)
		// The rest is not sent before the server has the first part: whoever buffers
		// the body ends here.
		<-begun
		io.Copy(feed, source)
		feed.Close()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+to(port, "/"), body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = size
	_, got := do(t, server, r)
	digest := sha256.New()
	io.Copy(digest, pattern(size))
	if want := fmt.Sprintf("%d %d %x <nil>", size, size, digest.Sum(nil)); got != want {
		t.Fatalf("the server got %s, want %s", got, want)
	}
}

// TestTrailersPass in both directions, unannounced ones included.
func TestTrailersPass(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Digest")
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v %s", body, err, r.Trailer.Get("X-Sum"))
		http.NewResponseController(w).Flush()
		w.Header().Set("X-Digest", "announced")
		w.Header().Set(http.TrailerPrefix+"X-Late", "not announced")
	})
	conn := raw(t, server, "POST "+to(port, "/")+" HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nTrailer: X-Sum\nConnection: close\n\n4\nbody\n0\nX-Sum: 42\n\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != "body <nil> 42" {
		t.Errorf("the server got %q, %v", body, err)
	}
	if response.Trailer.Get("X-Digest") != "announced" || response.Trailer.Get("X-Late") != "not announced" {
		t.Errorf("the trailers are %v", response.Trailer)
	}
}

func TestUploadThatWaitsForContinue(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%s %v", body, err)
	})
	conn := raw(t, server, "PUT "+to(port, "/")+" HTTP/1.1\nHost: x\nContent-Length: 5\nExpect: 100-continue\nConnection: close\n\n")
	reader := bufio.NewReader(conn)
	if line, err := reader.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("first answer %q, %v", line, err)
	}
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "hello")
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusCreated || string(body) != "hello <nil>" {
		t.Fatalf("%d %q %v", response.StatusCode, body, err)
	}
}

func TestUploadRefusedBeforeItIsSent(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) })
	conn := raw(t, server, "PUT "+to(port, "/")+" HTTP/1.1\nHost: x\nContent-Length: 5\nExpect: 100-continue\nConnection: close\n\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 413 ") {
		t.Fatalf("first answer %q, %v", line, err)
	}
}

func TestUploadToAPortWhereNothingListens(t *testing.T) {
	server := execd(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+to(loopback.RefusingPort(t), "/"), pattern(16<<20))
	if err != nil {
		t.Fatal(err)
	}
	response, body := do(t, server, r)
	if response.StatusCode != http.StatusBadGateway || !strings.HasPrefix(body, "PORT_NOT_LISTENING") {
		t.Fatalf("%d %s", response.StatusCode, body)
	}
}

func TestClientThatLeavesCancelsTheServer(t *testing.T) {
	for name, flush := range map[string]bool{"before the answer": false, "within the answer": true} {
		t.Run(name, func(t *testing.T) {
			server := execd(t)
			entered, cancelled := make(chan struct{}), make(chan struct{})
			port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
				if flush {
					http.NewResponseController(w).Flush()
				}
				close(entered)
				<-r.Context().Done()
				close(cancelled)
			})
			conn := raw(t, server, "GET "+to(port, "/")+" HTTP/1.1\nHost: x\n\n")
			wait.For(t, "the request's arrival", entered)
			conn.Close()
			wait.For(t, "the server's cancellation", cancelled)
		})
	}
}

func TestServerThatBreaksOffBreaksTheAnswerOff(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+to(port, "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Fatalf("%q looks like a whole answer", body)
	}
}
