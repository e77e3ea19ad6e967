package command_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

// give writes input and fails the test on an error.
func give(t *testing.T, c *command.Command, body string, offset int64, end bool) command.InputState {
	t.Helper()
	state, err := c.WriteInput(t.Context(), strings.NewReader(body), offset, end)
	if err != nil {
		t.Fatalf("write %d bytes at %d: %v", len(body), offset, err)
	}
	return state
}

func noise(seed uint64, count int) []byte {
	random := rand.New(rand.NewPCG(seed, 0))
	data := make([]byte, count)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

func TestInputIsExact(t *testing.T) {
	m := newManager(t)
	data := noise(1, 3<<20)
	c := start(t, m, command.Spec{Command: "sha256sum", Input: true})
	state, err := c.WriteInput(t.Context(), bytes.NewReader(data), 0, true)
	if err != nil || state.Offset != int64(len(data)) || !state.Closed {
		t.Fatalf("%+v, %v", state, err)
	}
	want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
	if got := rebuild(all(t, c), eventlog.TypeStdout); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if input := c.Status().Input; input == nil || *input != state {
		t.Errorf("the status of the ended command has %+v", input)
	}
}

func TestInputComesBitByBit(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: `while read line; do echo "<$line>"; done; echo over`, Input: true})
	shows := func(want string) func(event) bool {
		return func(e event) bool { return e.text == want }
	}
	give(t, c, "one\n", 0, false)
	follow(t, c, 0, shows("<one>"))
	give(t, c, "", 4, false) // changes nothing
	if state := give(t, c, "two\n", 4, false); state.Offset != 8 || state.Closed {
		t.Errorf("%+v", state)
	}
	follow(t, c, 0, shows("<two>"))
	give(t, c, "", 8, true)
	if got := rebuild(all(t, c), eventlog.TypeStdout); got != "<one>\n<two>\nover\n" {
		t.Errorf("%q", got)
	}
}

// TestRepeatedInputArrivesOnce sends every piece several times, and in parts, as clients do whose
// answers are lost.
func TestRepeatedInputArrivesOnce(t *testing.T) {
	m := newManager(t)
	data := noise(2, 1<<20)
	c := start(t, m, command.Spec{Command: "sha256sum", Input: true})
	random := rand.New(rand.NewPCG(3, 0))
	for at := 0; at < len(data); {
		size := min(len(data)-at, 1+random.IntN(100<<10))
		piece := data[at : at+size]
		// A connection that is cut: the body breaks off.
		cut := io.MultiReader(bytes.NewReader(piece[:random.IntN(size)]), iotest.ErrReader(io.ErrUnexpectedEOF))
		if _, err := c.WriteInput(t.Context(), cut, int64(at), true); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("a body that breaks off: %v", err)
		}
		var both sync.WaitGroup // a repetition while the first request still writes
		for range 2 {
			both.Go(func() {
				state, err := c.WriteInput(t.Context(), bytes.NewReader(piece), int64(at), false)
				if err != nil || state.Offset != int64(at+size) || state.Closed {
					t.Errorf("%d bytes at %d: %+v, %v", size, at, state, err)
				}
			})
		}
		both.Wait()
		at += size
	}
	for range 2 {
		if state := give(t, c, string(data[len(data)-10:]), int64(len(data)-10), true); !state.Closed {
			t.Errorf("after the end: %+v", state)
		}
	}
	want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
	if got := rebuild(all(t, c), eventlog.TypeStdout); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestInputThatDoesNotFit(t *testing.T) {
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "cat; sleep 1000", Input: true})
	give(t, c, "0123456789", 0, false)
	refused := func(what, says string, body string, offset int64, end bool) {
		t.Helper()
		_, err := c.WriteInput(t.Context(), strings.NewReader(body), offset, end)
		if !errors.Is(err, command.ErrConflict) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("beyond", "has 10 bytes", "x", 11, false)
	refused("nothing, beyond", "has 10 bytes", "", 11, false)
	refused("an end beyond", "has 10 bytes", "", 11, true)
	refused("an end before", "ends at 9 bytes", "", 9, true)
	give(t, c, "", 10, true)
	refused("behind the end", "ended at 10 bytes", "x", 10, false)
	c = start(t, m, command.Spec{Command: "cat"})
	refused("no input", "no standard input", "", 0, true)
	if got := rebuild(all(t, c), eventlog.TypeStdout); got != "" {
		t.Errorf("without input, cat printed %q", got)
	}
}

