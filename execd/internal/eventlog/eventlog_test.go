package eventlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

func newLog(t *testing.T, limit int64) *eventlog.Log {
	t.Helper()
	log := eventlog.New("id", eventlog.Options{Limit: limit, SpoolDir: t.TempDir(), Clock: time.Now})
	t.Cleanup(log.Close)
	return log
}

// all reads a log that has ended and returns its events as "type:text".
func all(t *testing.T, log *eventlog.Log, after int64) []string {
	t.Helper()
	r, err := log.Reader(after)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var events []string
	for {
		e, ok, err := r.Next()
		if errors.Is(err, io.EOF) {
			return events
		}
		if err != nil || !ok {
			t.Fatalf("after %d events: %v, %v", len(events), ok, err)
		}
		events = append(events, string(e.Type)+":"+string(e.Text))
	}
}

// Results may be larger than anything that a pipe brings at once, and lie in memory or in the file.
func TestLargeDetailsSurviveTheSpool(t *testing.T) {
	log := newLog(t, 1<<30)
	line := strings.Repeat("x", 999) + "\n"
	var want []string
	want = append(want, "init:id")
	for i := range 6 {
		detail := bytes.Repeat([]byte{byte('a' + i)}, 300_000+i)
		log.Event(eventlog.TypeResult, detail)
		want = append(want, "result:"+string(detail))
		for range 300 {
			log.Output(eventlog.TypeStdout, []byte(line), false)
			want = append(want, "stdout:"+line[:999])
		}
	}
	log.Finish(eventlog.TypeComplete, []byte("{}"))
	want = append(want, "execution_complete:{}")
	memory, disk := log.Held()
	if memory > 2<<20 || disk < 1<<20 {
		t.Errorf("%d bytes in memory, %d on disk: the test does not reach the file", memory, disk)
	}
	for _, after := range []int64{0, 1, 2, 299, 1000, int64(len(want)) - 1} {
		got := all(t, log, after)
		if len(got) != len(want)-int(after) {
			t.Fatalf("after %d: %d events, want %d", after, len(got), len(want)-int(after))
		}
		for i, e := range got {
			if e != want[int(after)+i] {
				t.Fatalf("after %d: event %d is %.40q, want %.40q", after, i, e, want[int(after)+i])
			}
		}
	}
}

// Many commands may run that have printed much. What has ended is bounded by the retention instead.
func TestLogsThatHaveNotEndedShareMemory(t *testing.T) {
	var memory eventlog.Memory
	directory := t.TempDir()
	start := func() *eventlog.Log {
		log := eventlog.New("id", eventlog.Options{Limit: 1 << 30, SpoolDir: directory, Memory: &memory, Clock: time.Now})
		t.Cleanup(log.Close)
		return log
	}
	line := []byte(strings.Repeat("x", 31<<10) + "\n") // of which two fill a segment
	say := func(log *eventlog.Log) (inMemory, onDisk int64) {
		for range 30 {
			log.Output(eventlog.TypeStdout, line, false)
		}
		return log.Held()
	}
	var logs []*eventlog.Log
	var held int64
	for range 80 {
		log := start()
		inMemory, _ := say(log)
		held += inMemory
		logs = append(logs, log)
	}
	if held > eventlog.MaxMemory+1<<20 || held < eventlog.MaxMemory/2 {
		t.Errorf("80 logs hold %d bytes in memory", held)
	}
	late := start()
	late.Event(eventlog.TypeStatus, []byte(strings.Repeat("s", 300))) // the daemon's own is little
	if _, disk := late.Held(); disk > 0 {
		t.Error("an event that is no output went to the file")
	}
	if inMemory, disk := say(late); inMemory > 1<<10 || disk < int64(30*len(line)) || !late.MayBlock() {
		t.Errorf("when others have the memory, a log holds %d bytes in memory and %d on disk", inMemory, disk)
	}
	for _, log := range append(logs, late) {
		log.Finish(eventlog.TypeComplete, nil)
	}
	for _, log := range []*eventlog.Log{logs[0], logs[79], late} {
		if events := all(t, log, 0); len(events) < 32 {
			t.Errorf("%d events", len(events))
		}
	}
	if _, disk := say(start()); disk > 0 {
		t.Error("logs that have ended still count")
	}
}

