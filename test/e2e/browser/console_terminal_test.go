package browser_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"sandbox.internal/test/e2e/conformance"
)

// relay is a TCP relay before a service, which can cut its connections.
type relay struct {
	url string

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

func relayTo(t *testing.T, service string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "http://" + listener.Addr().String(), conns: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.pass(client, strings.TrimPrefix(service, "http://")) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.set(true)
		running.Wait()
	})
	return r
}

func (r *relay) pass(client net.Conn, to string) {
	defer client.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	r.mu.Lock()
	if r.down {
		r.mu.Unlock()
		return
	}
	r.conns[client] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, client)
	}()
	both := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // either end may be cut
			both <- struct{}{}
		}()
	}
	<-both
	client.Close()
	server.Close()
	<-both
}

// set cuts all connections, and refuses new ones while down.
func (r *relay) set(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	for conn := range r.conns {
		conn.Close()
	}
}

// TestConsoleTerminal: a terminal loses nothing when its connection is cut, neither what the
// program prints nor what is typed meanwhile; it follows the size of its window, and is still there
// when the page is loaded again.
func TestConsoleTerminal(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	id := s.Running(t, conformance.Request(baseImage, "sleep", "1000"))
	cutter := relayTo(t, s.URL)
	b := console(t, s, cutter.url, conformance.AdminKey)
	// All that is printed shall be in view.
	b.show(t, look{"high", 1280, 6000, "light"})
	b.visit(t, "#/sandboxes/"+id+"/terminal", says("No terminal is open"))
	b.settled(t, ".panel button", there(".screen[data-live=true]"))
	// As a keyboard does it: one event for a key that goes down, with its character.
	keys := func(text string) {
		t.Helper()
		for _, c := range text {
			key := input.DispatchKeyEventParams{
				Type: input.DispatchKeyEventTypeKeyDown,
				Key:  string(c),
				Text: string(c),
			}
			if c == '\r' {
				key.Key, key.WindowsVirtualKeyCode = "Enter", 13
			}
			b.do(t, "type", command(input.DispatchKeyEvent, key))
		}
	}
	screen := "document.querySelector('.xterm-rows').innerText.replaceAll('\\u00a0', ' ')"
	shows := func(text string) string { return fmt.Sprintf("%s.includes(%q)", screen, text) }
	b.click(t, ".screen")
	keys("for i in $(seq 300); do echo line $i.; sleep 0.02; done; echo com''plete\r")
	for i := range 6 {
		b.until(t, shows(fmt.Sprintf("line %d.", 1+40*i)))
		cutter.set(false)
		b.until(t, there(".screen[data-live=true]"))
	}
	cutter.set(true)
	b.until(t, there(".screen[data-live=false]"))
	keys("echo ty''ped\r")
	cutter.set(false)
	b.until(t, shows("complete"))
	b.until(t, shows("typed"))
	b.picture(t, "terminal")
	text := evaluate[string](t, b, screen)
	at := 0
	for i := 1; i <= 300; i++ {
		line := fmt.Sprintf("line %d.", i)
		found := strings.Index(text[at:], line)
		if found < 0 || strings.Count(text, line) != 1 {
			t.Fatalf("%q is %d times on the screen, in order: %v\n%s", line,
				strings.Count(text, line), found >= 0, text)
		}
		at += found
	}

	for _, height := range []int64{740, 800, 844} {
		b.show(t, look{"low", 1280, height, "light"})
		b.until(t, fmt.Sprintf("innerHeight === %d", height))
		b.until(t, `(() => {
			const [rows, box] = ['.xterm-screen', '.screen']
				.map((name) => document.querySelector(name).getBoundingClientRect());
			return rows.bottom <= box.bottom - 7; // its border and padding
		})()`)
	}
	b.picture(t, "low")

	b.show(t, look{"narrow", 360, 740, "dark"})
	keys("stty size\r")
	b.until(t, fmt.Sprintf("/^\\d+ [1-5]\\d *$/m.test(%s)", screen))
	b.show(t, look{"high", 1280, 6000, "light"})
	b.do(t, "load the page again", chromedp.Reload())
	b.until(t, there(".screen[data-live=true]"))
	b.until(t, shows("line 300."))
	b.settled(t, ".panel button", "document.querySelectorAll('.panel [role=tab]').length > 1")
	b.until(t, "document.activeElement.matches('[role=tabpanel]:not([hidden]) textarea')")
	keys("exit\r")
	b.until(t, says("The program ended with exit code 0"))
	for _, line := range s.Log.With("pty") {
		if strings.Contains(line, "console-ticket") {
			t.Errorf("a ticket is in the log: %s", line)
		}
	}
}
