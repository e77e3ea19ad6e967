package webhooks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/webhooks"
	"sandbox.internal/test/loopback"
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
	files, err := filepath.Glob(filepath.Join(s.folder, "*.json"))
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
	file := onlyFile(t, s.folder)
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
func onlyFile(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
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
			if err := os.WriteFile(onlyFile(t, s.folder), []byte(content), 0o600); err != nil {
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

func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	other := newReceiver(t, nil)
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, other.URL, http.StatusTemporaryRedirect)
	})
	s := newService(t, hookOf("one", r)).start(t)
	s.add(state)
	s.paused(t)
	r.wantIDs(t, "evt_1", "evt_1")
	other.wantNone(t)
	s.wantLogged(t, 1, "the receiver answered 307 Temporary Redirect")
}

// TestPrivateAddresses: without allow_private no name leads to an address that is not public.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	_, port, err := net.SplitHostPort(r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{
		"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "169.254.169.254", "[fe80::1]", "10.1.2.3", "192.168.1.1", "[fd00::1]",
		"100.64.0.1", "[64:ff9b::7f00:1]",
	}
	for _, host := range hosts {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			hook := hookOf("one", r)
			hook.URL, hook.AllowPrivate = "http://"+host+":"+port+"/"+token, false
			s := newService(t, hook).start(t)
			s.add(state)
			s.paused(t)
			if !strings.Contains(s.logged(), syscall.EAFNOSUPPORT.Error()) { // no IPv6 here
				s.wantLogged(t, 1, "not a public address")
			}
		})
	}
	t.Cleanup(func() { r.wantNone(t) })
}

// TestNoProxy: a proxy of the environment would connect to what is refused here.
func TestNoProxy(t *testing.T) {
	proxy := newReceiver(t, nil)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	r := newReceiver(t, nil)
	hook := hookOf("one", r)
	// Requests to loopback addresses pass no proxy anyway.
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if ip, _, err := net.ParseCIDR(address.String()); err == nil && ip.To4() != nil && !ip.IsLoopback() {
			listener, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
			if err != nil {
				t.Fatal(err)
			}
			server := &httptest.Server{Listener: listener, Config: r.Config}
			server.Start()
			t.Cleanup(server.Close)
			hook.URL = server.URL
			break
		}
	}
	s := newService(t, hook).start(t)
	s.add(state)
	r.wantIDs(t, "evt_1")
	proxy.wantNone(t)
}

// TestEndlessAnswers: a status is enough; what follows is bounded.
func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 10)
	r := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		defer func() { ended <- struct{}{} }()
		chunk := make([]byte, 32<<10)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	s := newService(t, hookOf("one", r))
	s.timeout = time.Hour // not what ends it
	s.start(t)
	s.add(state, stage)
	r.wantIDs(t, "evt_1", "evt_2")
	wait.For(t, "the end of the first answer", ended)
	wait.For(t, "the end of the second answer", ended)
	s.wantLogged(t, 0, failing)

	headers := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 1000 {
			w.Header().Set(fmt.Sprintf("X-Header-%d", i), strings.Repeat("x", 100))
		}
	})
	s = newService(t, hookOf("one", headers)).start(t)
	s.add(state)
	s.paused(t)
	s.wantLogged(t, 1, failing)
}

// TestSilentReceiver: a try has a limit, which holds for the header and for the body.
func TestSilentReceiver(t *testing.T) {
	t.Parallel()
	silent := newReceiver(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	s := newService(t, hookOf("one", silent))
	s.timeout = 50 * time.Millisecond
	s.start(t)
	s.add(state)
	s.paused(t)
	s.wantLogged(t, 1, failing)

	unfinished := newReceiver(t, func(w http.ResponseWriter, q *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	})
	s = newService(t, hookOf("one", unfinished))
	s.timeout = time.Second
	s.start(t)
	s.add(state)
	wait.Until(t, "the event is delivered", func() bool {
		select {
		case <-s.pauses: // the machine was too slow for the header
		default:
		}
		return s.count("one true") == 1
	})
}

// TestSlowReceiver: it delays neither another webhook nor the end of the service.
func TestSlowReceiver(t *testing.T) {
	t.Parallel()
	slow := newReceiver(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	quick := newReceiver(t, nil)
	s := newService(t, hookOf("slow", slow), hookOf("quick", quick))
	s.timeout = time.Hour
	s.start(t)
	s.add(state)
	slow.wantIDs(t, "evt_1")
	for i := 2; i <= 300; i++ {
		s.add(stage)
	}
	quick.wantIDs(t, "evt_1")
	for i := 2; i <= 300; i++ {
		quick.wantIDs(t, fmt.Sprintf("evt_%d", i))
	}
	wait.Until(t, "the quick receiver has all", func() bool { return s.dispatcher.Oldest()["quick"] == 0 })
	if got, want := s.dispatcher.Oldest()["slow"], s.now.Sub(birth.Add(time.Second)); got != want {
		t.Errorf("the oldest undelivered event is %v old, want %v", got, want)
	}
	slow.wantNone(t)
	s.stop()
	if s.count("slow true") != 0 || s.count("slow false") != 0 {
		t.Errorf("a try that the end of the service has cut is counted: %v", s.tried)
	}
	s.wantLogged(t, 0, failing)
}

// TestGone: 410 ends the deliveries until the next start.
func TestGone(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(http.StatusGone))
	s := newService(t, hookOf("one", r)).start(t)
	s.add(state, stage)
	r.wantIDs(t, "evt_1")
	wait.Until(t, "the log says so", func() bool {
		return strings.Contains(s.logged(), "410 Gone: no deliveries until the service is restarted")
	})
	s.stop()
	r.wantNone(t)
	if s.dispatcher.Oldest()["one"] == 0 {
		t.Error("no event is undelivered")
	}
	s.start(t)
	r.wantIDs(t, "evt_1", "evt_2")
}

// TestCursorThatCannotBeWritten: deliveries go on, and the log says it once.
func TestCursorThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	s := newService(t, hookOf("one", r)).start(t)
	if err := os.RemoveAll(s.folder); err != nil {
		t.Fatal(err)
	}
	s.add(state, stage, state)
	r.wantIDs(t, "evt_1", "evt_2", "evt_3")
	wait.Until(t, "the deliveries are counted", func() bool { return s.count("one true") == 3 })
	if err := os.Mkdir(s.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	s.add(stage)
	r.wantIDs(t, "evt_4")
	wait.Until(t, "the cursor is written", func() bool {
		return strings.Contains(s.logged(), "the cursor of a webhook is written again")
	})
	s.wantLogged(t, 1, "cannot write the cursor of a webhook")
}

// TestUnreachableReceiver: the error has neither the path nor the query of the URL.
func TestUnreachableReceiver(t *testing.T) {
	t.Parallel()
	hook := webhooks.Webhook{Name: "one", URL: "http://" + loopback.Refusing(t) + "/" + token + "?key=" + token, Key: key, AllowPrivate: true}
	s := newService(t, hook).start(t)
	s.add(state)
	s.paused(t)
	s.wantLogged(t, 1, "connection refused")
}

func TestFolderThatCannotBeMade(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReceiver(t, nil)
	_, err := webhooks.Open(t.Context(), webhooks.Options{
		Webhooks: []webhooks.Webhook{hookOf("one", r)}, Feed: newJournal(), Folder: filepath.Join(file, "below"),
	})
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("the error is %v", err)
	}
}
