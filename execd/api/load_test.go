package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// crowd is a client with room for many streams at once.
func crowd(t *testing.T) *http.Transport {
	transport := &http.Transport{MaxIdleConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// TestThousandStreamsAtOnce: each of a thousand commands has begun before any of them may go on,
// and each stream has its own bytes, all of them, and one end.
func TestThousandStreamsAtOnce(t *testing.T) {
	t.Parallel()
	const streams, lines = 1000, 40
	execd := &child{}
	d := execd.start(t, newTransport(t))
	before := execd.atRest(t, d)
	gate := filepath.Join(t.TempDir(), "gate")
	must(t, syscall.Mkfifo(gate, 0o600))
	release, err := os.OpenFile(gate, os.O_RDWR, 0)
	must(t, err)
	defer release.Close()

	client := &http.Client{Transport: crowd(t), Timeout: wait.Patience()}
	var begun, ended sync.WaitGroup
	begun.Add(streams)
	for i := range streams {
		ended.Go(func() {
			var once sync.Once
			defer once.Do(begun.Done)
			line := fmt.Sprintf(`echo begun; read -r go < %s; for n in {1..%d}; do echo "out %d $n"; echo "err %d $n" >&2; done; printf 'end %d'`,
				gate, lines, i, i, i)
			events, err := d.follow(t.Context(), client, line, func() { once.Do(begun.Done) })
			if err != nil {
				t.Errorf("stream %d: %v", i, err)
				return
			}
			var out, errs strings.Builder
			out.WriteString("begun\n")
			for n := range lines {
				fmt.Fprintf(&out, "out %d %d\n", i, n+1)
				fmt.Fprintf(&errs, "err %d %d\n", i, n+1)
			}
			fmt.Fprintf(&out, "end %d", i)
			if got := joined(events, "stdout"); got != out.String() {
				t.Errorf("stream %d: stdout is %q", i, got)
			}
			if got := joined(events, "stderr"); got != errs.String() {
				t.Errorf("stream %d: stderr is %q", i, got)
			}
		})
	}
	begun.Wait()
	if now := execd.holds(t); now.processes < streams && !t.Failed() {
		t.Errorf("%d commands run at once, want %d", now.processes, streams)
	}
	// Every shell takes one line: it reads a FIFO byte by byte.
	_, err = release.Write(bytes.Repeat([]byte("\n"), streams))
	must(t, err)
	ended.Wait()
	client.CloseIdleConnections()
	execd.backTo(t, before)
}

// follow runs a command in the foreground and returns its events, after it has checked their frame.
// The first output is reported. Unlike a stream it may be used by any goroutine.
func (d *daemon) follow(ctx context.Context, client *http.Client, line string, output func()) ([]event, error) {
	body, err := json.Marshal(gen.CommandRequest{Command: line})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/command", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(response.Body)
		return nil, errors.Join(fmt.Errorf("status %d: %s", response.StatusCode, text), err)
	}
	events, err := readEvents(bufio.NewReader(response.Body), 1, func(e event) {
		if e.output() {
			output()
		}
	})
	if err != nil {
		return nil, err
	}
	if len(events) == 0 || !events[len(events)-1].terminal() {
		return nil, errors.New("the stream ends without a terminal event")
	}
	return events, nil
}

// readEvents reads events, numbered from first on, to the end of what arrives. Pings are left out,
// and so is an event that did not arrive whole. The error says what is wrong with those that did.
func readEvents(in *bufio.Reader, first int64, each func(event)) ([]event, error) {
	var events []event
	var e event
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && len(line) == 0 && e.data == nil {
				return events, nil
			}
			return events, fmt.Errorf("the stream breaks off after %d events: %w", len(events), errCut)
		}
		line = line[:len(line)-1]
		if id, ok := bytes.CutPrefix(line, []byte("id: ")); ok {
			if e.id, err = strconv.ParseInt(string(id), 10, 64); err != nil {
				return events, err
			}
			continue
		}
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			e.data = data
			continue
		}
		if err := json.Unmarshal(e.data, &e); err != nil {
			return events, fmt.Errorf("event %q: %w", e.data, err)
		}
		if e.Type != "ping" {
			if want := first + int64(len(events)); e.id != want {
				return events, fmt.Errorf("event %s has id %d, want %d", e.data, e.id, want)
			}
			if len(events) > 0 && events[len(events)-1].terminal() {
				return events, fmt.Errorf("event %s comes after the terminal one", e.data)
			}
			events = append(events, e)
			each(e)
		}
		e = event{}
	}
}

