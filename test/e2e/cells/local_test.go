package cells_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/test/loopback"

	"github.com/rs/zerolog"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/execd/app"
	"sandbox.internal/execd/config"
	"sandbox.internal/test/wait"
)

// local runs execd in this process until the test ends.
func local(t *testing.T, settings config.Settings) *daemon {
	t.Helper()
	settings.Host, settings.CommandLogLimit = "127.0.0.1", 1<<30
	execd, err := app.New(settings, zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel))
	must(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- execd.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, wait.For(t, "the end of execd", stopped))
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return connect(t, "http://"+execd.Addr(), transport)
}

func localDirect(t *testing.T) *daemon { return local(t, config.Settings{}) }

func localServer(t *testing.T) *daemon {
	server := startJupyter(t, "")
	return local(t, config.Settings{JupyterHost: server.url, JupyterToken: jupyterToken})
}

const jupyterToken = "a-token-of-these-tests"

// jupyterArgs is how a Jupyter Server is started for execd (docs/execd.md).
func jupyterArgs(port string) []string {
	return []string{
		"--allow-root", "--no-browser", "--ip=127.0.0.1", "--port=" + port, "--ServerApp.port_retries=0", "--ServerApp.token=" + jupyterToken,
		"--ServerApp.root_dir=/", "--ServerApp.iopub_data_rate_limit=0", "--ServerApp.iopub_msg_rate_limit=0",
	}
}

// jupyter is a Jupyter Server of this machine, which ends with the test.
type jupyter struct {
	address, url string
	kill         func() // kill -9
}

// startJupyter starts a server at an address, or at a free one, and returns when it answers. Its
// IPython kernels have our settings, as those of the image have.
func startJupyter(t *testing.T, address string) *jupyter {
	t.Helper()
	path, err := exec.LookPath("jupyter-server")
	if err != nil {
		t.Fatal("jupyter-server is missing: run scripts/kernels.sh")
	}
	if address == "" {
		address = fmt.Sprintf("127.0.0.1:%d", loopback.Port(t))
	}
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	home := t.TempDir()
	ipython := home + "/profile_default"
	must(t, os.Mkdir(ipython, 0o700))
	settings, err := os.ReadFile("../../../runtime/jupyter/ipython_kernel_config.py")
	must(t, err)
	must(t, os.WriteFile(ipython+"/ipython_kernel_config.py", settings, 0o600))
	command := exec.Command(path, jupyterArgs(port)...)
	command.Dir, command.Env = home, append(os.Environ(), "HOME="+home, "JUPYTER_RUNTIME_DIR="+home, "IPYTHONDIR="+home)
	// Its kernels are in sessions of their own, and end by themselves when they see that their
	// server has.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	must(t, command.Start())
	server := &jupyter{address: address, url: "http://" + address, kill: func() { _ = command.Process.Kill() }}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait() // killed, perhaps
	})
	client := wait.Client()
	wait.Until(t, "the Jupyter Server answers", func() bool {
		response, err := client.Get(server.url + "/api")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return server
}

// TestKilledJupyterServer: whatever runs ends with a clear error, the next cell fails because there
// is no server, and works again when there is.
func TestKilledJupyterServer(t *testing.T) {
	server := startJupyter(t, "")
	d := local(t, config.Settings{JupyterHost: server.url, JupyterToken: jupyterToken})
	python := python()
	var running []*stream
	for range 2 {
		s := d.start(t, d.newContext(t, "python"), python.endless)
		s.until("stdout")
		running = append(running, s)
	}
	waiting := d.newContext(t, "python")
	server.kill()
	for _, s := range running {
		if end := s.until("error"); end.Error.Ename != "KernelDied" {
			t.Errorf("the cell ended with %s", end.data)
		}
	}
	d.gone(t, waiting)
	response, err := d.client.CreateContext(t.Context(), nil, gen.ContextRequest{Language: "python"})
	if text := string(d.body(t, http.StatusServiceUnavailable, response, err)); !strings.Contains(text, "SERVICE_UNAVAILABLE") || !strings.Contains(text, server.address) {
		t.Errorf("a context without a server: %s", text)
	}
	response, err = d.client.RunCode(t.Context(), nil, gen.CodeRequest{Code: "1"})
	d.body(t, http.StatusServiceUnavailable, response, err)

	startJupyter(t, server.address)
	if got := d.run(t, d.newContext(t, "python"), python.value).good(t).result("text/plain"); string(got) != `"42"` {
		t.Errorf("on the server that is back: %s", got)
	}
	d.alone(t, "python", python.print).good(t)
}
