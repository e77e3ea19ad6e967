package api_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

func TestForegroundStream(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	before := time.Now().UnixMilli()
	s := d.run(t, gen.CommandRequest{
		Command: `echo "$GREETING from $PWD"; echo; echo oops >&2`,
		Cwd:     &dir,
		Envs:    gen.Envs{"GREETING": "hello"},
	})
	first, second := s.must(), s.must()
	if first.Type != "init" || first.id != 1 || first.Text == "" || first.Text != s.response.Header.Get("X-Command-ID") {
		t.Errorf("the first event is %s, the header says %q", first.data, s.response.Header.Get("X-Command-ID"))
	}
	if second.Type != "ping" || second.Text != "pong" || second.id != 0 {
		t.Errorf("the second event is %s, want a ping without an id", second.data)
	}
	events := s.all(2)
	last := events[len(events)-1]
	if got, want := joined(events, "stdout"), "hello from "+dir+"\n\n"; got != want {
		t.Errorf("stdout is %q, want %q", got, want)
	}
	if got := joined(events, "stderr"); got != "oops\n" {
		t.Errorf("stderr is %q", got)
	}
	if last.Type != "execution_complete" || string(last.ExitCode) != "0" || last.ExecutionTime == nil || last.Error != nil {
		t.Errorf("the last event is %s", last.data)
	}
	for _, e := range append(events, first, second) {
		if e.Timestamp < before || e.Timestamp > time.Now().UnixMilli() {
			t.Errorf("the time of %s is not now", e.data)
		}
	}
}

func TestEveryEndIsToldOnce(t *testing.T) {
	t.Parallel()
	d := start(t)
	tests := []struct {
		name, line string
		timeout    int64 // milliseconds
		interrupt  bool
		kind, code string
		ename      string
		evalue     string
		reason     string
	}{
		{name: "success", line: "true", kind: "execution_complete", code: "0"},
		{name: "failure", line: "exit 3", kind: "error", code: "3", ename: "CommandExecError", evalue: "3", reason: "exit code 3"},
		{name: "unknown program", line: "no-such-program", kind: "error", code: "127", ename: "CommandExecError", evalue: "127", reason: "127"},
		{name: "signal", line: "kill -9 $$", kind: "error", code: "137", ename: "CommandExecError", evalue: "137", reason: "signal 9"},
		{name: "timeout", line: "echo on time; sleep 60", timeout: 200, kind: "error", code: "null", ename: "CommandTimeoutError", reason: "200 ms"},
		{name: "timeout not reached", line: "true", timeout: 60_000, kind: "execution_complete", code: "0"},
		{name: "interrupt", line: "sleep 60", interrupt: true, kind: "error", code: "143", ename: "CommandExecError", evalue: "143", reason: "interrupted"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			request := gen.CommandRequest{Command: test.line}
			if test.timeout > 0 {
				request.Timeout = &test.timeout
			}
			s := d.run(t, request)
			id := s.until("init").Text
			if test.interrupt {
				if status := d.status(t, id); !status.Running || status.ExitCode != nil || status.FinishedAt != nil {
					t.Errorf("the status of a running command is %+v", status)
				}
				d.interrupt(t, id)
			}
			events := s.all(2)
			last := events[len(events)-1]
			if last.Type != test.kind || string(last.ExitCode) != test.code || last.ExecutionTime == nil {
				t.Fatalf("the last event is %s", last.data)
			}
			if (last.Error != nil) != (test.kind == "error") {
				t.Fatalf("the last event is %s", last.data)
			}
			status := d.status(t, id)
			if status.Content != test.line || status.Running || status.FinishedAt == nil || status.FinishedAt.Before(status.StartedAt) {
				t.Errorf("the status is %+v", status)
			}
			code := "null"
			if status.ExitCode != nil {
				code = strconv.Itoa(*status.ExitCode)
			}
			if code != test.code || (status.Error != nil) != (last.Error != nil) {
				t.Errorf("the status has code %s and error %v, the stream ended with %s", code, status.Error, last.data)
			}
			if last.Error == nil {
				return
			}
			reason := strings.Join(last.Error.Traceback, "\n")
			if last.Error.Ename != test.ename || !strings.Contains(reason, test.reason) || *status.Error != reason {
				t.Errorf("the error is %s, the status says %q", last.data, *status.Error)
			}
			// Clients of the field read the exit code out of evalue with an integer parser.
			if _, err := strconv.Atoi(last.Error.Evalue); (err == nil) != (test.evalue != "") || test.evalue != "" && last.Error.Evalue != test.evalue {
				t.Errorf("evalue is %q, want %q", last.Error.Evalue, test.evalue)
			}
		})
	}
}

