package goclient_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

const (
	// everyRequest is how many requests there are to one that is cut, where requests are;
	// mostRequest is how many bytes of it arrive at most.
	everyRequest = 3
	mostRequest  = 100 << 10
	streams      = 8 // at once
)

// testCuts: whatever is cut, and wherever, the output of commands arrives byte for byte.
func testCuts(t *testing.T, serviceURL string, box *sandbox.Sandbox) {
	ctx := limited(t)
	begin := time.Now()
	wanted := random.Long[int64](300, 1000)
	proxy := newCutter(t, serviceURL, 0, 3<<10, 0)
	client := dial(t, sandbox.Options{URL: proxy.url(), HTTPClient: wait.Client()})
	far := connect(t, proxy, client, box.ID())
	var all sync.WaitGroup
	for stream := range streams {
		stdout, stderr := lines(uint64(stream), 500), lines(uint64(stream)+100, 100)
		name := fmt.Sprintf("/cuts-%d", stream)
		check(t, box.Files.Write(ctx, name+".out", stdout, nil))
		check(t, box.Files.Write(ctx, name+".err", stderr, nil))
		all.Go(func() {
			for proxy.cuts.Load() < wanted {
				result, err := far.Commands.Run(ctx,
					fmt.Sprintf("cat %s.out; cat %s.err >&2; exit %d", name, name, stream), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if result.Stdout != string(stdout) || result.Stderr != string(stderr) ||
					result.ExitCode == nil || *result.ExitCode != stream {
					t.Errorf("stream %d: %d and %d bytes of %d and %d, exit code %v, equal: %v, %v", stream,
						len(result.Stdout), len(result.Stderr), len(stdout), len(stderr), result.ExitCode,
						result.Stdout == string(stdout), result.Stderr == string(stderr))
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d cuts in %v", proxy.cuts.Load(), time.Since(begin).Round(time.Millisecond))
}

// testStdin: what a command reads is what was given, exactly and once, whatever is cut.
func testStdin(t *testing.T, serviceURL string, box *sandbox.Sandbox) {
	ctx := limited(t)
	data := noise(5, 6<<20)
	want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
	result, err := box.Commands.Run(ctx, "sha256sum", &sandbox.RunOptions{Stdin: bytes.NewReader(data)})
	check(t, err)
	if result.Stdout != want || result.Err() != nil {
		t.Errorf("%+v, want %s", result, want)
	}

	started, err := box.Commands.Start(ctx, "sha256sum", &sandbox.RunOptions{OpenStdin: true})
	check(t, err)
	proxy := newCutter(t, serviceURL, 0, 2000, 0)
	proxy.anywhere = true
	client := dial(t, sandbox.Options{URL: proxy.url(), HTTPClient: wait.Client()})
	far := connect(t, proxy, client, box.ID())
	for rest := data; len(rest) > 0; { // each connection to the command goes on where the last one stopped
		var command *sandbox.Command
		proxy.spare(func() { command, err = far.Commands.Connect(ctx, started.ID) })
		check(t, err)
		stdin := command.Stdin(ctx)
		part := rest[:min(len(rest), 1<<20)]
		n, err := stdin.Write(part)
		check(t, err)
		if rest = rest[n:]; len(rest) == 0 {
			check(t, stdin.Close())
			check(t, stdin.Close())
			if _, err := stdin.Write(part); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("a write after the end: %v", err)
			}
		}
	}
	result, err = started.Wait(ctx, nil)
	check(t, err)
	if result.Stdout != want {
		t.Errorf("after %d cuts: %+v, want %s", proxy.cuts.Load(), result, want)
	}
	if proxy.requestCuts.Load() < 3 { // there are at least 24 requests of more than mostRequest bytes
		t.Errorf("%d requests were cut", proxy.requestCuts.Load())
	}

	// A command that reads no further does not fail its source, and a source that fails ends its
	// command.
	endless := io.MultiReader(strings.NewReader("first\n"), zeros{})
	result, err = box.Commands.Run(ctx, "head -n 1", &sandbox.RunOptions{Stdin: endless})
	check(t, err)
	if result.Stdout != "first\n" {
		t.Errorf("%+v", result)
	}
	broken := errors.New("the source is broken")
	_, err = box.Commands.Run(ctx, "cat; sleep 1000", &sandbox.RunOptions{Stdin: iotest.ErrReader(broken)})
	if !errors.Is(err, broken) {
		t.Errorf("a source that fails: %v", err)
	}
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// lines makes lines of any bytes, empty ones among them, and a last one without a newline.
func lines(seed uint64, count int) []byte {
	random := rand.New(rand.NewPCG(seed, 1))
	var text bytes.Buffer
	for range count {
		switch random.IntN(4) {
		case 0: // an empty line
		case 1:
			text.Write(bytes.ReplaceAll(noise(random.Uint64(), random.IntN(60)), []byte("\n"), nil))
		default:
			fmt.Fprintf(&text, "%d %s", random.Int(), strings.Repeat("ä", random.IntN(20)))
		}
		text.WriteByte('\n')
	}
	text.WriteString("the end")
	return text.Bytes()
}

// noise makes bytes that look random.
func noise(seed uint64, count int) []byte {
	random := rand.New(rand.NewPCG(seed, 2))
	data := make([]byte, count)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

// boxURL is the service of a sandbox.
func boxURL(box *sandbox.Sandbox) string {
	base, _, _ := strings.Cut(box.ProxyURL(1), "/v1/")
	return base
}

// cutter is a TCP proxy that resets its connections after random numbers of bytes. The answer to a
// POST is not cut before the end of its header, unless anywhere says so: a request that is not
// answered is repeated a few times only.
type cutter struct {
	listener    net.Listener
	to          atomic.Pointer[string]
	least, most int   // bytes that a connection lives for
	limit       int64 // of cuts; 0 is none
	anywhere    bool  // also in the header of an answer to a POST, and in requests
	whole       atomic.Bool
	cuts        atomic.Int64
	requests    atomic.Int64 // connections that may be cut in their request
	due         atomic.Bool  // the next request that is long enough is cut
	requestCuts atomic.Int64 // among cuts
	random      *rand.Rand
	ctx         context.Context
	all         sync.WaitGroup
}

func newCutter(t *testing.T, serviceURL string, least, most int, limit int64) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	p := &cutter{listener: listener, least: least, most: most, limit: limit, ctx: ctx, random: random.New(t)}
	p.lead(serviceURL)
	p.all.Go(p.serve)
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		p.all.Wait()
	})
	return p
}

// lead makes the proxy lead to another service.
func (p *cutter) lead(serviceURL string) {
	address := strings.TrimPrefix(serviceURL, "http://")
	p.to.Store(&address)
}

// spare runs f, whose connections are not cut: a request that is no stream is sent a few times
// only, and random cuts could hit each of them.
func (p *cutter) spare(f func()) {
	p.whole.Store(true)
	defer p.whole.Store(false)
	f()
}

func (p *cutter) url() string { return "http://" + p.listener.Addr().String() }

// connect connects to a sandbox through the proxy, which spares that.
func connect(t *testing.T, proxy *cutter, client *sandbox.Client, id string) (box *sandbox.Sandbox) {
	t.Helper()
	var err error
	proxy.spare(func() { box, err = client.Connect(limited(t), id) })
	check(t, err)
	return box
}

func (p *cutter) serve() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.all.Go(func() { p.pass(near.(*net.TCPConn)) })
	}
}

// pass serves one connection, and cuts it.
func (p *cutter) pass(near *net.TCPConn) {
	whole := p.whole.Load()
	conn, err := net.Dial("tcp", *p.to.Load())
	if err != nil {
		_ = near.Close()
		return
	}
	far := conn.(*net.TCPConn)
	closeBoth := func() { _, _ = near.Close(), far.Close() }
	defer closeBoth()
	defer context.AfterFunc(p.ctx, closeBoth)()
	first := make([]byte, 4)
	if _, err := io.ReadFull(near, first); err != nil {
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = far.Write(first)
		if p.anywhere && !whole && p.cutRequest(far, near) {
			closeBoth()
			return
		}
		_, _ = io.Copy(far, near)
		_ = far.CloseWrite()
	})
	defer up.Wait()
	defer closeBoth()
	left := p.least + p.random.IntN(p.most-p.least)
	buffer := make([]byte, 4<<10)
	header := string(first) == "POST" && !p.anywhere // still to come whole
	var tail []byte
	for {
		n, err := far.Read(buffer)
		data := buffer[:n]
		if header && n > 0 {
			tail = append(tail, data...)
			end := bytes.Index(tail, []byte("\r\n\r\n"))
			if header = end < 0; !header {
				left += n - (len(tail) - end - 4)
			} else {
				left += n
			}
		}
		if len(data) > left && !whole && (p.limit == 0 || p.cuts.Load() < p.limit) {
			_, _ = near.Write(data[:left])
			_ = near.SetLinger(0) // a reset
			p.cuts.Add(1)
			return
		}
		left = max(0, left-n)
		if _, failed := near.Write(data); failed != nil || err != nil {
			return
		}
	}
}

// cutRequest passes the beginning of every third request on and resets its connection. One that is
// shorter leaves that to the next. It reports false for a request that nothing of is passed on yet.
func (p *cutter) cutRequest(far, near *net.TCPConn) bool {
	if p.requests.Add(1)%everyRequest == 1 {
		p.due.Store(true)
	}
	if !p.due.Load() {
		return false
	}
	if _, err := io.CopyN(far, near, p.random.Int64N(mostRequest)); err != nil {
		return true // it has been answered, and was shorter
	}
	p.due.Store(false)
	_ = near.SetLinger(0)
	p.requestCuts.Add(1)
	p.cuts.Add(1)
	return true
}
