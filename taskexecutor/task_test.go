package taskexecutor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/test/wait"
)

// TestInsideTheMainContainer: a task is in the main container as if its first process had started
// it.
func TestInsideTheMainContainer(t *testing.T) {
	p := start(t, podOptions{main: []string{
		"-u", "1234:77", "--group-add", "55", "-w", "/srv", "-e", "FROM=main", "-e", "OVER=main", "-e", "EXECD_ACCESS_TOKEN=secret",
		"--tmpfs", "/data:mode=1777", "--cap-drop", "NET_RAW", "--security-opt", "no-new-privileges",
	}})
	script := `{ id -u; id -g; id -G; pwd; umask; echo "$FROM $OVER $OWN $0 $1"; grep -E "^(CapBnd|CapInh|NoNewPrivs|CapAmb)" /proc/self/status
		env | grep -c -E "EXECD|TASK_EXECUTOR"; readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/pid
		ls -l /proc/self/fd | grep -c task-executor; } > /data/task; echo done >> /data/task`
	p.put("look", tasks.Task{
		Command: []string{"bash", "-c"}, Args: []string{script, "zero", "one two"},
		Env: []tasks.EnvVar{{Name: "OVER", Value: "task"}, {Name: "OWN", Value: "x"}, {Name: "OWN", Value: "y"}},
	})
	status := p.ended("look", tasks.Succeeded, "")
	if status.ExitCode == nil || *status.ExitCode != 0 || status.StartedAt == nil || status.StartedAt.After(*status.FinishedAt) {
		t.Errorf("status %+v", status)
	}
	want := "1234\n77\n77 55\n/srv\n0022\nmain task y zero one two\n" + p.sh(`grep -E "^(CapBnd|CapInh|NoNewPrivs|CapAmb)" /proc/self/status
		echo 0; readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/pid; echo 0; echo done`)
	if got := p.sh("cat /data/task"); got != want {
		t.Errorf("the task saw\n%s\nwant\n%s", got, want)
	}

	p.put("elsewhere", tasks.Task{Command: []string{"/bin/sh", "-c", "pwd > where"}, WorkingDir: "/data"})
	p.ended("elsewhere", tasks.Succeeded, "")
	if got := p.sh("cat /data/where"); got != "/data" {
		t.Errorf("workingDir: the task was in %q", got)
	}

	p.put("score", tasks.Task{Command: []string{"/bin/sh", "-c", "cat /proc/self/oom_score_adj > /data/score"}})
	p.ended("score", tasks.Succeeded, "")
	executor, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.theExecutor()))
	if err != nil {
		t.Fatal(err)
	}
	if task, own := number(t, p.sh("cat /data/score")), number(t, string(executor)); task != min(own+500, 1000) {
		t.Errorf("when memory is used up, a task has %d and the executor %d: the executor is to be the last", task, own)
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEnds: what a task's status says about its end.
func TestEnds(t *testing.T) {
	p := start(t, podOptions{})
	cases := map[string]struct {
		task    tasks.Task
		reason  string
		code    int // -1: none
		message string
	}{
		"exit":      {shell("exit 3"), tasks.ReasonExited, 3, "exit code 3"},
		"signal":    {shell("kill -9 $$"), tasks.ReasonSignaled, 137, "SIGKILL"},
		"nothing":   {tasks.Task{Command: []string{"no-such-program"}}, tasks.ReasonStartFailed, -1, `command: execute "no-such-program"`},
		"forbidden": {tasks.Task{Command: []string{"/etc/passwd"}}, tasks.ReasonStartFailed, -1, "permission denied"},
		"nowhere":   {tasks.Task{Command: []string{"true"}, WorkingDir: "/no/such"}, tasks.ReasonStartFailed, -1, "workingDir: go to /no/such"},
		"late":      {tasks.Task{Command: []string{"sleep", "1000"}, TimeoutSeconds: 1}, tasks.ReasonTimedOut, 143, "longer than its 1s"},
		"ignores-term": {grace(tasks.Task{Command: []string{"bash", "-c", "trap '' TERM; while :; do sleep 1; done"}, TimeoutSeconds: 1}, 1),
			tasks.ReasonTimedOut, 137, "SIGKILL"},
		"handles-term": {tasks.Task{Command: []string{"bash", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"}, TimeoutSeconds: 1},
			tasks.ReasonTimedOut, 0, "exit code 0"},
	}
	for name, test := range cases {
		p.put(name, test.task)
	}
	for name, test := range cases {
		status := p.ended(name, tasks.Failed, test.reason)
		code := -1
		if status.ExitCode != nil {
			code = *status.ExitCode
		}
		if code != test.code || !strings.Contains(status.Message, test.message) {
			t.Errorf("%s: exit code %d, message %q; want %d and %q in it", name, code, status.Message, test.code, test.message)
		}
	}
}

// TestNothingStays: a task is over when its first process is, and with it everything that it
// started, however well that hid.
func TestNothingStays(t *testing.T) {
	p := start(t, podOptions{})
	p.put("daemon", shell("setsid bash -c 'trap \"\" TERM HUP; sleep 7654321' & disown; (setsid sleep 7654321 &); exit 0"))
	p.ended("daemon", tasks.Succeeded, "")
	if left := p.processes("sleep", "7654321"); len(left) > 0 {
		t.Errorf("%d processes are left", len(left))
	}
}

// TestPut: repeating is harmless, changing is refused, and so is nonsense.
func TestPut(t *testing.T) {
	p := start(t, podOptions{})
	ctx := t.Context()
	task := shell("echo x >> /tmp/count; sleep 1000")
	for range 5 {
		p.put("once", task)
	}
	p.runs("once")
	p.prints("cat /tmp/count", "x")
	if _, err := p.Put(ctx, "once", shell("true")); !tasks.HasCode(err, tasks.CodeTaskDiffers) {
		t.Errorf("another task of the same name: %v", err)
	}
	if _, err := p.Get(ctx, "none"); !tasks.HasCode(err, tasks.CodeNotFound) {
		t.Errorf("get what is not there: %v", err)
	}
	if _, err := p.Put(ctx, "No_Label", task); !tasks.HasCode(err, tasks.CodeInvalidRequest) || !strings.Contains(err.Error(), "DNS label") {
		t.Errorf("a bad name: %v", err)
	}
	if _, err := p.Put(ctx, "bad", tasks.Task{Command: []string{"x"}, TimeoutSeconds: -1}); !tasks.HasCode(err, tasks.CodeInvalidRequest) {
		t.Errorf("a bad timeout: %v", err)
	}
	if _, err := p.Put(ctx, "large", shell(strings.Repeat("x", tasks.MaxBody))); !tasks.HasCode(err, tasks.CodeBodyTooLarge) {
		t.Errorf("a large body: %v", err)
	}
	for _, wrong := range []string{"", "wrong"} {
		stranger := tasks.Client{BaseURL: p.BaseURL, HTTP: p.HTTP, Token: wrong}
		if _, err := stranger.List(ctx); !tasks.HasCode(err, tasks.CodeUnauthorized) {
			t.Errorf("token %q: %v", wrong, err)
		}
	}
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/healthz", "", 200, `"ok"`},
		{"PUT", "/tasks/x", `{"command":["x"],"cmd":1}`, 400, `unknown field`},
		{"PUT", "/tasks/x", `{"command":["x"]} x`, 400, `behind`},
		{"POST", "/tasks/x", ``, 405, tasks.CodeMethodNotAllowed},
		{"GET", "/nothing", ``, 404, tasks.CodeNotFound},
		{"GET", "/tasks?wait=x", ``, 400, "wait:"},
		{"GET", "/tasks?since=x", ``, 400, "since:"},
	} {
		request, err := http.NewRequestWithContext(ctx, test.method, p.BaseURL+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(tasks.TokenHeader, token)
		response, err := p.HTTP.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != test.status || !strings.Contains(string(data), test.want) {
			t.Errorf("%s %s %s: %d %s (%v); want %d and %q", test.method, test.path, test.body, response.StatusCode, data, err, test.status, test.want)
		}
	}
}

// TestDelete: what is asked to end is ended with grace and forgotten, even if the executor dies
// meanwhile.
func TestDelete(t *testing.T) {
	p := start(t, podOptions{})
	ctx := t.Context()
	task := shell("trap 'while ! test -e /tmp/go; do sleep 0.05; done; echo bye >> /tmp/said; exit' TERM; echo ready > /tmp/ready; while :; do sleep 0.05; done")
	p.put("slow", task)
	p.prints("cat /tmp/ready", "ready")
	if gone, err := p.Delete(ctx, "slow", 0); gone || err != nil {
		t.Fatalf("delete: gone %t, %v", gone, err)
	}
	if status := p.runs("slow"); !status.Deleting {
		t.Errorf("the status does not report it: %+v", status)
	}
	if _, err := p.Put(ctx, "slow", task); !tasks.HasCode(err, tasks.CodeTaskDeleting) {
		t.Errorf("put while it is ending: %v", err)
	}
	p.signal(p.theExecutor(), syscall.SIGKILL)
	p.answers()
	if status := p.runs("slow"); !status.Deleting {
		t.Errorf("the next executor does not have it: %+v", status)
	}
	p.sh("touch /tmp/go")
	wait.Succeeds(p.t, "it is gone", func() error {
		gone, err := p.Delete(ctx, "slow", time.Second)
		if err == nil && !gone {
			err = errors.New("task still exists")
		}
		return err
	})
	if got := p.sh("cat /tmp/said"); got != "bye" {
		t.Errorf("the last words of the task are %q", got)
	}
	if gone, err := p.Delete(ctx, "slow", 0); !gone || err != nil {
		t.Errorf("delete again: %t, %v", gone, err)
	}
	// The name is free, for something else, too.
	p.put("slow", shell("exit 4"))
	p.ended("slow", tasks.Failed, tasks.ReasonExited)
	if gone, err := p.Delete(ctx, "slow", tasks.MaxWait); !gone || err != nil {
		t.Errorf("delete what has ended: %t, %v", gone, err)
	}
	if list, err := p.List(ctx); err != nil || list.Items == nil || len(list.Items) != 0 {
		t.Errorf("the list is %+v, %v", list, err)
	}
}

// TestReadiness: a task counts as ready when its page was answered with 200, once and for all.
func TestReadiness(t *testing.T) {
	p := start(t, podOptions{})
	server := `
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready?x=1" and os.path.exists("/tmp/ok") else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8099), Handler).serve_forever()`
	p.put("web", tasks.Task{Command: []string{"python3", "-c", server}, Readiness: &tasks.Readiness{Port: 8099, Path: "/ready?x=1"}})
	if status := p.runs("web"); status.Ready || status.Reason != tasks.ReasonNotReady {
		t.Errorf("before its page works: %+v", status)
	}
	p.sh("touch /tmp/ok")
	p.until("web", "is ready", func(s tasks.Status) bool { return s.Ready && s.Reason == "" })
	p.sh("rm /tmp/ok")
	p.signal(p.theExecutor(), syscall.SIGKILL)
	p.answers()
	if status := p.runs("web"); !status.Ready {
		t.Errorf("after a restart of the executor: %+v", status)
	}
	p.put("plain", shell("sleep 1000"))
	p.until("plain", "is ready", func(s tasks.Status) bool { return s.Ready })
}

// TestWait: a change ends a wait at once, and what the caller already had is not reported again.
func TestWait(t *testing.T) {
	p := start(t, podOptions{})
	ctx := t.Context()
	list, err := p.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := p.Wait(ctx, list.Version, time.Second); err != nil || same.Version != list.Version {
		t.Errorf("nothing has happened: %+v, %v", same, err)
	}
	p.put("task", shell("while ! test -e /tmp/go; do sleep 0.01; done"))
	seen := make(map[tasks.State]bool)
	ctx, cancel := context.WithTimeout(ctx, wait.Patience())
	defer cancel()
	for !seen[tasks.Succeeded] {
		if list, err = p.Wait(ctx, list.Version, tasks.MaxWait); err != nil || len(list.Items) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		state := list.Items[0].State
		if state == tasks.Running && !seen[state] {
			p.sh("touch /tmp/go")
		}
		seen[state] = true
	}
	if !seen[tasks.Running] {
		t.Errorf("states seen: %v", seen)
	}
	// A version of the last executor is none of the next one.
	p.signal(p.theExecutor(), syscall.SIGKILL)
	p.answers()
	if next, err := p.Wait(ctx, list.Version, tasks.MaxWait); err != nil || next.Version <= list.Version {
		t.Errorf("after a restart: %+v, %v; before it was %+v", next, err, list)
	}
}
