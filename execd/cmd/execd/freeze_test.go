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

// sandbox is an init whose entrypoint writes a byte again and again.
type sandbox struct {
	*testing.T
	command    *exec.Cmd
	log, ticks string
}

func startTicking(t *testing.T) *sandbox {
	t.Helper()
	s := &sandbox{T: t, ticks: filepath.Join(t.TempDir(), "ticks")}
	must(t, os.WriteFile(s.ticks, nil, 0o600))
	s.command = alone(t, "--host=127.0.0.1", "--port=0", "--graceful-shutdown-timeout=0s", "--access-token="+token, "--",
		"/bin/sh", "-c", "while :; do echo x >>"+s.ticks+"; sleep 0.01; done")
	s.log = startLogged(t, s.command)
	s.await("the entrypoint works", func() bool { return s.ticked() > 0 })
	return s
}

func (s *sandbox) ticked() int {
	data, err := os.ReadFile(s.ticks)
	must(s.T, err)
	return len(data)
}

func (s *sandbox) await(what string, done func() bool) {
	s.Helper()
	wait.Until(s.T, what, done, func() any {
		data, _ := os.ReadFile(s.log)
		return string(data)
	})
}

// daemon returns a client of the daemon that is started as the n-th.
func (s *sandbox) daemon(n int) *gen.Client {
	s.Helper()
	var all []string
	s.await("the daemon listens", func() bool {
		data, err := os.ReadFile(s.log)
		must(s.T, err)
		all = nil
		for line := range bytes.Lines(data) {
			var entry struct{ Address string }
			if json.Unmarshal(line, &entry) == nil && entry.Address != "" {
				all = append(all, entry.Address)
			}
		}
		return len(all) == n
	})
	c, err := gen.NewClient("http://"+all[n-1],
		gen.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}),
		gen.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("X-EXECD-ACCESS-TOKEN", token)
			return nil
		}))
	must(s.T, err)
	return c
}

// TestFrozenAcrossDaemons: killing the daemon of a frozen sandbox does not thaw it; the next daemon
// continues from the state of the last one.
func TestFrozenAcrossDaemons(t *testing.T) {
	t.Parallel()
	s := startTicking(t)
	response, err := s.daemon(1).Freeze(t.Context(), nil)
	body(t, response, err)
	before := s.ticked()

	kill(t, s.command.Process.Pid, "serve")
	second := s.daemon(2)
	response, err = second.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "true"})
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusConflict {
		t.Errorf("a command in a sandbox that the last daemon froze: status %d, want 409", response.StatusCode)
	}
	if after := s.ticked(); after != before {
		t.Errorf("the frozen entrypoint has written %d bytes", after-before)
	}
	response, err = second.Thaw(t.Context(), nil)
	body(t, response, err)
	s.await("the entrypoint goes on", func() bool { return s.ticked() > before })
	response, err = second.RunCommand(t.Context(), nil, gen.CommandRequest{Command: "ls -l /proc/self/fd; env"})
	if said := body(t, response, err); strings.Contains(said, "execd-state") || strings.Contains(said, "EXECD_") {
		t.Errorf("a command has the daemon's state: %s", said)
	}
}

// TestAsleepAcrossDaemons: a daemon that finds the sandbox asleep wakes it, because what it was to
// be woken by has ended with the daemon before. One that was paused while it slept stays so.
func TestAsleepAcrossDaemons(t *testing.T) {
	t.Parallel()
	s := startTicking(t)
	response, err := s.daemon(1).Freeze(t.Context(), &gen.FreezeParams{Wake: new(false)})
	body(t, response, err)
	before := s.ticked()
	kill(t, s.command.Process.Pid, "serve")
	s.await("the entrypoint goes on", func() bool { return s.ticked() > before })

	second := s.daemon(2)
	response, err = second.Freeze(t.Context(), &gen.FreezeParams{Wake: new(true)})
	body(t, response, err)
	response, err = second.Freeze(t.Context(), nil)
	body(t, response, err)
	before = s.ticked()
	kill(t, s.command.Process.Pid, "serve")
	third := s.daemon(3)
	if after := s.ticked(); after != before {
		t.Errorf("the frozen entrypoint has written %d bytes", after-before)
	}
	response, err = third.Thaw(t.Context(), nil)
	body(t, response, err)
	s.await("the entrypoint goes on", func() bool { return s.ticked() > before })
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
