package e2e_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
	rules "sandbox.internal/server/lifecycle"
)

func TestLife(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	r := request(baseImage, "sleep", "1000")
	r.Metadata = lifecycle.Metadata{"name": "a life"}
	r.Extensions = json.RawMessage(`{"example.number":12345678901234567890}`)

	before := time.Now()
	created, err := s.api.CreateSandboxWithResponse(t.Context(), nil, r)
	if err != nil {
		t.Fatal(err)
	}
	box := created.JSON202
	if box == nil {
		t.Fatalf("create: %s: %s", created.Status(), created.Body)
	}
	id := box.ID
	watched := s.watch(t, id)
	if got := created.HTTPResponse.Header.Get("Location"); got != "/v1/sandboxes/"+id {
		t.Errorf("Location is %q", got)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(created.Body, &fields); err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(fields)), []string{"createdAt", "entrypoint", "expiresAt", "id", "metadata", "status"}; !slices.Equal(got, want) {
		t.Errorf("the create response has the fields %q, want %q", got, want)
	}
	if box.Status.State != "Pending" || box.Metadata["name"] != "a life" || !slices.Equal(box.Entrypoint, r.Entrypoint) {
		t.Errorf("created %+v", box)
	}
	if got := box.ExpiresAt.Sub(box.CreatedAt); got != 600*time.Second || box.CreatedAt.Before(before.Add(-time.Second)) {
		t.Errorf("created at %v, expires %v later", box.CreatedAt, got)
	}

	// Asked for right after the 202, the endpoint is the final one already.
	early := s.endpoint(t, id, daemonPort)
	running := s.await(t, id, "Running")
	watched.await(t, "Running")
	if running.Status.Reason != "CONTAINER_RUNNING" || running.Image.URI != baseImage || running.Metadata["name"] != "a life" {
		t.Errorf("running: %+v", running)
	}
	if late := s.endpoint(t, id, daemonPort); late.URL != early.URL || !maps.Equal(late.Headers, early.Headers) {
		t.Errorf("the endpoint was %v right after the 202 and is %v now", early, late)
	}
	inside := s.enter(t, id)
	inside.want(t, "echo hello; cat /proc/1/comm", "hello\nexecd\n")

	s.pause(t, id)
	if got := s.get(t, id).Status.State; got != "Paused" {
		t.Errorf("right after the 202 of pause the sandbox is %s", got)
	}
	watched.await(t, "Paused")
	s.resume(t, id)
	if got := s.get(t, id).Status.State; got != "Running" {
		t.Errorf("right after the 202 of resume the sandbox is %s", got)
	}
	inside.want(t, "echo again", "again\n")

	later := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
	renewed, err := s.api.RenewExpirationWithResponse(t.Context(), id, lifecycle.RenewRequest{ExpiresAt: later})
	if err != nil {
		t.Fatal(err)
	}
	if renewed.JSON200 == nil || !renewed.JSON200.ExpiresAt.Equal(later) || !s.get(t, id).ExpiresAt.Equal(later) {
		t.Errorf("renewed: %s: %s", renewed.Status(), renewed.Body)
	}

	s.delete(t, id)
	s.act(t, http.MethodDelete, id, http.StatusNoContent) // again, while Stopping
	if got := s.await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason of the end is %s", got.Reason)
	}
	watched.await(t, "Terminated")
	watched.stop()
	checkSequence(t, watched.states)
}

// watcher polls the state of a sandbox as fast as it can.
type watcher struct {
	mu     sync.Mutex
	states []string // one after the other, repetitions left out
	stop   func()
}

func (s *service) watch(t *testing.T, id string) *watcher {
	stop, done := make(chan struct{}), make(chan struct{})
	w := &watcher{stop: sync.OnceFunc(func() { close(stop); <-done })}
	t.Cleanup(w.stop)
	go func() {
		defer close(done)
		for {
			sandbox, err := decode[lifecycle.Sandbox](s.send(t, http.MethodGet, "/v1/sandboxes/"+id, ""))
			if err != nil {
				t.Error(err)
				return
			}
			w.saw(sandbox.Status.State)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return w
}

func (w *watcher) saw(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.states) == 0 || w.states[len(w.states)-1] != state {
		w.states = append(w.states, state)
	}
}

// await waits until the state was seen: the test itself must not leave it before.
func (w *watcher) await(t *testing.T, state string) {
	t.Helper()
	eventually(t, state+" was seen", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.states, state)
	})
}

// checkSequence holds states that were seen one after the other against the transitions table. A poll can miss states that the
// service leaves by itself, and no others.
func checkSequence(t *testing.T, states []string) {
	t.Helper()
	for i := 1; i < len(states); i++ {
		if !reaches(rules.State(states[i-1]), rules.State(states[i])) {
			t.Errorf("%s → %s is not in the transitions table; seen: %s", states[i-1], states[i], strings.Join(states, " → "))
		}
	}
}

func reaches(from, to rules.State) bool {
	for _, row := range rules.Transitions() {
		if row.From == from && (row.To == to || row.To.Transient() && row.To != from && reaches(row.To, to)) {
			return true
		}
	}
	return false
}

func TestEndpointOfAnotherPort(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	r := request(baseImage, "python3", "-m", "http.server", "8000")
	r.Env = lifecycle.Env{"PYTHONUNBUFFERED": "1"}
	id := s.running(t, r)
	for _, port := range []int{daemonPort, 8000} {
		endpoint := s.endpoint(t, id, port)
		if !strings.HasSuffix(endpoint.Endpoint, "/proxy/"+strconv.Itoa(port)) || endpoint.URL != "http://"+endpoint.Endpoint {
			t.Errorf("port %d: endpoint %q, url %q", port, endpoint.Endpoint, endpoint.URL)
		}
		path := "/"
		if port == daemonPort {
			path = "/metrics"
		}
		token := endpoint.Headers["X-EXECD-ACCESS-TOKEN"]
		for _, sent := range []struct {
			token string
			want  int
		}{{token, http.StatusOK}, {"", http.StatusUnauthorized}, {token + "x", http.StatusUnauthorized}} {
			eventually(t, "the server inside answers", func() bool {
				got := fetch(t, endpoint.URL+path, "X-EXECD-ACCESS-TOKEN", sent.token)
				if got.status == http.StatusBadGateway { // python3 does not listen yet
					return false
				}
				if got.status != sent.want {
					t.Errorf("port %d with token %q: %s, want %d", port, sent.token, got, sent.want)
				}
				return true
			})
		}
	}
}

// fetch gets a URL past every contract. Headers are pairs of name and value.
func fetch(t *testing.T, url string, headers ...string) answer {
	t.Helper()
	base := &http.Transport{DisableKeepAlives: true}
	got, err := (&client{http: &http.Client{Transport: base, Timeout: patience}}).try(http.MethodGet, url, "", headers...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// eventually polls until holds returns true.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) { // between two looks
		if time.Now().After(deadline) {
			t.Fatalf("after %v it does not hold that %s", patience, what)
		}
	}
}
