package sandboxhttp_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/wire/sandboxhttp"
)

// hostile answers every connection with these bytes and closes it.
func hostile(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 4096)
			conn.Read(buffer)
			io.WriteString(conn, answer)
			conn.Close()
		}
	}()
	return "http://" + listener.Addr().String()
}

func TestNoRedirectIsFollowed(t *testing.T) {
	var visits atomic.Int64
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visits.Add(1) }))
	defer secret.Close()
	client := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: time.Minute})
	for _, code := range []int{301, 302, 303, 307, 308} {
		for _, location := range []string{secret.URL, "http://%zz", ":stolen"} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", location)
				w.WriteHeader(code)
			}))
			for _, send := range []func(string) (*http.Response, error){client.Get, func(url string) (*http.Response, error) {
				return client.Post(url, "text/plain", strings.NewReader("body"))
			}} {
				response, err := send(server.URL)
				if err != nil {
					t.Errorf("%d to %q: %v", code, location, err)
					continue
				}
				response.Body.Close()
				if response.StatusCode != code || response.Header.Get("Location") != "" {
					t.Errorf("%d to %q: answered %s with Location %q", code, location, response.Status, response.Header.Get("Location"))
				}
			}
			server.Close()
		}
	}
	if n := visits.Load(); n != 0 {
		t.Errorf("%d redirections were followed", n)
	}
}

// TestNothingForeignGetsIntoAMessage: neither an error nor the status of an answer repeats what was
// sent.
func TestNothingForeignGetsIntoAMessage(t *testing.T) {
	const foreign = "STOLEN"
	client := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: time.Minute})
	for name, answer := range map[string]string{
		"no HTTP":        foreign + "\r\n\r\n",
		"version":        "HTTP/9" + foreign + " 200 OK\r\n\r\n",
		"status code":    "HTTP/1.1 " + foreign + " OK\r\n\r\n",
		"reason":         "HTTP/1.1 500 " + foreign + "\r\nContent-Length: 0\r\n\r\n",
		"unknown code":   "HTTP/1.1 599 " + foreign + "\r\nContent-Length: 0\r\n\r\n",
		"header line":    "HTTP/1.1 200 OK\r\n" + foreign + "\r\n\r\n",
		"content length": "HTTP/1.1 200 OK\r\nContent-Length: " + foreign + "\r\n\r\n",
		"two lengths":    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: " + foreign + "\r\n\r\n",
		"encoding":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + foreign + "\r\n\r\n",
		"location":       "HTTP/1.1 302 Found\r\nLocation: http://%zz" + foreign + "\r\n\r\n",
		"chunks":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + foreign + "\r\n",
		"trailer":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\n" + foreign + "\r\n\r\n",
		"huge header":    "HTTP/1.1 200 OK\r\nX: " + strings.Repeat(foreign, 100_000) + "\r\n\r\n",
		"nothing":        "",
	} {
		t.Run(name, func(t *testing.T) {
			response, err := client.Get(hostile(t, answer))
			message := ""
			if err != nil {
				message = err.Error()
			} else {
				_, failure := io.ReadAll(response.Body)
				response.Body.Close()
				message = response.Status
				if failure != nil {
					message += failure.Error()
				}
			}
			if strings.Contains(message, foreign) || message == "" {
				t.Errorf("the message is %q", message)
			}
		})
	}
	if _, err := client.Get(hostile(t, foreign+"\r\n\r\n")); !errors.Is(err, sandboxhttp.ErrNotHTTP) {
		t.Errorf("an answer that is not HTTP: %v", err)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/zipped" {
			w.Header().Set("Content-Encoding", "gzip")
		}
		for range 64 {
			if _, err := w.Write(make([]byte, 1024)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	for _, tt := range []struct {
		bound   int64
		want    int
		tooLong bool
	}{
		{0, 64 << 10, false},
		{64 << 10, 64 << 10, false},
		{64<<10 - 1, 64<<10 - 1, true},
		{1, 1, true},
		{sandboxhttp.Unbounded, 64 << 10, false},
	} {
		client := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: time.Minute, MaxAnswer: tt.bound})
		response, err := client.Get(server.URL + "/zipped")
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(response.Body)
		response.Body.Close()
		if len(data) != tt.want || errors.Is(err, sandboxhttp.ErrAnswerTooLong) != tt.tooLong {
			t.Errorf("bound %d: read %d bytes, want %d; error %v", tt.bound, len(data), tt.want, err)
		}
	}
}

func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:9")
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	response, err := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: time.Minute}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
}

func TestProof(t *testing.T) {
	challenge := sandboxhttp.NewChallenge()
	if challenge == sandboxhttp.NewChallenge() {
		t.Error("two challenges are equal")
	}
	proof := sandboxhttp.Proof("token", challenge)
	if len(proof) != 64 || !sandboxhttp.Proves(proof, "token", challenge) {
		t.Errorf("the proof %q does not prove", proof)
	}
	for name, wrong := range map[string][3]string{
		"another token":     {proof, "other", challenge},
		"another challenge": {proof, "token", sandboxhttp.NewChallenge()},
		"no proof":          {"", "token", challenge},
		"no token":          {sandboxhttp.Proof("", challenge), "", challenge},
		"no challenge":      {sandboxhttp.Proof("token", ""), "token", ""},
	} {
		if sandboxhttp.Proves(wrong[0], wrong[1], wrong[2]) {
			t.Errorf("%s: proves", name)
		}
	}
	for _, bad := range []string{"", challenge[:31], strings.ToUpper(challenge[:40]) + "G", challenge + challenge + "0", strings.Repeat("g", 32)} {
		if got := sandboxhttp.Proof("token", bad); got != "" {
			t.Errorf("the challenge %q is answered", bad)
		}
	}
	// So that the two sides, built at different times, understand each other.
	if got, want := sandboxhttp.Proof("token", strings.Repeat("0", 32)), vector; got != want {
		t.Errorf("the proof is %s, want %s", got, want)
	}
}

// vector is from: printf 'execd ping 1\n%032d' 0 | openssl dgst -sha256 -hmac token
const vector = "48db98e384ffdb1ab2e04c569a07f5d9c8cff362454b2d9e32b8201a35657291"

// TestAdmit: an address is refused after its name was resolved, and nothing is sent there.
func TestAdmit(t *testing.T) {
	var visits atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visits.Add(1) }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	refuse := true
	client := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: time.Minute, Admit: func(address netip.AddrPort) error {
		if refuse && address.Addr().Unmap().IsLoopback() {
			return refused
		}
		return nil
	}})
	url := "http://localhost:" + port
	if _, err := client.Get(url); !errors.Is(err, refused) || visits.Load() != 0 {
		t.Errorf("%v, %d visits", err, visits.Load())
	}
	refuse = false
	response, err := client.Get(url)
	if err != nil || visits.Load() != 1 {
		t.Fatalf("%v, %d visits", err, visits.Load())
	}
	response.Body.Close()
}
