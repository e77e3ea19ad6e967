package cli_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/cli"
	"sandbox.internal/clients/go/lifecycle"
)

// TestSleepFlags: what is asked for of the lifecycle, and what is shown.
func TestSleepFlags(t *testing.T) {
	t.Parallel()
	box := named(sandboxID, "box", "Running")
	box.Lifecycle = &lifecycle.SandboxLifecycle{OnIdle: new("pause"), IdleSeconds: new(30.0), HibernateSeconds: new(300.0), OnTimeout: new("pause"), AutoResume: new(true)}
	deep := named("5b0b9f6e-4c3f-4a53-8e0f-0d1f6f5d6b11", "hibernating", "Paused")
	deep.Lifecycle = new(*box.Lifecycle)
	deep.Lifecycle.OnIdle = new("hibernate")
	asked := ""
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		asked = string(text)
		answer(w, 202, lifecycle.CreatedSandbox{ID: sandboxID, ExpiresAt: time.Now().Add(time.Hour)})
	})
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, lifecycle.Version{Defaults: &lifecycle.CreateDefaults{Timeout: 700, Entrypoint: []string{"idle"}}})
	})
	mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, lifecycle.SandboxList{Items: []lifecycle.Sandbox{box, deep}})
	})
	mux.HandleFunc("GET /v1/sandboxes/"+deep.ID, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, deep) })
	mux.HandleFunc("GET /v1/sandboxes/"+sandboxID, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, box) })
	mux.HandleFunc("PATCH /v1/sandboxes/"+sandboxID+"/lifecycle", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		asked = string(text)
		changed := *box.Lifecycle
		changed.OnIdle, changed.AutoResume = new("delete"), new(false)
		answer(w, 200, changed)
	})
	mux.HandleFunc("GET /v1/sandboxes/"+sandboxID+"/holds", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, lifecycle.Holds{Holds: []lifecycle.Hold{{Kind: "command", ID: "c1", Since: time.Now().Add(-90 * time.Second)}, {Kind: "processor"}}})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	env := map[string]string{"SANDBOX_URL": server.URL}
	for _, test := range []struct {
		args                 string
		code                 int
		stdout, stderr, body string
	}{
		{"create x --no-wait --on-idle pause --idle 30s --on-timeout pause", 0, "", "", `"lifecycle":{"idleSeconds":30,"onIdle":"pause","onTimeout":"pause"}`},
		{"create x --no-wait --on-idle delete --idle 50ms --no-auto-resume", 0, "", "", `"lifecycle":{"autoResume":false,"idleSeconds":0.05,"onIdle":"delete"}`},
		{"create x --no-wait --on-idle hibernate --hibernate-after 5m", 0, "", "", `"lifecycle":{"hibernateSeconds":300,"onIdle":"hibernate"}`},
		{"create x --no-wait --hibernate-after 1ms", cli.ExitUsage, "", "hibernate-after: must be from 1s to 168h, not 1ms", ""},
		{"create x --no-wait --idle 1ms", cli.ExitUsage, "", "idle: must be from 50ms to 24h, not 1ms", ""},
		{"lifecycle box", 0, "ON IDLE  IDLE  HIBERNATE  ON TIMEOUT  AUTO RESUME\npause    30s   -          pause       yes", "", ""},
		{"lifecycle box --on-idle delete --no-auto-resume", 0, "delete   30s   -          pause       no", "", `{"autoResume":false,"onIdle":"delete"}`},
		{"lifecycle hibernating", 0, "ON IDLE    IDLE  HIBERNATE  ON TIMEOUT  AUTO RESUME\nhibernate  30s   5m0s       pause       yes", "", ""},
		{"get hibernating -o wide", 0, "pause after 30s idle, to disk after 300s more, pause at its expiry", "", ""},
		{"lifecycle box --auto-resume", 0, "30s", "", `{"autoResume":true}`},
		{"lifecycle box --auto-resume --no-auto-resume", cli.ExitUsage, "", "auto-resume: must not be given with --no-auto-resume", ""},
		{"lifecycle box --idle 25h", cli.ExitUsage, "", "idle: must be from 50ms to 24h, not 25h", ""},
		{"lifecycle box -o json", 0, `"onIdle": "pause"`, "", ""},
		{"holds box", 0, "command", "", ""},
		{"holds box -q", 0, "c1\nprocessor\n", "", ""},
		{"get box -o wide", 0, "pause after 30s idle, pause at its expiry", "", ""},
		{"get box -o yaml", 0, "idleSeconds: 30", "", ""},
	} {
		got := run(t.Context(), env, strings.Fields(test.args)...)
		if got.code != test.code || !strings.Contains(got.stdout, test.stdout) || !strings.Contains(got.stderr, test.stderr) {
			t.Errorf("%s: %d\n%s%s", test.args, got.code, got.stdout, got.stderr)
		}
		if !strings.Contains(asked, test.body) {
			t.Errorf("%s: asked for %s", test.args, asked)
		}
	}
}
