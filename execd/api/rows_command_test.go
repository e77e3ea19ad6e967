package api_test

import (
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
)

// fields returns a command's status as it came.
func (d *daemon) fields(t *testing.T, id string) object {
	t.Helper()
	return d.object(t, "GET", "/command/status/"+id, "")
}

func TestRowsOfCommandStatus(t *testing.T) {
	t.Parallel()
	d := start(t)
	running := d.background(t, "sleep 1000")
	failed := d.background(t, "exit 3")
	d.ended(t, failed)
	alive, over := d.fields(t, running), d.fields(t, failed)
	t.Run("row execd/command/id", func(t *testing.T) { alive.wantString(t, "id", running) })
	t.Run("row execd/command/content", func(t *testing.T) { alive.wantString(t, "content", "sleep 1000") })
	t.Run("row execd/command/running", func(t *testing.T) {
		if alive["running"] != true || over["running"] != false {
			t.Errorf("running is %v and %v", alive["running"], over["running"])
		}
	})
	t.Run("row execd/command/exit_code", func(t *testing.T) {
		over.wantNumber(t, "exit_code", 3, 3)
		timed := d.run(t, gen.CommandRequest{Command: "sleep 1000", Timeout: new(int64(20))})
		ends := d.fields(t, timed.until("init").Text)
		timed.all(2)
		ends = d.fields(t, ends["id"].(string))
		for name, status := range map[string]object{"a running command": alive, "a timeout": ends} {
			if code, present := status["exit_code"]; !present || code != nil {
				t.Errorf("the exit_code of %s is %v, want null", name, code)
			}
		}
	})
	t.Run("row execd/command/error", func(t *testing.T) {
		if text, _ := over["error"].(string); !strings.Contains(text, "3") {
			t.Errorf("error is %v", over["error"])
		}
	})
	t.Run("row execd/command/started_at", func(t *testing.T) { alive.wantTime(t, "started_at") })
	t.Run("row execd/command/finished_at", func(t *testing.T) {
		over.wantTime(t, "finished_at")
		if at, present := alive["finished_at"]; !present || at != nil {
			t.Errorf("finished_at of a running command is %v, want null", at)
		}
	})
}

func TestRowsOfCommandTransitions(t *testing.T) {
	t.Parallel()
	d := start(t)
	t.Run("row execd/transitions/POST /command to running", func(t *testing.T) {
		s := d.run(t, gen.CommandRequest{Command: "sleep 1000"})
		if first := s.must(); first.Type != "init" || d.fields(t, first.Text)["running"] != true {
			t.Errorf("the first event is %s", first.data)
		}
	})
	t.Run("row execd/transitions/running to exited", func(t *testing.T) {
		id := d.background(t, "exit 0")
		d.ended(t, id)
		status := d.fields(t, id)
		status.wantNumber(t, "exit_code", 0, 0)
		status.wantTime(t, "finished_at")
	})
	t.Run("row execd/transitions/running to timed out", func(t *testing.T) {
		events := d.run(t, gen.CommandRequest{Command: "sleep 1000", Timeout: new(int64(20))}).all(1)
		status := d.fields(t, events[0].Text)
		if text, _ := status["error"].(string); last(events).Type != "error" || status["running"] != false || status["exit_code"] != nil || text == "" {
			t.Errorf("the last event is %s, the status %v", last(events).data, status)
		}
	})
	t.Run("row execd/transitions/running to interrupted", func(t *testing.T) {
		id := d.background(t, "sleep 1000")
		d.empty(t, "DELETE", "/command?id="+id, "")
		d.ended(t, id)
	})
}

func TestRowsOfCommandOperations(t *testing.T) {
	t.Parallel()
	d := start(t)
	t.Run("row execd/operations/POST /command", func(t *testing.T) {
		dir := t.TempDir()
		events := d.run(t, gen.CommandRequest{Command: "pwd", Cwd: &dir}).all(1)
		if got := joined(events, "stdout"); got != dir+"\n" || last(events).Type != "execution_complete" {
			t.Errorf("stdout %q, then %s", got, last(events).data)
		}
		if id := d.background(t, "true"); id == "" {
			t.Error("a background command has no id")
		}
	})
	t.Run("row execd/operations/GET /command/status/{id}", func(t *testing.T) {
		id := d.background(t, "true")
		d.fields(t, id).wantString(t, "id", id)
	})
	t.Run("row execd/operations/GET /command/{id}/logs", func(t *testing.T) {
		id := d.background(t, "echo out; echo err >&2")
		d.ended(t, id)
		text, next := d.logs(t, id, nil)
		if next != 1 || strings.Count(text, "\n") != 2 || !strings.Contains(text, "out\n") || !strings.Contains(text, "err\n") {
			t.Errorf("the log is %q, the cursor %d", text, next)
		}
		if text, _ := d.logs(t, id, new(int64(0))); strings.Count(text, "\n") != 1 {
			t.Errorf("after line 0 the log is %q", text)
		}
	})
	t.Run("row execd/operations/DELETE /command", func(t *testing.T) {
		s := d.run(t, gen.CommandRequest{Command: "sleep 1000"})
		d.interrupt(t, s.until("init").Text)
		s.until("error")
	})
}

