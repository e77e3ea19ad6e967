package tasks_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/internal/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "0", "a-b", strings.Repeat("a", 63)} {
		if err := tasks.CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "-a", "a-", "A", "a.b", "a/b", "ä", "a b", strings.Repeat("a", 64)} {
		if err := tasks.CheckName(name); err == nil || !strings.Contains(err.Error(), "name: must be a DNS label") {
			t.Errorf("%.70q: %v", name, err)
		}
	}
}

func TestValidate(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	full := tasks.Task{
		Command: []string{"x"}, Args: []string{""}, Env: []tasks.EnvVar{{Name: "A"}}, WorkingDir: "/", TimeoutSeconds: 31536000,
		Readiness: &tasks.Readiness{Port: 65535, Path: "/?a=b"}, GracePeriodSeconds: seconds(3600),
	}
	if err := full.Validate(); err != nil {
		t.Error(err)
	}
	if full.Grace() != time.Hour || (tasks.Task{}).Grace() != tasks.DefaultGrace {
		t.Error("grace")
	}
	for want, change := range map[string]func(*tasks.Task){
		"command: must name a program":             func(t *tasks.Task) { t.Command = nil },
		"command[1]: must not contain a NUL byte":  func(t *tasks.Task) { t.Command = []string{"x", "\x00"} },
		"args[0]: must not contain a NUL byte":     func(t *tasks.Task) { t.Args = []string{"\x00"} },
		`env[0].name: must be a name without "="`:  func(t *tasks.Task) { t.Env = []tasks.EnvVar{{Name: "A="}} },
		"env[0].value: must not contain":           func(t *tasks.Task) { t.Env = []tasks.EnvVar{{Name: "A", Value: "\x00"}} },
		"workingDir: must be an absolute path":     func(t *tasks.Task) { t.WorkingDir = "x" },
		"timeoutSeconds: must be 0 to 31536000":    func(t *tasks.Task) { t.TimeoutSeconds++ },
		"gracePeriodSeconds: must be 0 to 3600":    func(t *tasks.Task) { t.GracePeriodSeconds = seconds(-1) },
		"readiness.port: must be 1 to 65535":       func(t *tasks.Task) { t.Readiness = &tasks.Readiness{} },
		`readiness.path: must begin with "/"`:      func(t *tasks.Task) { t.Readiness = &tasks.Readiness{Port: 1, Path: "x"} },
		"have no spaces or control characters":     func(t *tasks.Task) { t.Readiness = &tasks.Readiness{Port: 1, Path: "/ x"} },
		"workingDir: must be an absolute path wit": func(t *tasks.Task) { t.WorkingDir = "/\x00" },
	} {
		task := full
		change(&task)
		if err := task.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// TestStrangers: answers that no executor gives are errors that say so.
func TestStrangers(t *testing.T) {
	answer := func(status int, body string) *tasks.Client {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(server.Close)
		return &tasks.Client{BaseURL: server.URL, HTTP: server.Client()}
	}
	if _, err := answer(502, "<html>").List(t.Context()); err == nil || !strings.Contains(err.Error(), "not from a task-executor") {
		t.Errorf("502: %v", err)
	}
	if _, err := answer(200, "<html>").List(t.Context()); err == nil || !strings.Contains(err.Error(), "not a task-executor's") {
		t.Errorf("200: %v", err)
	}
	for _, text := range []string{"<html>STOLEN", `{"version":"STOLEN"}`, `{"version":STOLEN}`} {
		for _, status := range []int{200, 302, 502} {
			if _, err := answer(status, text).List(t.Context()); err == nil || strings.Contains(err.Error(), "STOLEN") {
				t.Errorf("%d %s: %v", status, text, err)
			}
		}
	}
	_, err := answer(409, `{"code":"TASK_DIFFERS","message":"m"}`).Put(t.Context(), "a", tasks.Task{})
	if !tasks.HasCode(err, tasks.CodeTaskDiffers) || !strings.Contains(err.Error(), "m (409 TASK_DIFFERS)") {
		t.Errorf("409: %v", err)
	}
	if gone, err := answer(202, `{}`).Delete(t.Context(), "a", 0); gone || err != nil {
		t.Errorf("202: %t, %v", gone, err)
	}
	if _, err := (&tasks.Client{BaseURL: "http://127.0.0.1:1"}).List(t.Context()); err == nil || !strings.Contains(err.Error(), "GET /tasks") {
		t.Errorf("no listener: %v", err)
	}
}
