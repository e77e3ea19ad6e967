package sandbox_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sandbox "sandbox.internal/clients/go"
)

// TestLifecycle: what is asked for at a create and by a change, and that one that sleeps counts as
// Running.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	const settings = `{"onIdle":"pause","idleSeconds":0.05,"onTimeout":"delete","autoResume":false}`
	asked := map[string]string{}
	mux := http.NewServeMux()
	note := func(pattern string, status int, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			asked[pattern] = strings.TrimSpace(string(text))
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	const asleep = `{"id":"slept","status":{"state":"Paused","reason":"IDLE"},"createdAt":"2026-01-02T15:04:05Z","expiresAt":"2026-01-02T15:04:05Z"`
	note("POST /v1/sandboxes", 202, asleep+"}")
	note("GET /v1/sandboxes/slept", 200, asleep+`,"lifecycle":`+settings+"}")
	note("PATCH /v1/sandboxes/slept/lifecycle", 200, settings)
	note("GET /v1/sandboxes/slept/holds", 200, `{"holds":[{"kind":"code","id":"c","since":"2026-01-02T15:04:05Z"}],"idleMilliseconds":0}`)
	box, err := scripted(t, mux).Create(limited(t), &sandbox.CreateOptions{
		Image: "x", Timeout: time.Hour, Entrypoint: []string{"idle"}, CPU: "1", Memory: "64Mi",
		Lifecycle: &sandbox.LifecycleOptions{OnIdle: sandbox.OnIdlePause, Idle: 50 * time.Millisecond, AutoResume: new(false)},
	})
	check(t, err)
	if body := asked["POST /v1/sandboxes"]; !strings.Contains(body, `"lifecycle":{"autoResume":false,"idleSeconds":0.05,"onIdle":"pause"}`) {
		t.Errorf("asked for %s", body)
	}
	if _, err := box.Wait(limited(t), sandbox.Running); err != nil {
		t.Errorf("wait: %v", err)
	}
	changed, err := box.UpdateLifecycle(limited(t), sandbox.LifecycleOptions{OnTimeout: sandbox.OnTimeoutPause})
	check(t, err)
	if body := asked["PATCH /v1/sandboxes/slept/lifecycle"]; body != `{"onTimeout":"pause"}` || *changed.IdleSeconds != 0.05 || *box.Info().Lifecycle.OnIdle != "pause" {
		t.Errorf("asked for %s, got %+v", body, changed)
	}
	holds, err := box.Holds(limited(t))
	check(t, err)
	if len(holds.Holds) != 1 || holds.Holds[0].Kind != "code" {
		t.Errorf("holds %+v", holds)
	}
}