func TestManyLinesArriveInOrder(t *testing.T) {
	t.Parallel()
	const lines = 300_000
	d := start(t)
	s := d.run(t, gen.CommandRequest{Command: fmt.Sprint("seq ", lines)})
	s.sparse = true
	s.until("init")
	// The bytes are what counts: on a busy machine a line may come in two fragments.
	var want strings.Builder
	for i := range lines {
		want.WriteString(strconv.Itoa(i+1) + "\n")
	}
	if got := joined(s.all(2), "stdout"); got != want.String() {
		t.Fatalf("%d bytes came, want %d", len(got), want.Len())
	}
}

// TestReaderThatStopsReading does not stop the process: it ends, its 40 MB unread, while its client
// looks away for two seconds.
func TestReaderThatStopsReading(t *testing.T) {
	t.Parallel()
	const lines, width = 40_000, 1000
	d := start(t)
	marker := filepath.Join(t.TempDir(), "written")
	s := d.run(t, gen.CommandRequest{
		Command: fmt.Sprintf(`yes %s | head -n %d; touch %s`, strings.Repeat("x", width), lines, marker),
	})
	s.sparse = true
	s.until("init")
	away := time.NewTimer(2 * time.Second)
	wait.Until(t, "the command has written everything", func() bool {
		_, err := os.Stat(marker)
		return err == nil
	})
	<-away.C
	line := strings.Repeat("x", width) + "\n"
	if got := joined(s.all(2), "stdout"); got != strings.Repeat(line, lines) {
		t.Fatalf("%d bytes came, want %d", len(got), lines*len(line))
	}
}

// TestStreamCutFiftyTimes follows a command that writes arbitrary bytes and unfinished lines
// through fifty connections, each cut at a random event, and compares what arrived with what was
// written.
func TestStreamCutFiftyTimes(t *testing.T) {
	t.Parallel()
	const cuts = 50
	places := random.New(t)
	d := start(t)
	written := filepath.Join(t.TempDir(), "written")
	id := d.background(t, fmt.Sprintf(
		`for i in $(seq 20); do head -c 150000 /dev/urandom; printf 'no newline'; sleep 0.04; done | tee %s`, written))

	var seen []event
	follow := func(limit int) (ended bool) {
		ctx, cut := context.WithCancel(t.Context())
		defer cut()
		after := int64(len(seen))
		s := d.resume(ctx, t, id, after)
		s.sparse = true
		defer s.response.Body.Close()
		for range limit {
			e, err := s.next()
			if errors.Is(err, io.EOF) {
				return true
			}
			must(t, err)
			if e.Type == "ping" {
				continue
			}
			if want := int64(len(seen)) + 1; e.id != want {
				t.Fatalf("after a cut at event %d came event %d, want %d", after, e.id, want)
			}
			seen = append(seen, e)
		}
		return false
	}
	for range cuts {
		if follow(1 + places.IntN(200)) {
			t.Fatal("the stream ended before it was cut often enough")
		}
	}
	for !follow(1 << 30) {
	}

	sum := sha256.New()
	kinds := map[string]int{}
	for _, e := range seen {
		if e.output() {
			sum.Write(e.bytes())
		}
		if e.Partial {
			kinds["partial"]++
		}
		if e.Raw != nil {
			kinds["raw"]++
		}
	}
	if want := sha256.Sum256([]byte(read(t, written))); [32]byte(sum.Sum(nil)) != want {
		t.Error("the bytes that arrived are not those that were written")
	}
	if kinds["partial"] == 0 || kinds["raw"] == 0 || !seen[len(seen)-1].terminal() {
		t.Errorf("the stream had %v and ended with %s: it proves less than it should", kinds, seen[len(seen)-1].data)
	}
}

// TestFirstOutputArrivesWhileTheCommandRuns: a prompt, which has no newline, reaches the client
// before it is answered.
func TestFirstOutputArrivesWhileTheCommandRuns(t *testing.T) {
	t.Parallel()
	d := start(t)
	fifo := filepath.Join(t.TempDir(), "answer")
	must(t, syscall.Mkfifo(fifo, 0o600))
	for range 5 {
		s := d.run(t, gen.CommandRequest{Command: fmt.Sprintf(`printf 'name? '; read name < %s; echo "hello $name"`, fifo)})
		prompt := s.until("stdout")
		if prompt.Text != "name? " || !prompt.Partial {
			t.Fatalf("the first output is %s", prompt.data)
		}
		write(t, fifo, "you\n")
		events := s.all(prompt.id + 1)
		if len(events) != 2 || events[0].Text != "hello you" || events[0].Partial {
			t.Fatalf("after the prompt came %d events, first %s", len(events), events[0].data)
		}
	}
}

