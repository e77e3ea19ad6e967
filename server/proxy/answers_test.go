package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/server/proxy"
	"sandbox.internal/test/wait"
)

// script is a server that answers the requests of its n-th connection with the texts that it has
// for it, and then closes it. A text that ends in waits keeps the connection open until the server
// has gone away.
type script struct {
	address string
	opened  atomic.Int32
	closed  chan int // connections that were given up by the proxy
}

const waits = "[waits]"

func play(t *testing.T, connections ...[]string) *script {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{address: listener.Addr().String(), closed: make(chan int, len(connections))}
	var all sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			s.opened.Add(1)
			if n >= len(connections) {
				t.Errorf("connection %d is opened, which has no part", n)
				c.Close()
				continue
			}
			all.Go(func() { s.answer(c, n, connections[n]) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return s
}

func (s *script) answer(c net.Conn, n int, answers []string) {
	defer c.Close()
	r := bufio.NewReader(c)
	for _, answer := range answers {
		if _, err := http.ReadRequest(r); err != nil {
			s.closed <- n
			return
		}
		text, stay := strings.CutSuffix(answer, waits)
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
		if stay {
			_, _ = r.ReadByte() // nothing comes any more
			s.closed <- n
			return
		}
	}
}

// keepingFront is a server in front of a script, whose proxy keeps connections.
type keepingFront struct{ *httptest.Server }

func keepingTo(t *testing.T, address string) *keepingFront {
	t.Helper()
	p := proxy.NewKeeping(zerolog.New(zerolog.NewTestWriter(t)))
	t.Cleanup(p.Close)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.Forward(w, r, proxy.Target{Address: address}); err != nil && r.Context().Err() == nil {
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, err)
		}
	}))
	t.Cleanup(front.Close)
	return &keepingFront{front}
}

func (k *keepingFront) wants(t *testing.T, status int, text string) {
	t.Helper()
	response, body := get(t, k.Server, "/")
	if response.StatusCode != status || !strings.Contains(body, text) {
		t.Errorf("%d %q, want %d with %q", response.StatusCode, body, status, text)
	}
}

func ok(text string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
}

