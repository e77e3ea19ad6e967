package app_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sandbox.internal/test/program"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "the-token-of-the-sidecar"

// sandbox is a sidecar with a container beside it, on a network with the test's own servers.
type sandbox struct {
	*outside
	name    string // of the sandbox's container; the sidecar's ends with -s
	address string // of the API
}

// command runs a program to its end and fails the test when it fails.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := run(t.Context(), name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

func run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*wait.Patience())
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return string(out), err
}

// image builds the sidecar's image from the working tree.
func image(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	if err := program.Build(t.Context(), directory, "sandbox.internal/egress/cmd/egress", "sandbox.internal/egress/cmd/egress-init"); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"egress", "egress-init"} {
		data, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tag := "sandbox/egress-test:" + uuid.NewString()
	load := wait.Command(t, "docker", "import", "-c", `ENTRYPOINT ["/egress-init", "/egress"]`, "-", tag)
	load.Stdin = &archive
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v\n%s", err, out)
	}
	t.Cleanup(func() { cleanUp(t, "docker", "image", "rm", tag) })
	return tag
}

func cleanUp(t *testing.T, name string, args ...string) {
	if out, err := run(context.Background(), name, args...); err != nil {
		t.Errorf("clean up: %s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// start puts a sidecar with a policy beside a container that sleeps.
func start(t *testing.T, policy string) *sandbox {
	t.Helper()
	return launch(t, policy, func(o *outside) []string {
		return []string{"--network", o.network, "-e", "EGRESS_UPSTREAM=" + o.dns.String()}
	})
}

// launch is start with the options that say where the sidecar's network and its name servers are.
func launch(t *testing.T, policy string, where func(*outside) []string) *sandbox {
	t.Helper()
	s := &sandbox{outside: newOutside(t), name: "egress-test-" + uuid.NewString()[:8]}
	sidecar, built := s.name+"-s", image(t)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := run(context.Background(), "docker", "logs", "--tail", "60", sidecar)
			t.Logf("the sidecar's log:\n%s", logs)
		}
		cleanUp(t, "docker", "rm", "-f", "-v", s.name, sidecar)
	})
	options := append([]string{"run", "-d", "--name", sidecar, "--cap-drop", "ALL", "--cap-add", "NET_ADMIN",
		"--sysctl", "net.ipv6.conf.all.disable_ipv6=1", "-p", "127.0.0.1::18080", "--memory", "64m", "--memory-swap", "64m", "--pids-limit", "128",
		"-e", "EGRESS_ACCESS_TOKEN=" + token, "-e", "EGRESS_POLICY=" + s.expand(policy)}, where(s.outside)...)
	command(t, "docker", append(options, built)...)
	command(t, "docker", "run", "-d", "--name", s.name, "--network", "container:"+sidecar, "--cap-drop", "NET_ADMIN", "--cap-drop", "NET_RAW",
		"--security-opt", "no-new-privileges", "--init", "sandbox/base:dev", "sleep", "infinity")
	s.address = strings.Fields(command(t, "docker", "port", sidecar, "18080"))[0]
	wait.Succeeds(t, "the firewall is installed", func() error { return s.call(t, http.MethodGet, "/healthz", "", nil) })
	return s
}

// call sends a request to the sidecar's API and reads a 200 answer into out.
func (s *sandbox) call(t *testing.T, method, path, body string, out any) error {
	t.Helper()
	response, err := s.send(t.Context(), method, path, body, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, data)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

func (s *sandbox) send(ctx context.Context, method, path, body string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+s.address+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = header.Clone()
	if request.Header == nil {
		request.Header = http.Header{}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-EGRESS-ACCESS-TOKEN", token)
	return wait.Client().Do(request)
}

// must is call for requests that have to succeed.
func (s *sandbox) must(t *testing.T, method, path, body string) {
	t.Helper()
	if err := s.call(t, method, path, s.expand(body), nil); err != nil {
		t.Fatal(err)
	}
}

// sh runs a shell command as root in the sandbox.
func (s *sandbox) sh(t *testing.T, script string) (string, error) {
	t.Helper()
	return run(t.Context(), "docker", "exec", s.name, "bash", "-c", s.expand(script))
}

// passes and fails run a shell command and say what must come of it.
func (s *sandbox) passes(t *testing.T, script, want string) {
	t.Helper()
	if out, err := s.sh(t, script); err != nil || !strings.Contains(out, want) {
		t.Errorf("%s: %v, printed %q; it must work and print %q", s.expand(script), err, out, want)
	}
}

func (s *sandbox) fails(t *testing.T, script string) {
	t.Helper()
	if out, err := s.sh(t, script); err == nil {
		t.Errorf("%s: it works and prints %q, but must fail", s.expand(script), out)
	}
}

// python runs a program in the sandbox.
func python(program string) string { return "python3 - <<'PROGRAM'\n" + program + "\nPROGRAM" }

// fetch gets a page; curl gives up only when nothing at all happens.
func fetch(url string) string { return "curl -sS -f --max-time 30 " + url }

// processes returns the ids of process 1 of the sidecar and of the egress daemon, 0 when there is
// none.
func (s *sandbox) processes(t *testing.T) (first, daemon int) {
	t.Helper()
	first, err := strconv.Atoi(command(t, "docker", "inspect", "-f", "{{.State.Pid}}", s.name+"-s"))
	if err != nil {
		t.Fatal(err)
	}
	// Threads start processes, too.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", first))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err == nil && len(bytes.TrimSpace(data)) > 0 {
			daemon, _ = strconv.Atoi(strings.Fields(string(data))[0])
		}
	}
	return first, daemon
}

// holdDaemonDead kills the egress daemon and holds process 1, so that no other one runs until the
// returned function is called.
func (s *sandbox) holdDaemonDead(t *testing.T) (goOn func() error) {
	t.Helper()
	first, daemon := s.processes(t)
	if err := unix.Kill(first, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn = func() error { return unix.Kill(first, unix.SIGCONT) }
	t.Cleanup(func() { _ = goOn() })
	if err := unix.Kill(daemon, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Succeeds(t, "the egress daemon is dead", func() error {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", daemon))
		// The first thread may be gone while others still hold the files of the process, and with
		// them the pass mark table.
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", daemon))
		if err != nil || strings.Contains(string(data), ") Z ") && len(threads) <= 1 {
			return nil
		}
		return errors.New("the egress daemon is alive")
	})
	return goOn
}

// inside runs f on a thread in the sandbox's network namespace. f must not start goroutines that
// use the network.
func (s *sandbox) inside(t *testing.T, f func() error) error {
	t.Helper()
	first, _ := s.processes(t)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, for it cannot go back
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", first))
		if err != nil {
			done <- err
			return
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return wait.For(t, "the end of the function", done)
}

// addrOf returns the address of a listener on an address of the outside.
func addrOf(l net.Listener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }
