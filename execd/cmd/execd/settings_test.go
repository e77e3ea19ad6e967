package main_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sandbox.internal/test/loopback"

	gen "sandbox.internal/clients/go/execd"
)

// TestSettings has a test for each row of the execd document's "Daemon settings", at the program
// itself: what the flag does, what the variable does, and that the flag wins. The defaults are with
// the tests of execd/config.
func TestSettings(t *testing.T) {
	t.Parallel()
	for row, test := range map[string]func(*testing.T){
		"row execd/settings/--jupyter-host": testJupyterHost, "row execd/settings/--jupyter-token": testJupyterToken, "row execd/settings/--port": testPort, "row execd/settings/--log-level": testLogLevel,
		"row execd/settings/--access-token": testAccessToken, "row execd/settings/--graceful-shutdown-timeout": testGrace, "row execd/settings/EXECD_LOG_FILE": testLogFile,
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// kernelServer is a Jupyter Server that refuses everything and remembers what it was asked.
type kernelServer struct {
	url string
	mu  sync.Mutex
	got []string // Authorization of each request
}

func newKernelServer(t *testing.T) *kernelServer {
	t.Helper()
	k := &kernelServer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.got = append(k.got, r.Header.Get("Authorization"))
		http.Error(w, "no", http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	k.url = server.URL
	return k
}

func (k *kernelServer) asked() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.got
}

// askForKernel makes the daemon turn to its Jupyter Server.
func (d *daemon) askForKernel(t *testing.T) {
	t.Helper()
	response, err := d.client.CreateContext(t.Context(), nil, gen.CreateContextJSONRequestBody{Language: "python"})
	must(t, err)
	response.Body.Close()
	if response.StatusCode == http.StatusOK {
		t.Error("a context without a kernel")
	}
}

func testJupyterHost(t *testing.T) {
	flag, variable := newKernelServer(t), newKernelServer(t)
	serve(t, nil, "JUPYTER_HOST="+variable.url).askForKernel(t)
	if len(variable.asked()) == 0 {
		t.Error("the server of the variable was not asked")
	}
	before := len(variable.asked())
	serve(t, []string{"--jupyter-host", flag.url}, "JUPYTER_HOST="+variable.url).askForKernel(t)
	if len(flag.asked()) == 0 || len(variable.asked()) != before {
		t.Errorf("the server of the flag was asked %d times, that of the variable %d times more", len(flag.asked()), len(variable.asked())-before)
	}
}

func testJupyterToken(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		env  string
		want string
	}{
		{"variable", nil, "JUPYTER_TOKEN=of-the-variable", "token of-the-variable"},
		{"flag", []string{"--jupyter-token=of-the-flag"}, "JUPYTER_TOKEN=of-the-variable", "token of-the-flag"},
	} {
		k := newKernelServer(t)
		serve(t, append(test.args, "--jupyter-host="+k.url), test.env).askForKernel(t)
		if got := k.asked(); len(got) == 0 || got[0] != test.want {
			t.Errorf("%s: the server was asked with %q, want %q", test.name, got, test.want)
		}
	}
}

func testPort(t *testing.T) {
	port := strconv.Itoa(loopback.Port(t))
	if d := serve(t, []string{"--port=" + port}); d.port() != port {
		t.Errorf("the daemon listens on port %s, want %s", d.port(), port)
	}
}

func testLogLevel(t *testing.T) {
	for level, want := range map[string]bool{"7": true, "6": false} {
		d := serve(t, []string{"--log-level=" + level})
		response, err := d.client.Ping(t.Context(), nil)
		body(t, response, err)
		d.stop(t)
		log, err := os.ReadFile(d.log)
		must(t, err)
		if got := strings.Contains(string(log), `"level":"debug"`); got != want {
			t.Errorf("level %s: debug lines %v, want %v", level, got, want)
		}
	}
}

func testAccessToken(t *testing.T) {
	status := func(d *daemon) int {
		response, err := d.client.GetMetrics(t.Context(), nil) // with token
		must(t, err)
		response.Body.Close()
		return response.StatusCode
	}
	for _, test := range []struct {
		name string
		args []string
		env  string
		want int
	}{
		{"flag", []string{"--access-token=" + token}, "", 200},
		{"another one", []string{"--access-token=another-token"}, "", 401},
		{"flag over variable", []string{"--access-token=" + token}, "EXECD_ACCESS_TOKEN=another-token", 200},
		{"empty flag over variable", []string{"--access-token="}, "EXECD_ACCESS_TOKEN=another-token", 200},
		{"variable", nil, "EXECD_ACCESS_TOKEN=another-token", 401},
	} {
		if got := status(serve(t, test.args, test.env)); got != test.want {
			t.Errorf("%s: status %d, want %d", test.name, got, test.want)
		}
	}
}

// testGrace stops daemons that hold a stream. A setting that does not count would hold it for an
// hour.
func testGrace(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		env  string
	}{
		{"flag", []string{"--graceful-shutdown-timeout=1ms"}, "EXECD_API_GRACE_SHUTDOWN=1h"},
		{"disabled by the flag", []string{"--graceful-shutdown-timeout=0s"}, "EXECD_API_GRACE_SHUTDOWN=1h"},
		{"variable", nil, "EXECD_API_GRACE_SHUTDOWN=1ms"},
		{"disabled by the variable", nil, "EXECD_API_GRACE_SHUTDOWN=0s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := start(t, test.args, test.env)
			response, err := d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "exec sleep 3600"})
			must(t, err)
			must(t, d.command.Process.Signal(syscall.SIGTERM))
			if said := body(t, response, nil); !strings.Contains(said, `"type":"error"`) {
				t.Errorf("the stream has no last event: %s", said)
			}
			if err := d.command.Wait(); err != nil {
				t.Errorf("after SIGTERM: %v", err)
			}
		})
	}
}

func testLogFile(t *testing.T) {
	d := serve(t, nil) // it finds the address in the file
	if info, err := os.Stat(d.log); err != nil || info.Size() == 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("the log file: %v, %v", info, err)
	}
	if said, err := os.ReadFile(d.output); err != nil || len(said) > 0 {
		t.Errorf("with a log file, the standard output says %q, %v", said, err)
	}
}
