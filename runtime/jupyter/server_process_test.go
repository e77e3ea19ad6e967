package jupyter_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/test/loopback"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/test/wait"
)

const token = "a-token-that-is-not-guessed"

// jupyterServer is a real Jupyter Server, which ends with the test.
type jupyterServer struct {
	url    string
	token  string
	port   int
	cmd    *exec.Cmd
	ended  chan struct{}
	output string // file
	specs  string // directory for kernelspecs of its own
}

// startServer starts a server on a free port, or on the given one, and returns when it answers.
func startServer(t testing.TB, port int, token string) *jupyterServer {
	t.Helper()
	program, err := exec.LookPath("jupyter-server")
	if err != nil {
		t.Fatal("jupyter-server is missing: run scripts/kernels.sh")
	}
	if port == 0 {
		port = loopback.Port(t)
	}
	home := t.TempDir()
	s := &jupyterServer{
		url: "http://127.0.0.1:" + strconv.Itoa(port), token: token, port: port,
		ended: make(chan struct{}), output: filepath.Join(home, "server.log"),
		specs: filepath.Join(home, "data", "kernels"),
	}
	output, err := os.Create(s.output)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	s.cmd = exec.Command(program, "--allow-root", "--no-browser", "--ip=127.0.0.1",
		"--port="+strconv.Itoa(port),
		"--ServerApp.port_retries=0", "--ServerApp.token="+token, "--ServerApp.root_dir=/",
		"--ServerApp.iopub_data_rate_limit=0", "--ServerApp.iopub_msg_rate_limit=0")
	s.cmd.Dir = home
	s.cmd.Env = append(os.Environ(), "HOME="+home, "JUPYTER_CONFIG_DIR="+home,
		"JUPYTER_DATA_DIR="+home+"/data", "JUPYTER_RUNTIME_DIR="+home+"/runtime",
		"IPYTHONDIR="+home+"/ipython")
	s.cmd.Stdout, s.cmd.Stderr = output, output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // how it ended is in the log
	}()
	t.Cleanup(func() { s.stop(t) })
	s.awaitAnswer(t)
	return s
}

func (s *jupyterServer) awaitAnswer(t testing.TB) {
	t.Helper()
	deadline := time.After(wait.Patience())
	for {
		if status, _ := s.get("/api"); status == http.StatusOK {
			return
		}
		select {
		case <-s.ended:
			log, _ := os.ReadFile(s.output)
			t.Fatalf("jupyter-server ended:\n%s", log)
		case <-deadline:
			log, _ := os.ReadFile(s.output)
			t.Fatalf("jupyter-server does not answer:\n%s", log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// get asks the server itself, past the code under test. Without an answer the status is 0.
func (s *jupyterServer) get(path string) (status int, body string) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Authorization", "token "+s.token)
	request.Close = true
	answer, err := wait.Client().Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(content)
}

// kill ends the server without a chance for last words.
func (s *jupyterServer) kill(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of the process", s.ended)
}

func (s *jupyterServer) stop(t testing.TB) {
	select {
	case <-s.ended:
		return
	default:
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("ending jupyter-server: %v", err)
	}
	select {
	case <-s.ended:
	case <-time.After(wait.Patience()):
		t.Error("jupyter-server does not end")
		s.kill(t)
	}
}

// checkEmpty fails unless the server has neither a kernel nor a process of one.
func (s *jupyterServer) checkEmpty(t testing.TB) {
	t.Helper()
	if _, body := s.get("/api/kernels"); body != "[]" {
		t.Errorf("kernels are left on the server: %s", body)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if left := strings.TrimSpace(string(children)); left != "" {
		t.Errorf("the server has child processes: %s", left)
	}
}

// host returns the code under test, for this server.
func (s *jupyterServer) host(t testing.TB, log io.Writer) *jupyter.Server {
	t.Helper()
	host, err := jupyter.NewServer(jupyter.ServerOptions{URL: s.url, Token: s.token,
		Logger: zerolog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	return host
}