// TestTheFileHasNoName: by a name, even one for a moment, another process in the sandbox could open
// it and change what was recorded.
func TestTheFileHasNoName(t *testing.T) {
	directory := t.TempDir()
	log := eventlog.New("id", eventlog.Options{Limit: 1 << 30, SpoolDir: directory, Clock: time.Now})
	defer log.Close()
	for range 3000 {
		log.Output(eventlog.TypeStdout, make([]byte, 1000), false)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, entry := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + entry.Name())
		if filepath.Dir(target) != directory {
			continue
		}
		// The kernel calls a file that was made without a name #INODE.
		if found = true; !strings.HasPrefix(filepath.Base(target), "#") {
			t.Errorf("the file had the name %s", target)
		}
	}
	if !found {
		t.Error("there is no file")
	}
}

// TestAShortLogIsSmall: a thousand ended logs are kept, and most of them say little.
func TestAShortLogIsSmall(t *testing.T) {
	const id, exit = 36, 140 // the bytes of a UUID, and of how an interrupted command ended
	log := eventlog.New(strings.Repeat("i", id), eventlog.Options{Limit: 1 << 20, Clock: time.Now})
	log.Finish(eventlog.TypeError, make([]byte, exit))
	if memory, _ := log.Held(); memory > 256 {
		t.Errorf("a log with two events holds %d bytes", memory)
	}
	log = eventlog.New(strings.Repeat("i", id), eventlog.Options{Limit: 1 << 20, Clock: time.Now})
	log.Output(eventlog.TypeStdout, make([]byte, 100), true)
	log.Finish(eventlog.TypeError, make([]byte, exit))
	if memory, _ := log.Held(); memory > 512 {
		t.Errorf("a log with three events holds %d bytes", memory)
	}
	if got := all(t, log, 1); len(got) != 2 || got[1] != "error:"+strings.Repeat("\x00", exit) {
		t.Errorf("the events of the log are %q", got)
	}
}

func TestDetailsCountAsOutput(t *testing.T) {
	log := newLog(t, 1000)
	log.Event(eventlog.TypeResult, make([]byte, 900))
	log.Event(eventlog.TypeResult, make([]byte, 200))
	log.Output(eventlog.TypeStdout, []byte("late\n"), false)
	log.Finish(eventlog.TypeError, []byte("{}"))
	got := all(t, log, 1)
	if len(got) != 4 || !strings.HasPrefix(got[1], "status:output is cut here") || got[2] != "status:205 bytes of output were cut" {
		t.Errorf("events: %.60q", got)
	}
}

func TestLinesOfAMixedLog(t *testing.T) {
	log := newLog(t, 1<<20)
	log.Output(eventlog.TypeStdout, []byte("one\ntwo\n"), false)
	log.Event(eventlog.TypeResult, []byte("not output\n"))
	log.Output(eventlog.TypeStderr, []byte("thr"), true)
	log.Output(eventlog.TypeStderr, []byte("ee\n"), false)
	log.Output(eventlog.TypeStdout, []byte("open"), true)
	for _, step := range []struct {
		finish bool
		last   int64
		want   string
	}{{false, 2, "two\nthree\nopen"}, {true, 3, "two\nthree\nopen"}} {
		if step.finish {
			log.Finish(eventlog.TypeComplete, nil)
		}
		lines := log.Lines(0)
		var text bytes.Buffer
		if _, err := lines.WriteTo(&text); err != nil || text.String() != step.want || lines.Last != step.last {
			t.Errorf("finished %v: %q, last %d, error %v", step.finish, text.String(), lines.Last, err)
		}
	}
}

