package webhooks_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/webhooks"
	"sandbox.internal/test/wait"
)

// TestKilledBeforeTheCursorIsWritten: the event is delivered again, with the same id.
func TestKilledBeforeTheCursorIsWritten(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	s := newService(t, hookOf("one", r))
	s.after = func(bool) { runtime.Goexit() } // nothing behind this place happens, as with a kill
	s.start(t)
	s.add(state, stage)
	first := r.wantIDs(t, "evt_1")
	wait.Until(t, "the try is counted", func() bool { return s.count("one true") == 1 })
	s.stop()
	r.wantNone(t)
	s.after = nil
	s.start(t)
	again := r.wantIDs(t, "evt_1", "evt_2")
	if first[0].id != again[0].id || first[0].body != again[0].body {
		t.Errorf("the second delivery differs: %+v, %+v", first[0], again[0])
	}
}

// TestRestart: what happens while the service is stopped is delivered, and what was delivered is
// not delivered again.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	s := newService(t, hookOf("one", r)).start(t)
	s.add(state)
	r.wantIDs(t, "evt_1")
	file := onlyFile(t, s.directory)
	wait.Until(t, "the cursor is written", func() bool {
		content, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(content), `"cursor":1`)
	})
	s.stop()
	s.add(stage)
	s.start(t)
	s.add(forgotten)
	r.wantIDs(t, "evt_2", "evt_3")

	// A webhook that is removed leaves nothing, and begins with the next event when it comes back.
	s.stop()
	hooks := s.hooks
	s.hooks = nil
	s.start(t)
	s.stop()
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the cursor of a removed webhook: %v", err)
	}
	s.add(state)
	s.hooks = hooks
	s.start(t)
	s.add(stage)
	r.wantIDs(t, "evt_5")
}

// onlyFile returns the path of the one cursor; beside it the draft of the next one may be.
func onlyFile(t *testing.T, directory string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	return files[0]
}

// TestLostEvents: events that are no longer kept are reported, with one id until the receiver has
// accepted that, whatever types it selects.
func TestLostEvents(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(200, 500, 500, 500))
	s := newService(t, hookOf("one", r, state)).start(t)
	s.add(state, state)
	r.wantIDs(t, "evt_1", "evt_2")
	s.add(state, state, state)
	s.trim(1)   // while it pauses
	s.paused(t) // after event 2
	s.paused(t) // after the reset
	wait.Until(t, "the reset is tried twice", func() bool { return s.count("one false") == 3 })
	s.stop()
	s.start(t)
	got := r.wantIDs(t, "reset_1", "reset_1", "reset_1", "evt_5")
	if got[0].id != got[1].id || got[0].id != got[2].id {
		t.Errorf("the ids of one reset: %+v", got)
	}
	want := fmt.Sprintf(`{"timestamp":%q,"type":"reset"}`, s.now.Format(time.RFC3339))
	if got[2].body != want {
		t.Errorf("the body is %s, want %s", got[2].body, want)
	}
	s.wantLogged(t, 1, "events that were not delivered to a webhook are no longer kept")
}

// TestLostFromTheFirst: a feed from 0 on has whatever is kept and reports no loss by itself.
func TestLostFromTheFirst(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]int{"some": 1, "all": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, nil)
			s := newService(t, hookOf("one", r)).start(t)
			s.stop() // with the cursor 0
			s.add(state, stage, forgotten)
			s.trim(keep)
			s.start(t)
			r.wantIDs(t, "reset_0")
			if keep > 0 {
				r.wantIDs(t, "evt_3")
			}
			s.add(state)
			r.wantIDs(t, "evt_4")
			r.wantNone(t)
		})
	}
}

// TestDamagedCursor: which events are undelivered is not known; the receiver gets a reset. So it is
// with a cursor of another database.
func TestDamagedCursor(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "{", `{"cursor":-1}`, `{"cursor":99}`} {
		t.Run(content, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, nil)
			s := newService(t, hookOf("one", r)).start(t)
			s.stop()
			if err := os.WriteFile(onlyFile(t, s.directory), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			s.add(state, stage)
			s.start(t)
			r.wantIDs(t, "reset")
			s.add(forgotten)
			r.wantIDs(t, "evt_3")
		})
	}
}

// TestCursorThatCannotBeWritten: deliveries go on, and the log says it once.
func TestCursorThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	s := newService(t, hookOf("one", r)).start(t)
	if err := os.RemoveAll(s.directory); err != nil {
		t.Fatal(err)
	}
	s.add(state, stage, state)
	r.wantIDs(t, "evt_1", "evt_2", "evt_3")
	wait.Until(t, "the deliveries are counted", func() bool { return s.count("one true") == 3 })
	if err := os.Mkdir(s.directory, 0o700); err != nil {
		t.Fatal(err)
	}
	s.add(stage)
	r.wantIDs(t, "evt_4")
	wait.Until(t, "the cursor is written", func() bool {
		return strings.Contains(s.logged(), "the cursor of a webhook is written again")
	})
	s.wantLogged(t, 1, "cannot write the cursor of a webhook")
}

func TestDirectoryThatCannotBeMade(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReceiver(t, nil)
	_, err := webhooks.Open(t.Context(), webhooks.Options{
		Webhooks: []webhooks.Webhook{hookOf("one", r)}, Feed: newJournal(), Directory: filepath.Join(file, "below"),
	})
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("the error is %v", err)
	}
}
