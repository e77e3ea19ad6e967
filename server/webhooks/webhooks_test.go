package webhooks_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

const (
	state, stage, forgotten = lifecycle.EventState, lifecycle.EventStage, lifecycle.EventForgotten

	failing, recovered = "cannot deliver events to a webhook", "events are delivered to a webhook again"
)

// status answers with the statuses in their order, and then with 204.
func status(statuses ...int) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		if i := int(n.Add(1)); i <= len(statuses) {
			w.WriteHeader(statuses[i-1])
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	s := newService(t, hookOf("all", r))
	s.add(state) // before there was a webhook
	s.start(t)
	s.add(stage)
	s.add(state, stage, forgotten)
	for _, q := range r.wantIDs(t, "evt_2", "evt_3", "evt_4", "evt_5") {
		if got := signatureOf(q); q.signature != got {
			t.Errorf("the signature is %s, want %s", q.signature, got)
		}
		if want := strconv.FormatInt(s.now.Unix(), 10); q.timestamp != want {
			t.Errorf("the timestamp is %s, want %s", q.timestamp, want)
		}
		if q.path != "/"+token {
			t.Errorf("the path is %s", q.path)
		}
		var body struct {
			Type, SandboxID string
			Timestamp       time.Time
		}
		if err := json.Unmarshal([]byte(q.body), &body); err != nil || body.SandboxID != "sandbox" || body.Type == "" || body.Timestamp.IsZero() {
			t.Errorf("%s: %v", q.body, err)
		}
	}
	wait.Until(t, "the deliveries are counted", func() bool { return s.count("all true") >= 4 })
	s.stop()
	r.wantNone(t)
	s.wantLogged(t, 0, failing, recovered)
	if s.count("all true") != 4 || s.count("all false") != 0 {
		t.Errorf("counted %v", s.tried)
	}
}

// TestPreviousKey: a second key makes a second signature.
func TestPreviousKey(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	hook := hookOf("all", r)
	hook.PreviousKey = bytes.Repeat([]byte("old"), 10)
	s := newService(t, hook)
	s.start(t)
	s.add(stage)
	for _, q := range r.wantIDs(t, "evt_1") {
		if want := signatureOf(q) + " " + signatureBy(hook.PreviousKey, q); q.signature != want {
			t.Errorf("the signatures are %s, want %s", q.signature, want)
		}
	}
	s.stop()
}

// TestSelection: the cursor passes events of other types, so that they are not read again.
func TestSelection(t *testing.T) {
	t.Parallel()
	r, only := newReceiver(t, nil), newReceiver(t, nil)
	s := newService(t, hookOf("all", r), hookOf("some", only, forgotten, state)).start(t)
	s.add(stage, state, stage, stage, forgotten, stage)
	r.wantIDs(t, "evt_1", "evt_2", "evt_3", "evt_4", "evt_5", "evt_6")
	only.wantIDs(t, "evt_2", "evt_5")
	files, err := filepath.Glob(filepath.Join(s.directory, "*.json"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, file := range files {
		wait.Until(t, "the cursor is that of the newest event", func() bool {
			content, err := os.ReadFile(file)
			return err == nil && string(content) == `{"cursor":6}`+"\n"
		})
	}
	only.wantNone(t)
}

func TestRetries(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(500, 404, 299, 503, 200))
	s := newService(t, hookOf("one", r)).start(t)
	s.add(state, stage)
	first, second := s.paused(t), s.paused(t)
	if first > time.Second || second < time.Second || second > 2*time.Second {
		t.Errorf("the pauses are %v and %v", first, second)
	}
	if third := s.paused(t); third > time.Second { // the delivery between has ended the growth
		t.Errorf("the pause after a delivery is %v", third)
	}
	got := r.wantIDs(t, "evt_1", "evt_1", "evt_1", "evt_2", "evt_2")
	if got[0].id != got[1].id || got[0].id != got[2].id || got[0].body != got[2].body || got[3].id != got[4].id {
		t.Errorf("tries of one event differ: %+v", got)
	}
	wait.Until(t, "the delivery is counted", func() bool { return s.count("one true") == 2 })
	s.stop()
	r.wantNone(t)
	s.wantLogged(t, 2, failing, recovered) // once for each change
	s.wantLogged(t, 1, "the receiver answered 500 Internal Server Error")
	if s.count("one false") != 3 {
		t.Errorf("counted %v", s.tried)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		if tries.Add(1) == 1 {
			w.Header().Set("Retry-After", "77")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	s := newService(t, hookOf("one", r)).start(t)
	s.add(state)
	if got := s.paused(t); got != 77*time.Second {
		t.Errorf("the pause is %v", got)
	}
	r.wantIDs(t, "evt_1", "evt_1")
}
