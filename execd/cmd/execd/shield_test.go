package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/test/loopback"

	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sandboxhttp"
)

// capabilities are those of root in a container, as engines leave them by default.
const capabilities = "+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write"

// contained starts execd-init as process 1 of a namespace, as root with a container's capabilities.
// It returns the address of the daemon.
func contained(t *testing.T, entrypoint ...string) (address string, pid int, dir string) {
	t.Helper()
	port := loopback.Port(t)
	command := first(t, append([]string{"--host=127.0.0.1", fmt.Sprintf("--port=%d", port), "--graceful-shutdown-timeout=0s", "--"}, entrypoint...)...)
	command.Env = append(os.Environ(), "EXECD_ACCESS_TOKEN="+token, fmt.Sprintf("DAEMON_PORT=%d", port))
	contain(t, command)
	return fmt.Sprintf("127.0.0.1:%d", port), command.Process.Pid, command.Dir
}

// contain starts a program as process 1 of a namespace, as root with a container's capabilities,
// with its output in the file log of its directory.
func contain(t *testing.T, command *exec.Cmd) {
	t.Helper()
	const script = `mount -t proc proc /proc && exec setpriv --bounding-set=-all,` + capabilities + ` --inh-caps=-all "$@"`
	command.Args = append([]string{"/bin/sh", "-c", script, "sh"}, append([]string{command.Path}, command.Args[1:]...)...)
	command.Path = "/bin/sh"
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	output, err := os.Create(filepath.Join(command.Dir, "log"))
	must(t, err)
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	must(t, command.Start())
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
		if t.Failed() {
			data, _ := os.ReadFile(output.Name())
			t.Logf("%s", data)
		}
	})
}

// proves reports whether the daemon with the token answers.
func proves(address string) bool {
	challenge := sandboxhttp.NewChallenge()
	request, err := http.NewRequest(http.MethodGet, "http://"+address+"/ping", nil)
	if err != nil {
		return false
	}
	request.Header.Set(sandboxhttp.ChallengeHeader, challenge)
	response, err := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: wait.Patience()}).Do(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return sandboxhttp.Proves(response.Header.Get(sandboxhttp.ProofHeader), token, challenge)
}

// TestRootInTheSandboxCannotReadTheToken: from its first instruction on, an entrypoint that is root
// looks for the token in every process that it can see.
func TestRootInTheSandboxCannotReadTheToken(t *testing.T) {
	t.Parallel()
	const search = `
		grep -l DAEMON_PORT /proc/$$/environ >own
		while :; do
			for process in /proc/[0-9]*; do
				grep -l ` + token + ` $process/environ $process/cmdline 2>/dev/null | grep -v "/proc/$$/cmdline" >>found
				cat $process/maps 2>/dev/null | grep -l execd >>found
				readlink $process/fd/0 >/dev/null 2>&1 || echo "$process" >>hidden
			done
			echo >>rounds
		done`
	address, _, dir := contained(t, "/bin/sh", "-c", strings.ReplaceAll(search, token, token[:4]+"'"+token[4:]+"'"))
	read := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(dir, name)) // empty while it is not there
		return string(data)
	}
	wait.Until(t, "the daemon answers", func() bool { return proves(address) })
	before := len(read("rounds"))
	wait.Until(t, "the entrypoint looks on", func() bool { return len(read("rounds")) > before+20 })
	if found := read("found"); found != "" {
		t.Errorf("the token, or the memory of its holders, can be read in %s", found)
	}
	if read("own") == "" || !strings.Contains(read("hidden"), "/proc/1\n") {
		t.Errorf("the search proves nothing: its own environment %q, hidden processes %q", read("own"), read("hidden"))
	}
}

// TestPortBelongsToTheDaemon: nothing else can take execd's port, not before the first daemon and
// not while another one is started. Connections wait for the daemon meanwhile.
func TestPortBelongsToTheDaemon(t *testing.T) {
	t.Parallel()
	address, pid, dir := contained(t, "/bin/bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$DAEMON_PORT && echo yes >connected; exec sleep 1000`)
	wait.Until(t, "the daemon answers", func() bool { return proves(address) })
	wait.Until(t, "the entrypoint has connected", func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, "connected"))
		return bytes.Equal(data, []byte("yes\n"))
	})
	for range 4 { // init waits longer from time to time
		wait.Until(t, "there is a daemon", func() bool { return hasChild(t, pid, "serve") })
		kill(t, pid, "serve")
		for _, at := range []string{address, strings.Replace(address, "127.0.0.1", "0.0.0.0", 1)} {
			if thief, err := net.Listen("tcp", at); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("%s can be taken: %v", at, err)
				if err == nil {
					thief.Close()
				}
			}
		}
		if !proves(address) {
			t.Error("a request that comes while there is no daemon does not wait for the next one")
		}
	}
}

// TestPortThatIsTaken: init does not run the entrypoint of a sandbox whose daemon cannot be
// reached.
func TestPortThatIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	command := first(t, "--host=127.0.0.1", fmt.Sprintf("--port=%d", taken.Addr().(*net.TCPAddr).Port), "--", "/bin/sh", "-c", "echo ran")
	output, err := command.CombinedOutput()
	if err == nil || strings.Contains(string(output), "ran") || !strings.Contains(string(output), "the port of execd cannot be used") ||
		!strings.Contains(string(output), "address already in use") {
		t.Errorf("%v: %s", err, output)
	}
}
