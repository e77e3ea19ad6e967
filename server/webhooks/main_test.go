package webhooks_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/server/api"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/webhooks"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var birth = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// token is in the path of every receiver's URL, and like the key in no log.
const token = "token-of-the-path"

var key = []byte("0123456789abcdef0123456789abcdef")

// journal has events as the service's store does: one sequence without gaps, whose oldest part is
// forgotten.
type journal struct {
	mu      sync.Mutex
	events  []lifecycle.Event
	newest  int64
	changed chan struct{} // closed, and replaced, when there are new events
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

// add adds an event of each type, a second after the one before.
func (j *journal) add(types ...lifecycle.EventType) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, kind := range types {
		j.newest++
		at := birth.Add(time.Duration(j.newest) * time.Second)
		j.events = append(j.events, lifecycle.Event{Sequence: j.newest, SandboxID: "sandbox", Type: kind, Time: at, To: lifecycle.StateRunning})
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// trim forgets all but the newest events.
func (j *journal) trim(keep int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = j.events[len(j.events)-keep:]
}

// Events implements webhooks.Feed.
func (j *journal) Events(_ context.Context, selection lifecycle.EventSelection) (lifecycle.EventFeed, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := &feed{journal: j}
	switch after := selection.After; {
	case after == nil:
		f.cursor = j.newest
	case *after > j.newest:
		f.cursor, f.reset = j.newest, true
	case *after == 0:
		f.cursor = j.newest - int64(len(j.events))
	default:
		f.cursor = *after
	}
	return f, nil
}

type feed struct {
	journal      *journal
	cursor       int64
	reset, begun bool
}

func (f *feed) Close() {}

func (f *feed) Next(ctx context.Context) (lifecycle.EventBatch, error) {
	for {
		f.journal.mu.Lock()
		changed, behind := f.journal.changed, f.journal.newest-f.cursor
		batch := lifecycle.EventBatch{Cursor: f.journal.newest}
		if kept := int64(len(f.journal.events)); behind > kept || f.reset {
			f.reset = false
			batch.Reset, batch.Cursor = true, f.journal.newest-min(kept, max(behind, 0))
		} else {
			batch.Events = append(batch.Events, f.journal.events[kept-behind:]...)
		}
		f.journal.mu.Unlock()
		if !f.begun || batch.Reset || len(batch.Events) > 0 {
			f.begun, f.cursor = true, batch.Cursor
			return batch, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return lifecycle.EventBatch{}, ctx.Err()
		}
	}
}

// request is one that a receiver got.
type request struct {
	id, timestamp, signature, path, body string
}

// receiver is a server that answers as the test says and passes on what it gets.
type receiver struct {
	*httptest.Server
	got chan request
}

// newReceiver returns a receiver. Without an answer it accepts everything.
func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{got: make(chan request, 1000)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		r.got <- request{q.Header.Get("webhook-id"), q.Header.Get("webhook-timestamp"), q.Header.Get("webhook-signature"), q.URL.Path, string(body)}
		if answer != nil {
			answer(w, q)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) next(t *testing.T) request {
	t.Helper()
	return wait.For(t, "a request", r.got)
}

// wantIDs takes requests, whose ids have to begin like these.
func (r *receiver) wantIDs(t *testing.T, beginnings ...string) []request {
	t.Helper()
	var got []request
	for _, beginning := range beginnings {
		q := r.next(t)
		if !strings.HasPrefix(q.id, beginning+"_") {
			t.Fatalf("the id is %s, want %s_...", q.id, beginning)
		}
		got = append(got, q)
	}
	return got
}

// wantNone expects that there are no more requests than were taken.
func (r *receiver) wantNone(t *testing.T) {
	t.Helper()
	select {
	case q := <-r.got:
		t.Errorf("a request that was not expected: %+v", q)
	default:
	}
}

// service is what a dispatcher is embedded in, and outlives it.
type service struct {
	*journal
	directory string
	hooks     []webhooks.Webhook
	timeout   time.Duration
	body      func(lifecycle.Event) ([]byte, error)
	pauses    chan time.Duration // a pause ends when it is taken from here

	mu    sync.Mutex
	now   time.Time
	log   bytes.Buffer
	tried map[string]int       // by webhook and result
	after func(delivered bool) // runs after a try, before the cursor is written

	dispatcher *webhooks.Dispatcher
	stop       func()
}

func newService(t *testing.T, hooks ...webhooks.Webhook) *service {
	t.Helper()
	s := &service{
		journal: newJournal(), directory: filepath.Join(t.TempDir(), "webhooks"), hooks: hooks, body: api.EventBody,
		pauses: make(chan time.Duration), now: birth.Add(time.Hour), tried: map[string]int{}, stop: func() {},
	}
	t.Cleanup(func() {
		s.stop()
		for _, secret := range []string{token, string(key), base64.StdEncoding.EncodeToString(key)} {
			if strings.Contains(s.logged(), secret) {
				t.Errorf("%s is in the log\n%s", secret, s.logged())
			}
		}
	})
	return s
}

// hookOf returns a webhook for a receiver on this machine.
func hookOf(name string, r *receiver, events ...lifecycle.EventType) webhooks.Webhook {
	return webhooks.Webhook{Name: name, URL: r.URL + "/" + token, Events: events, Key: key, AllowPrivate: true}
}

// start opens the dispatcher and runs it, until the service is stopped or the test ends.
func (s *service) start(t *testing.T) *service {
	t.Helper()
	var err error
	s.dispatcher, err = webhooks.Open(t.Context(), webhooks.Options{
		Webhooks: s.hooks, Feed: s.journal, Directory: s.directory, Body: s.body, Logger: zerolog.New(s), Observer: s,
		Clock: s.clock, Sleep: s.sleep, Timeout: s.timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { s.dispatcher.Run(ctx); close(ended) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		wait.For(t, "the dispatcher to end", ended)
	})
	return s
}

func (s *service) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *service) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case s.pauses <- d:
		return true
	case <-ctx.Done():
		return false
	}
}

// paused waits for a pause, which ends at once.
func (s *service) paused(t *testing.T) time.Duration {
	t.Helper()
	return wait.For(t, "a pause", s.pauses)
}

// WebhookTried implements webhooks.Observer.
func (s *service) WebhookTried(webhook string, delivered bool) {
	s.mu.Lock()
	s.tried[fmt.Sprintf("%s %v", webhook, delivered)]++
	after := s.after
	s.mu.Unlock()
	if after != nil {
		after(delivered)
	}
}

func (s *service) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tried[name]
}

// Write appends to the log.
func (s *service) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

func (s *service) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// wantLogged expects that the log has each text so many times.
func (s *service) wantLogged(t *testing.T, times int, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if got := strings.Count(s.logged(), text); got != times {
			t.Errorf("%q is %d times in the log, want %d\n%s", text, got, times, s.logged())
		}
	}
}

// signatureOf is HMAC-SHA256 as RFC 2104 defines it, by hand.
func signatureOf(q request) string { return signatureBy(key, q) }

// signatureBy is signatureOf with another key.
func signatureBy(key []byte, q request) string {
	inner, outer := bytes.Repeat([]byte{0x36}, 64), bytes.Repeat([]byte{0x5c}, 64)
	for i, b := range key {
		inner[i] ^= b
		outer[i] ^= b
	}
	first := sha256.Sum256(append(inner, q.id+"."+q.timestamp+"."+q.body...))
	second := sha256.Sum256(append(outer, first[:]...))
	return "v1," + base64.StdEncoding.EncodeToString(second[:])
}
