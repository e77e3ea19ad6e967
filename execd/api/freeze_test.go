package api_test

import (
	"context"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
)

func (d *daemon) freeze(t *testing.T) {
	t.Helper()
	response, err := d.client.Freeze(t.Context())
	body(t, response, err)
}

func (d *daemon) thaw(t *testing.T) {
	t.Helper()
	response, err := d.client.Thaw(context.WithoutCancel(t.Context()))
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
	}
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
