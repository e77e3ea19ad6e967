package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

// TestFrozenAcrossDaemons: killing the daemon of a frozen sandbox does not thaw it; the next daemon
// continues from the state of the last one.
func TestFrozenAcrossDaemons(t *testing.T) {
	t.Parallel()
	ticks := filepath.Join(t.TempDir(), "ticks")
	must(t, os.WriteFile(ticks, nil, 0o600))
	command := alone(t, "--host=127.0.0.1", "--port=0", "--graceful-shutdown-timeout=0s", "--access-token="+token, "--",
		"/bin/sh", "-c", "while :; do echo x >>"+ticks+"; sleep 0.01; done")
	log := startLogged(t, command)
	addresses := func() (all []string) {
		data, err := os.ReadFile(log)
		must(t, err)
		for line := range bytes.Lines(data) {
			var entry struct{ Address string }
			if json.Unmarshal(line, &entry) == nil && entry.Address != "" {
				all = append(all, entry.Address)
			}
		}
		return all
	}
	ticked := func() int {
		data, err := os.ReadFile(ticks)
		must(t, err)
		return len(data)
	}
	await := func(what string, done func() bool) {
		t.Helper()
		wait.Until(t, what, done, func() any {
			data, _ := os.ReadFile(log)
			return string(data)
		})
	}
	transport := &http.Transport{DisableKeepAlives: true}
	client := func(address string) *gen.Client {
		c, err := gen.NewClient("http://"+address, gen.WithHTTPClient(&http.Client{Transport: transport, Timeout: wait.Patience()}),
			gen.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
				r.Header.Set("X-EXECD-ACCESS-TOKEN", token)
				return nil
			}))
		must(t, err)
		return c
	}

	await("the daemon listens", func() bool { return len(addresses()) == 1 })
	await("the entrypoint works", func() bool { return ticked() > 0 })
	response, err := client(addresses()[0]).Freeze(t.Context())
	body(t, response, err)
	before := ticked()

	kill(t, command.Process.Pid, "serve")
	await("the next daemon listens", func() bool { return len(addresses()) == 2 })
	second := client(addresses()[1])
	response, err = second.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "true"})
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusConflict {
		t.Errorf("a command in a sandbox that the last daemon froze: status %d, want 409", response.StatusCode)
	}
	if after := ticked(); after != before {
		t.Errorf("the frozen entrypoint has written %d bytes", after-before)
	}
	response, err = second.Thaw(t.Context())
	body(t, response, err)
	await("the entrypoint goes on", func() bool { return ticked() > before })
	response, err = second.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "ls -l /proc/self/fd; env"})
	if said := body(t, response, err); strings.Contains(said, "execd-state") || strings.Contains(said, "EXECD_") {
		t.Errorf("a command has the daemon's state: %s", said)
	}
}

// alone returns execd-init as process 1 of a namespace, as in a container; /proc is that
// namespace's.
func alone(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := first(t, args...)
	script := "mount -t proc proc /proc && exec \"$@\""
	command.Args = append([]string{"/bin/sh", "-c", script, "sh"}, command.Args...)
	command.Path = "/bin/sh"
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	return command
}

// startLogged starts a program until the test ends, and returns the file with what it prints.
func startLogged(t *testing.T, command *exec.Cmd) (log string) {
	t.Helper()
	log = filepath.Join(command.Dir, "log")
	output, err := os.Create(log)
	must(t, err)
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	must(t, command.Start())
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	return log
}

// kill ends the child of a process that has this word as its second argument.
func kill(t *testing.T, parent int, word string) {
	t.Helper()
	pid := childOf(t, parent, word)
	if pid == 0 {
		t.Fatalf("process %d has no child %q", parent, word)
	}
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

func hasChild(t *testing.T, parent int, word string) bool {
	t.Helper()
	return childOf(t, parent, word) != 0
}

// childOf returns 0 when there is no such child.
func childOf(t *testing.T, parent int, word string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, line := range lines {
		argv, err := os.ReadFile(line)
		if err != nil {
			continue // it has ended
		}
		words := strings.Split(string(argv), "\x00")
		status, err := os.ReadFile(filepath.Join(filepath.Dir(line), "stat"))
		if err != nil || len(words) < 2 || words[1] != word {
			continue
		}
		fields := strings.Fields(string(status[bytes.LastIndexByte(status, ')')+1:]))
		if fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line)))
			must(t, err)
			return pid
		}
	}
	return 0
}
