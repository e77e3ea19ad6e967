package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	gen "sandbox.internal/clients/go/execd"
	testprogram "sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

const (
	token = "a-secret-that-is-never-printed"
)

// binaries is where TestMain puts execd and execd-init.
var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "execd-test-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	// As they ship: static, so that they run in any image.
	if err := testprogram.Build(context.Background(), dir, "sandbox.internal/execd/cmd/execd", "sandbox.internal/execd/cmd/execd-init"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir) // what cannot be removed is left to the system's own cleaning
		os.Exit(code)
	}))
}

// program returns execd, ready to be run in a directory of its own and without settings of this
// machine's.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return binary(t, "execd", args...)
}

// first returns execd-init, which starts execd, in the same way.
func first(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return binary(t, "execd-init", args...)
}

func binary(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.Command(filepath.Join(binaries, name), args...)
	command.Dir = t.TempDir()
	command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "EXECD_") || strings.HasPrefix(variable, "JUPYTER_")
	})
	return command
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommandLines(t *testing.T) {
	t.Parallel()
	taken := serve(t, nil)
	tests := []struct {
		name   string
		args   []string
		env    string
		code   int
		stdout []string
		stderr []string
	}{
		{"help", []string{"--help"}, "", 0, []string{"--access-token", "--graceful-shutdown-timeout", "EXECD_LOG_FILE", "44772", "execd-init"}, nil},
		{"unknown flag", []string{"--prot=1"}, "", 2, nil, []string{"execd: ", "-prot"}},
		{"bad value", []string{"--log-level=8"}, "", 2, nil, []string{"--log-level", "0 to 7"}},
		{"bad variable", nil, "EXECD_API_GRACE_SHUTDOWN=soon", 2, nil, []string{"EXECD_API_GRACE_SHUTDOWN", "500ms"}},
		{"argument", []string{"run"}, "", 2, nil, []string{`"run"`}},
		{"log file that cannot be", []string{"--port=0"}, "EXECD_LOG_FILE=/dev/null/log", 1, nil, []string{"EXECD_LOG_FILE"}},
		{"port in use", []string{"--host=127.0.0.1", "--port=" + taken.port()}, "", 1, nil, []string{"127.0.0.1:" + taken.port(), "in use"}},
		{"shell", []string{"sh", "-c", "echo one | { read x; echo got $x; }; exit 5"}, "", 5, []string{"got one"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			command := program(t, test.args...)
			if test.env != "" {
				command.Env = append(command.Env, test.env)
			}
			ends(t, command, test.code, test.stdout, test.stderr)
		})
	}
}

// TestCommandLinesOfInit: the entrypoint does not run when execd-init or execd refuses its
// settings.
func TestCommandLinesOfInit(t *testing.T) {
	t.Parallel()
	free := []string{"--host=127.0.0.1", "--port=0"}
	tests := []struct {
		name   string
		args   []string
		env    string
		code   int
		stdout []string
		stderr []string
	}{
		{"help", append(free, "--help"), "", 0, []string{"--access-token"}, nil},
		{"bad port", []string{"--port=x"}, "", 2, nil, []string{"--port", "0 to 65535"}},
		{"bad host", []string{"--host", "localhost"}, "", 2, nil, []string{"--host", "IP address"}},
		{"unknown flag", append(free, "--prot=1"), "", 2, nil, []string{"execd: ", "-prot"}},
		{"bad value", append(free, "--log-level=8"), "", 2, nil, []string{"--log-level", "0 to 7"}},
		{"bad variable", free, "EXECD_API_GRACE_SHUTDOWN=soon", 2, nil, []string{"EXECD_API_GRACE_SHUTDOWN", "500ms"}},
		{"argument", append(free, "run"), "", 2, nil, []string{`"run"`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			command := first(t, append(test.args, "--", "/bin/sh", "-c", "echo ran >ran")...)
			if test.env != "" {
				command.Env = append(command.Env, test.env)
			}
			ends(t, command, test.code, test.stdout, test.stderr)
			if _, err := os.Stat(filepath.Join(command.Dir, "ran")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the entrypoint ran: %v", err)
			}
		})
	}
	t.Run("without an entrypoint", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{}, {"--port=0"}, {"--"}, {"sleep", "1"}} {
			ends(t, first(t, args...), 2, nil, []string{"entrypoint"})
		}
	})
}

// ends runs a program to its end, which is to have that exit code and those words in its output.
func ends(t *testing.T, command *exec.Cmd, code int, inStdout, inStderr []string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if command.ProcessState == nil {
		t.Fatal(err)
	}
	if got := command.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d; %s%s", got, code, &stdout, &stderr)
	}
	for _, want := range inStdout {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("stdout does not say %q: %s", want, &stdout)
		}
	}
	for _, want := range inStderr {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr does not say %q: %s", want, &stderr)
		}
	}
}

// daemon is the program as it serves.
type daemon struct {
	command *exec.Cmd
	address string
	log     string
	output  string // the file that its standard output and error go to
	client  *gen.Client
}

func (d *daemon) port() string { return d.address[strings.LastIndexByte(d.address, ':')+1:] }

// serve runs the program on a free port, its log in a file, and does not let it wait for clients at
// its end.
func serve(t *testing.T, args []string, env ...string) *daemon {
	t.Helper()
	return start(t, append([]string{"--graceful-shutdown-timeout=0s"}, args...), env...)
}

func start(t *testing.T, args []string, env ...string) *daemon {
	t.Helper()
	command := program(t, append([]string{"--host=127.0.0.1", "--port=0"}, args...)...)
	d := &daemon{command: command, log: filepath.Join(command.Dir, "logs", "execd.log"), output: filepath.Join(command.Dir, "output")}
	command.Env = append(append(command.Env, "EXECD_LOG_FILE="+d.log), env...)
	output, err := os.Create(d.output)
	must(t, err)
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	must(t, command.Start())
	t.Cleanup(func() { d.stop(t) })
	d.address = logged(t, d.log)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	d.client, err = gen.NewClient("http://"+d.address, gen.WithHTTPClient(&http.Client{Transport: transport, Timeout: wait.Patience()}),
		gen.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("X-EXECD-ACCESS-TOKEN", token)
			return nil
		}))
	must(t, err)
	return d
}

// logged waits until a log has the daemon's address.
func logged(t *testing.T, path string) string {
	t.Helper()
	var entry struct{ Address string }
	var data []byte
	wait.Until(t, "the log has the address", func() bool {
		data, _ = os.ReadFile(path) // it is not there yet at first
		for line := range bytes.Lines(data) {
			if json.Unmarshal(line, &entry) == nil && entry.Address != "" {
				return true
			}
		}
		return false
	}, func() any { return string(data) })
	return entry.Address
}

// stop ends the program as an engine does, and expects that it ends well. Stopping twice succeeds.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	if d.command.ProcessState != nil {
		return
	}
	must(t, d.command.Process.Signal(syscall.SIGTERM))
	if err := d.command.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func body(t *testing.T, response *http.Response, err error) string {
	t.Helper()
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if must(t, err); response.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", response.StatusCode, data)
	}
	return string(data)
}

func TestDaemon(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
	}{
		{"usual log", []string{"--access-token=" + token}},
		{"debug log", []string{"--access-token=" + token, "--log-level=7"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := serve(t, test.args)
			must(t, os.WriteFile(filepath.Join(d.command.Dir, "here"), []byte("content"), 0o644))

			// A path that is not absolute starts at the working directory.
			response, err := d.client.DownloadFile(t.Context(), &gen.DownloadFileParams{Path: "here"})
			if got := body(t, response, err); got != "content" {
				t.Errorf("the file holds %q", got)
			}
			response, err = d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: `pwd; env`})
			output := body(t, response, err)
			if !strings.Contains(output, d.command.Dir) || strings.Contains(output, token) || strings.Contains(output, "EXECD_") {
				t.Errorf("the command says %s", output)
			}
			// However a request fails, its token stays out of the log.
			response, err = d.client.RunCommandWithBody(t.Context(), nil, "application/json", strings.NewReader("{"))
			must(t, err)
			response.Body.Close()
			response, err = d.client.GetCommandStatus(t.Context(), "no-such-id")
			must(t, err)
			response.Body.Close()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.address+"/proxy/1/x?token="+token, nil)
			must(t, err)
			request.Header.Set("X-EXECD-ACCESS-TOKEN", token)
			response, err = (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}).Do(request)
			must(t, err)
			response.Body.Close()
			d.stop(t)

			data, err := os.ReadFile(d.log)
			must(t, err)
			log := string(data)
			for _, want := range []string{`"operation":"runCommand"`, `"operation":"downloadFile"`, `"command_id"`, "execd stopped"} {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not report %s: %s", want, log)
				}
			}
			if strings.Contains(log, token) {
				t.Errorf("the log shows the token: %s", log)
			}
		})
	}
}

// TestTokenFromTheEnvironment is how the service outside gives it: on no command line, and hidden
// from commands.
func TestTokenFromTheEnvironment(t *testing.T) {
	t.Parallel()
	d := serve(t, nil, "EXECD_ACCESS_TOKEN="+token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}
	response, err := client.Get("http://" + d.address + "/metrics")
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: status %d", response.StatusCode)
	}
	response, err = d.client.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "env"})
	if output := body(t, response, err); strings.Contains(output, token) {
		t.Errorf("a command sees the token: %s", output)
	}
}