func TestRowsOfCommandEvents(t *testing.T) {
	t.Parallel()
	d := start(t)
	s := d.run(t, gen.CommandRequest{Command: "echo out; echo err >&2; exit 0"})
	events := s.all(1)
	find := func(t *testing.T, kind string) object {
		t.Helper()
		for _, e := range events {
			if e.Type == kind {
				var found object
				must(t, json.Unmarshal(e.data, &found))
				return found
			}
		}
		t.Fatalf("no %s among %d events", kind, len(events))
		return nil
	}
	t.Run("row execd/event/type", func(t *testing.T) {
		for _, e := range events {
			if e.Type == "" {
				t.Errorf("%s has no type", e.data)
			}
		}
	})
	t.Run("row execd/event/text", func(t *testing.T) { find(t, "stdout").wantString(t, "text", "out") })
	t.Run("row execd/event/timestamp", func(t *testing.T) {
		now := float64(time.Now().UnixMilli())
		find(t, "init").wantNumber(t, "timestamp", now-3600_000, now+3600_000)
	})
	t.Run("row execd/event/execution_time", func(t *testing.T) {
		find(t, "execution_complete").wantNumber(t, "execution_time", 0, 3600_000)
	})
	t.Run("row execd/events/init", func(t *testing.T) {
		find(t, "init").wantString(t, "text", s.response.Header.Get("X-Command-ID"))
	})
	t.Run("row execd/events/stdout", func(t *testing.T) { find(t, "stdout").wantString(t, "text", "out") })
	t.Run("row execd/events/stderr", func(t *testing.T) { find(t, "stderr").wantString(t, "text", "err") })
	t.Run("row execd/events/execution_complete", func(t *testing.T) {
		find(t, "execution_complete").wantNumber(t, "execution_time", 0, 3600_000)
	})
	t.Run("row execd/events/error", func(t *testing.T) {
		end := last(d.run(t, gen.CommandRequest{Command: "sleep 1000", Timeout: new(int64(20))}).all(1))
		if end.Error == nil || end.Error.Ename != "CommandTimeoutError" {
			t.Errorf("a timeout ends with %s", end.data)
		}
	})
	t.Run("row execd/events/status", func(t *testing.T) {
		limited := (&child{Args: []string{"--command-log-limit=4KiB"}}).start(t, newTransport(t))
		events := limited.run(t, gen.CommandRequest{Command: "seq 10000"}).all(1)
		for _, e := range events {
			if e.Type == "status" && e.Text != "" {
				return
			}
		}
		t.Errorf("nothing reports that the output was cut; the last event is %s", last(events).data)
	})
	t.Run("row execd/events/ping", func(t *testing.T) {
		s := d.run(t, gen.CommandRequest{Command: "sleep 1000"})
		if e := s.until("ping"); e.Text != "pong" {
			t.Errorf("the ping is %s", e.data)
		}
	})
}

func TestRowsOfLimits(t *testing.T) {
	t.Parallel()
	t.Run("row execd/limits/100 streams", func(t *testing.T) {
		d := start(t)
		release := t.TempDir() + "/release"
		var streams [100]*stream
		for i := range streams {
			streams[i] = d.run(t, gen.CommandRequest{Command: "until test -e " + release + "; do sleep 0.5; done; echo done"})
			streams[i].until("init")
		}
		write(t, release, "")
		var all sync.WaitGroup
		for _, s := range streams {
			all.Go(func() {
				var got []string
				for {
					e, err := s.next()
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Error(err)
						return
					}
					if e.Type != "ping" {
						got = append(got, e.Type)
					}
				}
				if strings.Join(got, " ") != "stdout execution_complete" {
					t.Errorf("a stream has %q", got)
				}
			})
		}
		all.Wait()
	})
}