// errCut: a connection ended before its answer did.
var errCut = errors.New("cut")

// TestManyCommandsLeaveNothing: not a goroutine, not a descriptor, not a process.
func TestManyCommandsLeaveNothing(t *testing.T) {
	t.Parallel()
	commands := random.Long(500, 2000)
	execd := &child{}
	d := execd.start(t, newTransport(t))
	client := &http.Client{Transport: crowd(t), Timeout: wait.Patience()}
	run := func() error {
		events, err := d.follow(t.Context(), client, ":", func() {})
		if err == nil && (len(events) != 2 || events[1].Type != "execution_complete") {
			err = fmt.Errorf("the last of %d events is %s", len(events), events[len(events)-1].data)
		}
		return err
	}
	before := execd.atRest(t, d)
	for i := range commands {
		if err := run(); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	client.CloseIdleConnections()
	execd.backTo(t, before)
}

// TestClientsCutAnywhere cuts the connections of sixty commands at random bytes, over and over. The
// commands go on, and what arrives in pieces is what they wrote.
func TestClientsCutAnywhere(t *testing.T) {
	t.Parallel()
	const clients, cuts = 60, 4
	places := random.New(t)
	execd := &child{}
	d := execd.start(t, newTransport(t))
	before := execd.atRest(t, d)
	dir := t.TempDir()
	var working sync.WaitGroup
	for i := range clients {
		working.Go(func() {
			written := filepath.Join(dir, strconv.Itoa(i))
			// Lines, fragments, and bytes that are not UTF-8.
			line := fmt.Sprintf(`for n in {1..20}; do head -c 3000 /dev/urandom; echo "line $n"; printf 'no newline '; done | tee %s`, written)
			body, err := json.Marshal(gen.CommandRequest{Command: line})
			if err != nil {
				t.Error(err)
				return
			}
			request := fmt.Sprintf("POST /command HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			var events []event
			var id string
			for cut := 0; ; cut++ {
				limit := int64(1 << 62)
				if cut < cuts {
					limit = 200 + places.Int64N(60_000)
				}
				got, err := d.cutAfter(t.Context(), request, limit, int64(len(events))+1)
				if err != nil && !errors.Is(err, errCut) {
					t.Errorf("client %d: %v", i, err)
					return
				}
				events = append(events, got...)
				if err == nil {
					break
				}
				if id == "" {
					if len(events) == 0 {
						t.Errorf("client %d: not even the id has arrived", i)
						return
					}
					id = events[0].Text
				}
				request = fmt.Sprintf("GET /command/%s/stream HTTP/1.1\r\nHost: x\r\nLast-Event-ID: %d\r\n\r\n", id, len(events))
			}
			sum := sha256.New()
			for _, e := range events {
				if e.output() {
					sum.Write(e.bytes())
				}
			}
			content, err := os.ReadFile(written)
			if want := sha256.Sum256(content); err != nil || [32]byte(sum.Sum(nil)) != want {
				t.Errorf("client %d: what arrived is not what was written (%v)", i, err)
			}
			if end := events[len(events)-1]; end.Type != "execution_complete" {
				t.Errorf("client %d: the last event is %s", i, end.data)
			}
		})
	}
	working.Wait()
	execd.backTo(t, before)
}

// cutAfter sends a request on a connection of its own and resets that after limit bytes of the
// answer. It returns the events that arrived whole, and errCut unless the answer came to its end
// before. The first limit leaves room for the answer's header and the first event.
func (d *daemon) cutAfter(ctx context.Context, request string, limit, first int64) ([]event, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := connection.SetDeadline(wait.Deadline()); err != nil {
		return nil, err
	}
	connection.(*net.TCPConn).SetLinger(0) // the daemon learns of it as of a client that crashed
	if _, err := io.WriteString(connection, request); err != nil {
		return nil, err
	}
	all := bufio.NewReader(connection)
	response, err := http.ReadResponse(all, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		return nil, fmt.Errorf("status %d: %s", response.StatusCode, text)
	}
	cut := &io.LimitedReader{R: response.Body, N: limit}
	events, err := readEvents(bufio.NewReader(cut), first, func(event) {})
	if err == nil && cut.N == 0 {
		err = errCut // between two events
	}
	return events, err
}
