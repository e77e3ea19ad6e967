package enginetest

import (
	"bufio"
	"context"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

func (s *suite) testInspect(t *testing.T) {
	spec := s.spec("sleep")
	id := s.create(t, spec)
	byID, byName := s.inspect(t, id), s.inspect(t, spec.Name)
	if byID.ID != byName.ID || byName.Name != spec.Name {
		t.Errorf("by id %+v, by name %+v", byID, byName)
	}
	_, err := s.engine.Inspect(t.Context(), "enginetest-"+uuid.NewString())
	wantError(t, err, engine.ErrNotFound)
}

func (s *suite) testList(t *testing.T) {
	spec := s.spec("exit", "3")
	spec.Labels["enginetest/list"] = uuid.NewString()
	exited := s.start(t, spec)
	s.waitStatus(t, exited, engine.StatusExited)
	other := s.spec("sleep")
	other.Labels["enginetest/list"] = spec.Labels["enginetest/list"]
	other.Labels["enginetest/other"] = "a=b"
	created := s.create(t, other)
	for name, test := range map[string]struct {
		labels map[string]string
		want   []string
	}{
		"both":            {spec.Labels, []string{exited, created}},
		"one":             {other.Labels, []string{created}},
		"other value":     {map[string]string{"enginetest/list": "no such value"}, nil},
		"one label wrong": {map[string]string{runLabel: s.run, "enginetest/list": "no such value"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := s.engine.List(t.Context(), test.labels)
			if err != nil {
				t.Fatalf("List: %v", err)
			}
			byID := map[string]engine.Container{}
			for _, c := range found {
				byID[c.ID] = c
			}
			if len(found) != len(test.want) {
				t.Errorf("got %d containers, want %d", len(found), len(test.want))
			}
			for _, id := range test.want {
				got, want := byID[id], s.inspect(t, id)
				if got.Name != want.Name || got.Status != want.Status || !maps.Equal(got.Labels, want.Labels) || !maps.Equal(got.Ports, want.Ports) {
					t.Errorf("listed as %+v, inspected as %+v", got, want)
				}
			}
		})
	}
}

func (s *suite) testLogs(t *testing.T) {
	const limit = 64 << 10
	both := s.start(t, s.spec("print", "out:one", "err:two", "out:three"))
	many := s.start(t, s.spec("lines", "20000"))
	long := s.start(t, s.spec("print", "out:"+strings.Repeat("x", 100_000)))
	for _, id := range []string{both, many, long} {
		s.waitStatus(t, id, engine.StatusExited)
	}
	all := s.logs(t, both, 10)
	for _, word := range []string{"one\n", "two\n", "three\n"} {
		if !strings.Contains(all, word) {
			t.Errorf("%q is missing in %q", word, all)
		}
	}
	if got := s.logs(t, many, 2); got != "line 19999\nline 20000\n" {
		t.Errorf("the last two lines are %q", got)
	}
	if got := s.logs(t, many, 20_000); len(got) > limit || !strings.HasSuffix(got, "line 20000\n") {
		t.Errorf("all of it is %d bytes, ending in %q", len(got), got[max(0, len(got)-20):])
	}
	if got := s.logs(t, long, 10); len(got) > limit || len(got) < 1000 {
		t.Errorf("the long line is %d bytes", len(got))
	}
	if got := s.logs(t, s.create(t, s.spec("sleep")), 10); got != "" {
		t.Errorf("a container that never ran wrote %q", got)
	}
	_, err := s.engine.Logs(t.Context(), "enginetest-"+uuid.NewString(), 10)
	wantError(t, err, engine.ErrNotFound)
}

func (s *suite) testOpenLog(t *testing.T) {
	binary := s.start(t, s.spec("bytes"))
	id := s.start(t, s.spec("print", "out:one", "err:two", "out:"+strings.Repeat("x", 100_000), "out:three"))
	s.waitStatus(t, binary, engine.StatusExited)
	s.waitStatus(t, id, engine.StatusExited)
	readFrom := func(id string, options engine.LogOptions) string {
		t.Helper()
		log, err := s.engine.OpenLog(t.Context(), id, options)
		if err != nil {
			t.Fatalf("OpenLog: %v", err)
		}
		defer log.Close()
		text, err := io.ReadAll(log)
		if err != nil {
			t.Fatalf("read the log: %v", err)
		}
		return string(text)
	}
	read := func(options engine.LogOptions) string {
		t.Helper()
		return readFrom(id, options)
	}
	if got := readFrom(binary, engine.LogOptions{Tail: -1}); len(got) != 257 || got[255] != 255 || got[0] != 0 {
		t.Errorf("every byte there is came back as %q", got)
	}
	// The order of the two streams among each other is not specified.
	all := read(engine.LogOptions{Tail: -1})
	if got := strings.Replace(all, "two\n", "", 1); got != "one\n"+strings.Repeat("x", 100_000)+"\nthree\n" || len(got) == len(all) {
		t.Errorf("the log has %d bytes, from %.20q to %q", len(all), all, all[max(0, len(all)-20):])
	}
	if got := read(engine.LogOptions{Tail: 0}); got != "" {
		t.Errorf("the last 0 lines are %.20q", got)
	}
	if got := read(engine.LogOptions{Tail: -1, Since: time.Now().Add(time.Hour)}); got != "" {
		t.Errorf("since in an hour: %.20q", got)
	}
	if got := read(engine.LogOptions{Tail: -1, Since: time.Now().Add(-time.Hour), Follow: true}); got != all {
		t.Errorf("a log that is followed after the end has %d bytes", len(got))
	}
	_, err := s.engine.OpenLog(t.Context(), "enginetest-"+uuid.NewString(), engine.LogOptions{})
	wantError(t, err, engine.ErrNotFound)
}

func (s *suite) testOpenLogFollows(t *testing.T) {
	id := s.start(t, s.spec("count"))
	log, err := s.engine.OpenLog(t.Context(), id, engine.LogOptions{Tail: 0, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	lines := bufio.NewReader(log)
	for range 3 {
		if line, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
	}
	if err := s.engine.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Errorf("the log did not end with its container: %v", err)
	}
	// A reader that is closed in the middle is released: closing it twice, or late, blocks nothing.
	id = s.start(t, s.spec("count"))
	left, err := s.engine.OpenLog(t.Context(), id, engine.LogOptions{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := left.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (s *suite) testWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	label := uuid.NewString()
	ready, ended := make(chan struct{}), make(chan error, 1)
	events := make(chan engine.Event, 100)
	go func() {
		ended <- s.engine.Watch(ctx, map[string]string{runLabel: s.run, "enginetest/watch": label},
			func() { close(ready) },
			func(event engine.Event) { events <- event })
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("Watch ended: %v", err)
	}

	s.start(t, s.spec("exit", "0")) // not ours: it lacks a label
	spec := s.spec("trap")
	spec.Labels["enginetest/watch"] = label
	id := s.start(t, spec)
	s.waitLog(t, id, "ready")
	if err := s.engine.Freeze(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Thaw(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Stop(ctx, id, wait.Patience()); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	// An event may come twice, but none may be missing and what ends last is reported last.
	seen := map[engine.EventType]bool{}
	for !seen[engine.EventRemoved] {
		got := <-events
		seen[got.Type] = true
		if got.Labels["enginetest/watch"] != label || len(got.Labels) != 2 {
			t.Errorf("got %+v, which is not about the container or has other labels", got)
		}
	}
	for _, want := range []engine.EventType{engine.EventStarted, engine.EventFrozen, engine.EventThawed, engine.EventExited} {
		if !seen[want] {
			t.Errorf("%s was not reported", want)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("Watch returned no error when its context ended")
	}
}