func TestInputPushesBack(t *testing.T) {
	m := newManager(t)
	directory := t.TempDir()
	c := start(t, m, command.Spec{Command: "until test -e go; do sleep 0.01; done; cksum", Dir: directory, Input: true})
	data := bytes.Repeat([]byte("x"), 1<<20)
	body := &counted{Reader: bytes.NewReader(data)}
	begin := time.Now()
	state, err := c.WriteInput(t.Context(), body, 0, false)
	if err != nil || state.Closed || state.Offset == 0 || state.Offset > 256<<10 {
		t.Fatalf("a command that reads nothing took %+v, %v", state, err)
	}
	if waited := time.Since(begin); waited < 4*time.Second {
		t.Errorf("the answer came after %v", waited)
	}
	if ahead := int64(body.read) - state.Offset; ahead > 32<<10 {
		t.Errorf("%d bytes were read and not written", ahead)
	}
	if err := os.WriteFile(directory+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for at := state.Offset; at < int64(len(data)); at = state.Offset {
		if state, err = c.WriteInput(t.Context(), bytes.NewReader(data[at:]), at, true); err != nil {
			t.Fatal(err)
		}
	}
	if got := rebuild(all(t, c), eventlog.TypeStdout); !strings.HasSuffix(got, fmt.Sprintf(" %d\n", len(data))) {
		t.Errorf("%q", got)
	}
}

// TestSlowInputIsAnswered: a command that never stops reading, but is slow, does not hold its
// client's request for ever.
func TestSlowInputIsAnswered(t *testing.T) {
	m := newManager(t)
	// It reads 4 KiB at a time, for a second at least, and then the rest.
	c := start(t, m, command.Spec{Command: "for i in $(seq 100); do head -c 4096; sleep 0.01; done >/dev/null; cat | wc -c", Input: true})
	data := noise(4, 1<<20)
	const limit = 250 * time.Millisecond
	var state command.InputState
	requests := 0
	for ; !state.Closed; requests++ {
		before, begin := state.Offset, time.Now()
		var err error
		state, err = c.WriteInputFor(t.Context(), limit, bytes.NewReader(data[before:]), before, true)
		if err != nil || state.Offset < before {
			t.Fatalf("request %d at %d: %+v, %v", requests, before, state, err)
		}
		if waited := time.Since(begin); waited > limit+5*time.Second {
			t.Errorf("request %d was answered after %v", requests, waited)
		}
	}
	if state.Offset != int64(len(data)) || requests < 2 {
		t.Errorf("%+v after %d requests", state, requests)
	}
	if got, want := rebuild(all(t, c), eventlog.TypeStdout), fmt.Sprintf("%d\n", len(data)-100*4096); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

type counted struct {
	io.Reader
	read int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read += n
	return n, err
}

func TestInputOfACommandThatReadsNoFurther(t *testing.T) {
	m := newManager(t)
	before := pipes(t)
	data := strings.Repeat("x", 1<<20)
	for name, spec := range map[string]string{
		"it ends while a request waits": "head -c 1 >/dev/null",
		"it closes its input":           "exec <&-; sleep 0.1; echo still there",
		"another process keeps it open": "sleep 1000 <&0 & head -c 1 >/dev/null; echo $!",
	} {
		c := start(t, m, command.Spec{Command: spec, Input: true})
		state := give(t, c, data, 0, true)
		awaitEnd(t, c)
		again := give(t, c, data, state.Offset, true)
		if !state.Closed || state.Offset == int64(len(data)) || again != state {
			t.Errorf("%s: %+v, then %+v", name, state, again)
		}
		if status := c.Status(); status.ExitCode == nil || *status.ExitCode != 0 {
			t.Errorf("%s: %+v", name, status)
		}
		var left int
		if _, err := fmt.Sscan(rebuild(all(t, c), eventlog.TypeStdout), &left); err == nil {
			if err := syscall.Kill(left, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	wait.Until(t, "all pipes are closed", func() bool { return pipes(t) <= before })
}

func TestAnotherUserMayOpenItsInput(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to change users")
	}
	m := newManager(t)
	for name, spec := range map[string]command.Spec{
		"user of the request":     {Command: "cat /dev/stdin", UID: new(uint32(65534))},
		"group of the request":    {Command: "cat /proc/self/fd/0", GID: new(uint32(65534))},
		"user that it changes to": {Command: "setpriv --reuid=65534 --regid=65534 --clear-groups cat /dev/stdin"},
		"the daemon's":            {Command: "cat /dev/stdin"},
	} {
		spec.Input, spec.Dir = true, "/"
		c := start(t, m, spec)
		give(t, c, "text", 0, true)
		if got := rebuild(all(t, c), eventlog.TypeStdout); got != "text" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