func TestReadersOfAnotherMomentSeeTheSame(t *testing.T) {
	log := newLog(t, 1<<30)
	early, err := log.Reader(0)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	done := make(chan []string)
	go func() {
		var events []string
		for {
			e, ok, err := early.Next()
			switch {
			case err != nil:
				done <- events
				return
			case ok:
				events = append(events, fmt.Sprint(e.ID, e.Type, string(e.Text)))
				continue
			}
			<-early.Wait()
		}
	}()
	for i := range 20_000 {
		log.Output(eventlog.TypeStdout, fmt.Appendf(nil, "line %d with some more text to fill the spool\nand another\n", i), false)
	}
	log.Finish(eventlog.TypeComplete, nil)
	followed := wait.For(t, "the end of the follower", done)
	if late := all(t, log, 0); len(late) != len(followed) || len(late) != 40_002 {
		t.Errorf("a follower saw %d events, a late reader %d", len(followed), len(late))
	}
}

func TestRetentionForgetsTheOldest(t *testing.T) {
	var forgotten []int
	retention := eventlog.NewRetention(func(i int) { forgotten = append(forgotten, i) })
	now := time.Now()
	for i := range 1100 {
		log := newLog(t, 1<<20)
		log.Finish(eventlog.TypeComplete, nil)
		retention.Add(i, log, now.Add(time.Duration(i)*time.Second))
	}
	if len(forgotten) != 100 || forgotten[0] != 0 || forgotten[99] != 99 {
		t.Errorf("%d forgotten: %v", len(forgotten), forgotten)
	}
}

func TestRetentionCountsWhatOwnersHold(t *testing.T) {
	forgotten := 0
	retention := eventlog.NewRetention(func(int) { forgotten++ })
	for i := range 100 {
		log := eventlog.New("id", eventlog.Options{Limit: 1, Beside: 1 << 20, Clock: time.Now})
		log.Finish(eventlog.TypeComplete, nil)
		retention.Add(i, log, time.Now())
	}
	if forgotten < 36 || forgotten > 40 {
		t.Errorf("of 100 logs whose owners hold 1 MiB each, %d are forgotten; 64 MiB may be held", forgotten)
	}
}

// TestWaitForWhatIsThere: what was recorded between Next and Wait needs no waiting.
func TestWaitForWhatIsThere(t *testing.T) {
	log := eventlog.New("id", eventlog.Options{Limit: 1 << 20, Clock: time.Now})
	r, err := log.Reader(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := r.Next(); ok || err != nil {
		t.Fatalf("there is an event after the first: %v, %v", ok, err)
	}
	select {
	case <-r.Wait():
		t.Fatal("nothing was recorded, and Wait has returned")
	default:
	}
	log.Finish(eventlog.TypeComplete, nil)
	select {
	case <-r.Wait():
	default:
		t.Error("Wait goes on although the log has ended")
	}
}

// TestTail: a reader of what comes from now on gets nothing of the past, and what follows once.
func TestTail(t *testing.T) {
	log := newLog(t, 1<<20)
	log.Output(eventlog.TypeStdout, []byte("one\ntwo\n"), false)
	log.Output(eventlog.TypeStdout, []byte("half"), true)
	r := log.Tail()
	defer r.Close()
	if e, ok, err := r.Next(); ok || err != nil {
		t.Fatalf("%+v, %v", e, err)
	}
	log.Output(eventlog.TypeStdout, []byte("three\nfour\n"), false)
	log.Finish(eventlog.TypeComplete, nil)
	for id, want := range []string{"three", "four", ""} {
		if e, ok, err := r.Next(); !ok || err != nil || string(e.Text) != want || e.ID != int64(5+id) {
			t.Errorf("%d %q, %v, %v, want %d %q", e.ID, e.Text, ok, err, 5+id, want)
		}
	}
	ended := log.Tail()
	defer ended.Close()
	for _, r := range []*eventlog.Reader{r, ended} {
		if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
	}
}
