package cells_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

const (
	interpreterImage = "sandbox/code-interpreter:dev"
	execdImage       = "sandbox/execd:dev"
)

func sandboxDirect(t *testing.T) *daemon { return enter(t, onDocker, nil, "sleep", "infinity") }

// onDocker chooses the Docker Engine in a configuration.
const onDocker = "type = \"docker\"\n"

// sandboxServer: the sandbox's own program is a Jupyter Server, and its execd is configured for it,
// as a user would do it.
func sandboxServer(t *testing.T) *daemon {
	return sandboxServerWithin(t, roomy)
}

func sandboxServerWithin(t *testing.T, memory string) *daemon {
	t.Helper()
	env := map[string]string{"JUPYTER_HOST": "http://127.0.0.1:8888", "JUPYTER_TOKEN": jupyterToken}
	d := enterWithin(t, memory, onDocker, env, append([]string{"jupyter-server"}, jupyterArgs("8888")...)...)
	d.command(t, "until curl -fs http://127.0.0.1:8888/api >/dev/null; do sleep 0.1; done")
	return d
}

// roomy is the memory of a sandbox in which every kernel fits.
const roomy = "4Gi"

// enter creates a sandbox with every kernel there is, and returns its execd. runtime are the lines
// of a configuration that choose the engine.
func enter(t *testing.T, runtime string, env map[string]string, entrypoint ...string) *daemon {
	t.Helper()
	return enterWithin(t, roomy, runtime, env, entrypoint...)
}

// enterWithin is enter with a limit of memory.
func enterWithin(t *testing.T, memory, runtime string, env map[string]string, entrypoint ...string) *daemon {
	t.Helper()
	client := startService(t, runtime)
	created, err := client.CreateSandboxWithResponse(t.Context(), nil, lifecycle.CreateSandboxRequest{
		Image: lifecycle.Image{URI: interpreterImage}, Timeout: 3600, Env: env, Entrypoint: entrypoint,
		ResourceLimits: &lifecycle.ResourceLimits{Memory: &memory},
	})
	must(t, err)
	if created.JSON202 == nil {
		t.Fatalf("create: %s: %s", created.Status(), created.Body)
	}
	id := created.JSON202.ID
	t.Cleanup(func() { remove(t, client, id) })
	wait.Until(t, "the sandbox runs", func() bool {
		sandbox, err := client.GetSandboxWithResponse(t.Context(), id, nil)
		must(t, err)
		if sandbox.JSON200 == nil || sandbox.JSON200.Status.State == "Failed" {
			t.Fatalf("the sandbox: %s: %s", sandbox.Status(), sandbox.Body)
		}
		return sandbox.JSON200.Status.State == "Running"
	})
	endpoint, err := client.GetEndpointWithResponse(t.Context(), id, 44772, nil)
	must(t, err)
	if endpoint.JSON200 == nil {
		t.Fatalf("endpoint: %s: %s", endpoint.Status(), endpoint.Body)
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	// The contract has its paths from the root; what is before them comes with the transport.
	return connect(t, "http://sandbox", behind{base, *endpoint.JSON200})
}

// remove deletes a sandbox and waits until nothing of it is left.
func remove(t *testing.T, client *lifecycle.ClientWithResponses, id string) {
	ctx := context.WithoutCancel(t.Context())
	deleted, err := client.DeleteSandboxWithResponse(ctx, id, nil)
	must(t, err)
	if deleted.StatusCode() != http.StatusNoContent {
		t.Errorf("delete: %s: %s", deleted.Status(), deleted.Body)
	}
	wait.Until(t, "the sandbox is gone", func() bool {
		sandbox, err := client.GetSandboxWithResponse(ctx, id, nil)
		must(t, err)
		return sandbox.JSON200 == nil || sandbox.JSON200.Status.State == "Terminated"
	})
}

// startService runs the lifecycle service in this process until the test ends.
func startService(t *testing.T, runtime string) *lifecycle.ClientWithResponses {
	t.Helper()
	const key = "the-key-of-the-administrator-of-these-tests"
	must(t, program.UseImages(execdImage))
	directory := t.TempDir()
	file := filepath.Join(directory, "sandbox.toml")
	must(t, os.WriteFile(file, fmt.Appendf(nil,
		"[server]\nhost = \"127.0.0.1\"\nport = 0\ndata_dir = %q\ninstance = %q\napi_key = %q\n[runtime]\nexecd_image = %q\n%s",
		filepath.Join(directory, "data"), "cells-"+uuid.NewString()[:8], key, execdImage, runtime), 0o600))
	cfg, err := config.Load(file, os.Getenv)
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	service, err := app.New(ctx, cfg, api.Version{Version: "cells", Commit: "none"}, zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		must(t, wait.For(t, "the end of the service", done))
	})
	client, err := lifecycle.NewClientWithResponses("http://"+service.Addr(),
		lifecycle.WithHTTPClient(&http.Client{Transport: transport, Timeout: wait.Patience()}),
		lifecycle.WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
			request.Header.Set("SERVICE-API-KEY", key)
			return nil
		}))
	must(t, err)
	return client
}

// behind sends requests to an endpoint, whatever host they name.
type behind struct {
	base     http.RoundTripper
	endpoint lifecycle.Endpoint
}

func (b behind) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	host, path, _ := strings.Cut(b.endpoint.Endpoint, "/")
	request.URL.Host, request.Host = host, host
	request.URL.Path = "/" + path + request.URL.Path
	for name, value := range b.endpoint.Headers {
		request.Header.Set(name, value)
	}
	return b.base.RoundTrip(request)
}

// TestPlot: what matplotlib draws arrives as a picture of its size.
func TestPlot(t *testing.T) {
	d := sandboxDirect(t)
	events := d.alone(t, "python", `
%config InlineBackend.print_figure_kwargs = {"bbox_inches": None}
import matplotlib.pyplot as plot
plot.figure(figsize=(3, 2), dpi=100)
plot.plot([1, 4, 9])
plot.show()`).good(t)
	checkPNG(t, events, 300, 200)
}

// TestKilledDaemon: when the daemon of a sandbox is killed, its kernels end with it, and the next
// one takes away what they left behind.
func TestKilledDaemon(t *testing.T) {
	d := sandboxDirect(t)
	python := python()
	id := d.newContext(t, "python")
	s := d.start(t, id, python.endless)
	s.until("stdout")
	const kernels, directories = "pgrep -fc ^/usr/bin/python3.*ipykernel || true", "ls -d /tmp/execd-kernel-* 2>/dev/null | wc -l"
	if found := d.command(t, kernels); found == "0" || d.command(t, directories) == "0" {
		t.Fatalf("%s kernels run", found)
	}
	background := true
	response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "kill -KILL $PPID", Background: &background})
	if err == nil {
		response.Body.Close()
	}
	if _, err := io.Copy(io.Discard, s.reader); err == nil {
		t.Error("the stream of a killed daemon ended in an orderly way")
	}
	wait.Until(t, "the daemon is back", func() bool {
		response, err := d.client.Ping(t.Context(), nil)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	if d.exists(t, id) {
		t.Error("the new daemon lists a context without a kernel")
	}
	wait.Until(t, "no kernel is left", func() bool { return d.command(t, kernels) == "0" })
	if left := d.command(t, directories); left != "0" {
		t.Errorf("%s directories of kernels are left", left)
	}
	d.run(t, d.newContext(t, "python"), python.print).good(t)
}