func TestManyClientsSeeTheSame(t *testing.T) {
	t.Parallel()
	const clients = 20
	d := start(t)
	id := d.background(t, `for i in $(seq 30); do echo "line $i"; printf 'part '; sleep 0.02; done`)
	streams := make([]*stream, clients)
	for i := range streams {
		streams[i] = d.resume(t.Context(), t, id, 0)
	}
	seen := make([]string, clients)
	var reading sync.WaitGroup
	for i, s := range streams {
		reading.Go(func() {
			var all strings.Builder
			for {
				e, err := s.next()
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Errorf("client %d: %v", i, err)
					}
					break
				}
				if e.Type != "ping" {
					fmt.Fprintf(&all, "%d %s\n", e.id, e.data)
				}
			}
			seen[i] = all.String()
		})
	}
	reading.Wait()
	for i := range seen {
		if seen[i] != seen[0] || !strings.Contains(seen[i], "line 30") || !strings.Contains(seen[i], "execution_complete") {
			t.Fatalf("client %d saw\n%s\nclient 0 saw\n%s", i, seen[i], seen[0])
		}
	}
}

func TestClosedConnectionDoesNotEndTheCommand(t *testing.T) {
	t.Parallel()
	d := start(t)
	dir := t.TempDir()
	fifo, marker := filepath.Join(dir, "go"), filepath.Join(dir, "done")
	must(t, syscall.Mkfifo(fifo, 0o600))
	ctx, leave := context.WithCancel(t.Context())
	response, err := d.client.RunCommand(ctx, nil, gen.CommandRequest{
		Command: fmt.Sprintf("echo before; read x < %s; echo after; touch %s; sleep 60", fifo, marker),
	})
	s := d.stream(t, response, err)
	id := s.until("init").Text
	last := s.until("stdout").id
	leave()
	write(t, fifo, "\n")
	wait.Until(t, "the command goes on without its client", func() bool {
		_, err := os.Stat(marker)
		return err == nil
	})
	if status := d.status(t, id); !status.Running {
		t.Fatalf("the status is %+v", status)
	}
	rest := d.resume(t.Context(), t, id, last)
	if e := rest.must(); e.Text != "after" || e.id != last+1 {
		t.Errorf("the stream goes on with %s", e.data)
	}
	d.interrupt(t, id)
	if e := rest.until("error"); string(e.ExitCode) != "143" {
		t.Errorf("the stream ends with %s", e.data)
	}
	d.interrupt(t, id) // one that has ended is left as it is
}

// TestBackgroundAsStream: clients of the field ask for an event stream for every command.
func TestBackgroundAsStream(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, accept := range []string{"text/event-stream", "application/json, text/event-stream;q=0.9"} {
		response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "sleep 60", Background: new(true)}, header("Accept", accept))
		s := d.stream(t, response, err)
		e := s.must()
		if e.Type != "init" || e.Text == "" || e.Text != response.Header.Get("X-Command-ID") {
			t.Errorf("the first event is %s", e.data)
		}
		if e, err := s.next(); !errors.Is(err, io.EOF) {
			t.Errorf("after init came %s, %v", e.data, err)
		}
		if status := d.status(t, e.Text); !status.Running {
			t.Errorf("the status is %+v", status)
		}
		d.interrupt(t, e.Text)
	}
}

func TestSilentStreamSaysThatItLives(t *testing.T) {
	t.Parallel()
	d := start(t)
	s := d.run(t, gen.CommandRequest{Command: "sleep 60"})
	id, greeting := s.must(), s.must()
	ping := s.must()
	if ping.Type != "ping" || ping.Text != "pong" || ping.id != 0 {
		t.Errorf("in silence came %s", ping.data)
	}
	if silence := ping.Timestamp - greeting.Timestamp; silence < 4_900 {
		t.Errorf("the ping came after %d ms of silence, want 5 s at least", silence)
	}
	d.interrupt(t, id.Text)
	s.until("error")
}

func TestStreamThatHasEndedEndsAgain(t *testing.T) {
	t.Parallel()
	d := start(t)
	s := d.run(t, gen.CommandRequest{Command: "echo one; echo two"})
	id := s.until("init").Text
	events := s.all(2)
	for after := range len(events) + 1 {
		if got := d.resume(t.Context(), t, id, int64(after)).all(int64(after) + 1); len(got) != len(events)+1-after {
			t.Errorf("after event %d came %d events", after, len(got))
		}
	}
	rest := d.resume(t.Context(), t, id, events[len(events)-1].id)
	if e, err := rest.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last event came %s, %v", e.data, err)
	}
}
