package api_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// put writes to the standard input of a command and demands a status.
func (d *daemon) put(t *testing.T, id, body string, offset int64, end bool, status int) gen.CommandStdin {
	t.Helper()
	params := &gen.WriteCommandStdinParams{Offset: offset, End: &end}
	response, err := d.client.WriteCommandStdinWithBody(t.Context(), id, params, "application/octet-stream",
		strings.NewReader(body))
	answer, err := gen.ParseWriteCommandStdinResponse(must2(t, response, err))
	must(t, err)
	if answer.StatusCode() != status {
		t.Fatalf("%d bytes at %d: %s %s, want %d", len(body), offset, answer.Status(), answer.Body, status)
	}
	if answer.JSON200 == nil {
		return gen.CommandStdin{}
	}
	return *answer.JSON200
}

func must2[T any](t *testing.T, value T, err error) T {
	t.Helper()
	must(t, err)
	return value
}

func TestStdin(t *testing.T) {
	t.Parallel()
	d := start(t)
	const text = "every byte counts \x00\xff\r\n"
	s := d.run(t, gen.CommandRequest{Command: "cat", Stdin: new(true)})
	id := s.until("init").Text
	if state := d.put(t, id, text, 0, false, 200); state.Offset != int64(len(text)) || state.Closed {
		t.Errorf("%+v", state)
	}
	s.until("stdout") // it comes while the input is open
	d.put(t, id, text, 0, false, 200)
	d.put(t, id, "", int64(len(text))+1, false, 409)
	if stdin := d.status(t, id).Stdin; stdin == nil || stdin.Offset != int64(len(text)) || stdin.Closed {
		t.Errorf("the status has %+v", stdin)
	}
	if state := d.put(t, id, "end", int64(len(text)), true, 200); !state.Closed {
		t.Errorf("%+v", state)
	}
	s.all(3)
	d.put(t, id, "more", int64(len(text))+3, false, 409)
	log, _ := d.logs(t, id, nil)
	if log != text+"end" {
		t.Errorf("the command printed %q", log)
	}
	d.put(t, "none", "", 0, true, 404)
	without := d.background(t, "sleep 1000")
	d.put(t, without, "", 0, true, 409)
	if stdin := d.status(t, without).Stdin; stdin != nil {
		t.Errorf("a command without stdin has %+v", stdin)
	}
}

func TestStdinOfAFrozenSandboxWaits(t *testing.T) {
	t.Parallel()
	d := (&child{}).start(t, newTransport(t))
	s := d.run(t, gen.CommandRequest{Command: "cat", Stdin: new(true)})
	id := s.until("init").Text
	d.freeze(t)
	d.put(t, id, "text", 0, true, 200) // the pipe takes it
	d.thaw(t)
	if got := joined(s.all(2), "stdout"); got != "text" {
		t.Errorf("%q", got)
	}
}

// TestStdinAcrossCuts cuts connections at random bytes of requests, and sends each request until it
// is answered.
func TestStdinAcrossCuts(t *testing.T) {
	t.Parallel()
	d := start(t)
	random := rand.New(rand.NewPCG(7, 0))
	data := make([]byte, 2<<20)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	s := d.run(t, gen.CommandRequest{Command: "cksum", Stdin: new(true)})
	id := s.until("init").Text
	cuts := 0
	for at := 0; at < len(data); {
		size := min(len(data)-at, 1+random.IntN(40<<10))
		for random.IntN(4) > 0 {
			d.cutStdin(t, id, at, data[at:at+size], random.IntN(size))
			cuts++
		}
		at = int(d.put(t, id, string(data[at:at+size]), int64(at), at+size == len(data), 200).Offset)
	}
	want := fmt.Sprintf("%d %d", cksum(t, data), len(data))
	if got := joined(s.all(2), "stdout"); strings.TrimSpace(got) != want {
		t.Errorf("after %d cuts: %q, want %q", cuts, got, want)
	}
}

// cutStdin sends a request and closes its connection after some bytes of its body.
func (d *daemon) cutStdin(t *testing.T, id string, offset int, body []byte, sent int) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(d.url, "http://"))
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(wait.Deadline()))
	_, err = fmt.Fprintf(conn, "POST /command/%s/stdin?offset=%d&end=true HTTP/1.1\r\nHost: execd\r\n"+
		"Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s", id, offset, len(body), body[:sent])
	must(t, err)
}

// cksum is the checksum of POSIX.
func cksum(t *testing.T, data []byte) uint32 {
	t.Helper()
	var crc uint32
	add := func(b byte) {
		crc ^= uint32(b) << 24
		for range 8 {
			if crc&(1<<31) != 0 {
				crc = crc<<1 ^ 0x04c11db7
			} else {
				crc <<= 1
			}
		}
	}
	for _, b := range data {
		add(b)
	}
	for length := len(data); length > 0; length >>= 8 {
		add(byte(length))
	}
	return ^crc
}

func TestStdinOfOtherTypesIsRefused(t *testing.T) {
	t.Parallel()
	d := start(t)
	id := d.run(t, gen.CommandRequest{Command: "cat", Stdin: new(true)}).until("init").Text
	for _, target := range []string{"?offset=0", "?end=true", "?offset=-1", "?offset=0&offset=1"} {
		request, err := http.NewRequestWithContext(t.Context(), "POST", d.url+"/command/"+id+"/stdin"+target,
			bytes.NewReader([]byte("text")))
		must(t, err)
		request.Header.Set("Content-Type", map[bool]string{true: "text/plain", false: "application/octet-stream"}[target == "?offset=0"])
		response, err := d.http.Do(request)
		must(t, err)
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode != 400 {
			t.Errorf("%s: %s", target, response.Status)
		}
	}
}
