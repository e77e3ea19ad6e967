package console_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/server/console"
	"sandbox.internal/server/lifecycle"
)

// marks are those of replicas in one process.
type marks struct {
	mu  sync.Mutex
	all map[string]bool
}

func (m *marks) Mark(_ context.Context, name string, _ time.Time) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.all[name]
	m.all[name] = true
	return first, nil
}

func (m *marks) Marked(_ context.Context, name string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[name], nil
}

// replicas starts consoles of one service.
func replicas(t *testing.T, revoked *sync.Map) (services [2]*service) {
	t.Helper()
	shared := &console.Shared{
		Key: []byte(strings.Repeat("k", 32)), Marks: &marks{all: make(map[string]bool)},
		Fingerprint: func(principal lifecycle.Principal) (string, bool) {
			_, gone := revoked.Load(principal.Name)
			return "the digest of its key", !gone
		},
	}
	for i := range services {
		services[i] = start(t, console.Options{Shared: shared})
	}
	return services
}

// at returns the browser as it reaches another replica.
func (b browser) at(other *service) browser { return browser{other, b.cookie, b.token} }

// TestReplicasShareSessions sends the requests of one session round robin.
func TestReplicasShareSessions(t *testing.T) {
	var revoked sync.Map
	two := replicas(t, &revoked)
	b := two[0].signIn(t, "user-key")
	for i := range 1000 {
		if got := b.at(two[i%2]).asks(t, "/v1/sandboxes"); got.Name != "holder of user-key" {
			t.Fatalf("request %d: the API sees %+v", i, got)
		}
	}
	// A cookie alone, or of another session, is none at either.
	other := two[1].signIn(t, "user-key")
	for i, replica := range two {
		for name, wrong := range map[string]browser{
			"no token":        {replica, b.cookie, ""},
			"another's token": {replica, b.cookie, other.token},
			"a forged cookie": {replica, &http.Cookie{Name: b.cookie.Name, Value: "e30." + b.cookie.Value}, b.token},
		} {
			if got := wrong.asks(t, "/v1/sandboxes"); got.Name != "" {
				t.Errorf("replica %d, %s: the API sees %+v", i, name, got)
			}
		}
	}
	// What ends at one has ended at both.
	b.at(two[1]).send(t, http.MethodDelete, "/console/session", "")
	for i, replica := range two {
		if got := b.at(replica).asks(t, "/v1/sandboxes"); got.Name != "" {
			t.Errorf("replica %d: a session that was signed out lives: %+v", i, got)
		}
		if got := other.at(replica).asks(t, "/v1/sandboxes"); got.Name == "" {
			t.Errorf("replica %d: another session ended", i)
		}
	}
	// So does every session of a key that is none any more.
	revoked.Store("holder of admin-key", true)
	admin := two[0].signIn(t, "admin-key")
	if got := admin.at(two[1]).asks(t, "/v1/sandboxes"); got.Name != "" {
		t.Errorf("the API sees %+v of a key that is gone", got)
	}
}

// TestReplicasShareTickets: a ticket of one replica lets one WebSocket in, at any.
func TestReplicasShareTickets(t *testing.T) {
	two := replicas(t, new(sync.Map))
	b := two[0].signIn(t, "user-key")
	const path = "/v1/sandboxes/a/proxy/44772/pty/1/attach"
	attach := func(at *service, path, ticket string) string {
		t.Helper()
		return b.at(at).asks(t, path+"?console-ticket="+ticket, "Upgrade", "websocket", "Connection", "upgrade",
			"X-Sandbox-Console", "", "Origin", at.URL).Name
	}
	for i := range 20 {
		issuer, redeemer := two[i%2], two[(i/2)%2]
		answer := b.at(issuer).post(t, "/console/tickets", fmt.Sprintf(`{"path": %q}`, path))
		ticket := read[struct{ Ticket string }](t, answer).Ticket
		if attach(redeemer, path+"x", ticket) != "" {
			t.Fatalf("ticket %d is good for another path", i)
		}
		if attach(redeemer, path, ticket) == "" {
			t.Fatalf("ticket %d is refused", i)
		}
		for _, replica := range two {
			if attach(replica, path, ticket) != "" {
				t.Fatalf("ticket %d is good again", i)
			}
		}
	}
}

// TestReplicasEndStreams: a request that goes on at one replica ends after its session has ended at
// another.
func TestReplicasEndStreams(t *testing.T) {
	two := replicas(t, new(sync.Map))
	b := two[0].signIn(t, "user-key")
	waiting := b.at(two[1]).send(t, http.MethodGet, "/console/api/v1/wait", "")
	b.send(t, http.MethodDelete, "/console/session", "")
	text := make([]byte, 100)
	n, _ := waiting.Body.Read(text)
	if got := string(text[:n]); got != "the session has ended" {
		t.Errorf("the request ended with %q", got)
	}
}