// TestAnswersOnAKeptConnection: what an answer may look like, and whether the connection can be
// used after it.
func TestAnswersOnAKeptConnection(t *testing.T) {
	for name, row := range map[string]struct {
		answer string
		status int
		text   string
		kept   int
	}{
		"length":                {ok("whole"), 200, "whole", 1},
		"no body":               {"HTTP/1.1 204 No Content\r\n\r\n", 204, "", 1},
		"empty":                 {ok(""), 200, "", 1},
		"chunks":                {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nwho\r\n2\r\nle\r\n0\r\n\r\n", 200, "whole", 1},
		"interim":               {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok("whole"), 200, "whole", 1},
		"the server closes":     {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nwhole", 200, "whole", 0},
		"until the end":         {"HTTP/1.0 200 OK\r\n\r\nwhole", 200, "whole", 0},
		"no HTTP":               {"SSH-2.0-OpenSSH_9.2\r\n\r\n", 502, "no HTTP answer", 0},
		"nothing":               {"", 502, "no HTTP answer", 0},
		"header breaks off":     {"HTTP/1.1 200 OK\r\nContent-Le", 502, "no HTTP answer", 0},
		"header too large":      {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", proxy.MaxAnswerHeader) + "\r\n\r\n", 502, "exceeded 262144 bytes", 0},
		"interim too large":     {"HTTP/1.1 103 Early Hints\r\nA: " + strings.Repeat("a", proxy.MaxAnswerHeader) + "\r\n\r\n", 502, "exceeded 262144 bytes", 0},
		"switches without need": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 502, "without being asked", 0},
	} {
		t.Run(name, func(t *testing.T) {
			second := ok("second")
			parts := [][]string{{row.answer, second}}
			if row.kept == 0 {
				parts = [][]string{{row.answer}, {second}}
			}
			server := play(t, parts...)
			front := keepingTo(t, server.address)
			front.wants(t, row.status, row.text)
			front.wants(t, 200, "second")
			if got, want := int(server.opened.Load()), 2-row.kept; got != want {
				t.Errorf("%d connections were opened, want %d", got, want)
			}
		})
	}
}

// TestKeptConnectionAsHTTPWantsIt: the answer to HEAD has no body, whatever its header says, and
// trailers arrive.
func TestKeptConnectionAsHTTPWantsIt(t *testing.T) {
	front := keepingTo(t, play(t, []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n5\r\nwhole\r\n0\r\nSum: 1\r\n\r\n",
	}).address)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response, body := do(t, front.Server, r); response.ContentLength != 5 || body != "" {
		t.Errorf("HEAD: length %d, body %q", response.ContentLength, body)
	}
	if response, body := get(t, front.Server, "/"); body != "whole" || response.Trailer.Get("Sum") != "1" {
		t.Errorf("GET: body %q, trailers %v", body, response.Trailer)
	}
}

// TestKeptConnectionBreaks: a request is repeated only when nothing of an answer has come, and only
// once.
func TestKeptConnectionBreaks(t *testing.T) {
	t.Run("before the answer", func(t *testing.T) {
		front := keepingTo(t, play(t, []string{ok("first"), ""}, []string{ok("repeated")}).address)
		front.wants(t, 200, "first")
		front.wants(t, 200, "repeated")
	})
	t.Run("twice", func(t *testing.T) {
		front := keepingTo(t, play(t, []string{ok("first"), ""}, []string{""}).address)
		front.wants(t, 200, "first")
		front.wants(t, 502, "no HTTP answer")
	})
	t.Run("in the header", func(t *testing.T) {
		front := keepingTo(t, play(t, []string{ok("first"), "HTTP/1.1 200 O"}).address)
		front.wants(t, 200, "first")
		front.wants(t, 502, "no HTTP answer")
	})
	t.Run("in the body", func(t *testing.T) {
		front := keepingTo(t, play(t, []string{ok("first"), "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npart"}).address)
		front.wants(t, 200, "first")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := front.Client().Transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err == nil || string(body) != "part" {
			t.Errorf("%q, %v: want the part, and that it is one", body, err)
		}
	})
}

// TestClientLeaves: the connection to the server ends with the request, in its header and in its
// body.
func TestClientLeaves(t *testing.T) {
	for name, begun := range map[string]string{
		"before the answer": "",
		"in the body":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npart",
	} {
		t.Run(name, func(t *testing.T) {
			server := play(t, []string{ok("first"), begun + waits})
			front := keepingTo(t, server.address)
			front.wants(t, 200, "first")
			client := raw(t, front.Server, "GET / HTTP/1.1\nHost: a\n\n")
			if begun != "" {
				if _, err := io.ReadFull(client, make([]byte, 20)); err != nil {
					t.Fatal(err)
				}
			}
			client.Close()
			wait.For(t, "the end of the connection to the server", server.closed)
		})
	}
}

// TestUnaskedSwitchIsClosed: a server that switches to another protocol by itself keeps no
// connection of the proxy.
func TestUnaskedSwitchIsClosed(t *testing.T) {
	const answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: mine\r\nConnection: Upgrade\r\n\r\n"
	for name, request := range map[string]string{
		"kept connection":  "GET / HTTP/1.1\nHost: a\n\n",
		"fresh connection": "POST / HTTP/1.1\nHost: a\nContent-Length: 1\n\na",
		"other protocol":   "GET / HTTP/1.1\nHost: a\nConnection: Upgrade\nUpgrade: yours\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			server := play(t, []string{answer + waits})
			client := raw(t, keepingTo(t, server.address).Server, request)
			got := make([]byte, len("HTTP/1.1 502"))
			if _, err := io.ReadFull(client, got); err != nil || string(got) != "HTTP/1.1 502" {
				t.Errorf("%q, %v", got, err)
			}
			wait.For(t, "the end of the connection to the server", server.closed)
		})
	}
}
