package api_test

import (
	"context"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
)

func (d *daemon) freeze(t *testing.T) {
	t.Helper()
	response, err := d.client.Freeze(t.Context(), nil)
	body(t, response, err)
}

func (d *daemon) thaw(t *testing.T) {
	t.Helper()
	response, err := d.client.Thaw(context.WithoutCancel(t.Context()), nil)
	body(t, response, err)
}

// frozen are requests that a frozen sandbox refuses.
func frozen(t *testing.T, transport *conform.Transport) []answer {
	d := (&child{}).start(t, transport)
	running := d.background(t, "exec sleep 1000")
	d.freeze(t)
	t.Cleanup(func() { d.thaw(t) })
	refused := func(operation, target, body string) answer {
		return answer{on: d, operation: operation, target: target, body: body, status: 409, code: "FROZEN", says: []string{"frozen", "POST /thaw"}}
	}
	return []answer{
		refused("runCommand", "POST /command", `{"command":"true"}`),
		refused("interruptCommand", "DELETE /command?id="+running, ""),
		refused("runCode", "POST /code", `{"code":"1","language":"python"}`),
		refused("interruptCode", "DELETE /code?id=x", ""),
		refused("createContext", "POST /code/context", `{"language":"python"}`),
		refused("deleteContext", "DELETE /code/contexts/x", ""),
		refused("deleteContexts", "DELETE /code/contexts?language=python", ""),
		refused("startTerminal", "POST /pty", `{}`),
		refused("killTerminal", "DELETE /pty/x", ""),
		refused("freeze", "POST /freeze?wake=true", ""),
	}
}

// sleep asks until the sandbox is idle and sleeps.
func (d *daemon) sleep(t *testing.T, wake bool) {
	t.Helper()
	wait.Until(t, "the sandbox falls asleep", func() bool {
		response, err := d.client.Freeze(t.Context(), &gen.FreezeParams{IdleMilliseconds: new(quiet.Milliseconds()), Wake: &wake})
		must(t, err)
		response.Body.Close()
		return response.StatusCode == 200
	})
}

// TestSleepingSandbox: processes that a command has left behind stand still, until a request comes
// that counts.
func TestSleepingSandbox(t *testing.T) {
	t.Parallel()
	d := (&child{}).start(t, newTransport(t))
	path := write(t, t.TempDir()+"/file", "0")
	d.run(t, gen.CommandRequest{Command: "setsid sh -c 'n=0; while sleep 0.3; do n=$((n+1)); echo $n >" + path + "; done' </dev/null >/dev/null 2>&1 &"}).all(1)
	wait.Until(t, "the process works", func() bool { return read(t, path) != "0" })
	for _, wake := range []bool{true, false} {
		d.sleep(t, wake)
		// Not before: processor time, which is that of the machine here, counts while a stream is open.
		response, err := d.client.WatchIdle(t.Context(), &gen.WatchIdleParams{IdleMilliseconds: time.Hour.Milliseconds(), Sleep: new(true)})
		watch := d.stream(t, response, err)
		if event := watch.wantNews("asleep"); event.Wake == nil || *event.Wake != wake || event.Since == nil {
			t.Errorf("the event is %+v", event)
		}
		before := read(t, path)
		d.held(t)
		if after := read(t, path); after != before {
			t.Errorf("a process of a sandbox that sleeps has written %q after %q", after, before)
		}
		if !wake {
			response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "true"})
			must(t, err)
			response.Body.Close()
			if response.StatusCode != 409 {
				t.Errorf("a command in a sandbox that no request wakes: status %d", response.StatusCode)
			}
			response, err = d.client.Thaw(t.Context(), &gen.ThawParams{OnlyAsleep: new(true)})
			body(t, response, err)
		} else {
			d.run(t, gen.CommandRequest{Command: "true"}).all(1)
		}
		watch.wantNews("awake")
		wait.Until(t, "the process goes on", func() bool { return read(t, path) != before })
	}
	d.freeze(t)
	response, err := d.client.Thaw(t.Context(), &gen.ThawParams{OnlyAsleep: new(true)})
	body(t, response, err)
	before := read(t, path)
	d.held(t)
	if after := read(t, path); after != before {
		t.Error("a thaw of sandboxes that sleep has thawed one that is paused")
	}
	d.thaw(t)
	wait.Until(t, "the process goes on", func() bool { return read(t, path) != before })
	d.run(t, gen.CommandRequest{Command: "pkill -f " + path}).all(1)
}

// TestFrozenSandbox: what needs no process goes on, and afterwards everything is as it was.
func TestFrozenSandbox(t *testing.T) {
	t.Parallel()
	d := (&child{}).start(t, newTransport(t))
	path := t.TempDir() + "/file"
	id := d.background(t, "echo $$; n=0; while :; do n=$((n+1)); echo $n >"+path+"; sleep 0.01; done")
	wait.Until(t, "the command works", func() bool {
		response, err := d.client.GetFilesInfo(t.Context(), &gen.GetFilesInfoParams{Path: []string{path}})
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
	d.freeze(t)
	d.freeze(t)
	before := read(t, path)
	response, err := d.client.DownloadFile(t.Context(), &gen.DownloadFileParams{Path: path})
	if got := string(body(t, response, err)); got != before {
		t.Errorf("the file was %q and is %q: a frozen process has written it", before, got)
	}
	response, err = d.client.GetMetrics(t.Context(), nil)
	body(t, response, err)
	if !d.status(t, id).Running {
		t.Error("a frozen command counts as ended")
	}
	if after := read(t, path); after != before {
		t.Errorf("a frozen process has written %q after %q", after, before)
	}
	d.thaw(t)
	d.thaw(t)
	wait.Until(t, "the command goes on", func() bool { return read(t, path) != before })
	d.interrupt(t, id)
	d.ended(t, id)
}
