package command_test

import (
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/oomkill"
	"sandbox.internal/test/wait"
)

// TestOutOfMemory: only a command that SIGKILL has ended, and which we have not ended, is one that
// memory ran out for, and only if the kernel has counted a kill while it ran.
func TestOutOfMemory(t *testing.T) {
	var kills atomic.Int64
	m := newManager(t, func(o *command.Options) {
		o.OOMKills = oomkill.New(func() (int64, bool) { return kills.Load(), true })
	})
	const itself, shell = "read x; kill -9 $$", `read x; sh -c 'kill -9 $$'; exit $?`
	for name, c := range map[string]struct {
		command string
		kills   int64
		want    bool
	}{
		"itself killed":                {itself, 1, true},
		"a process of its shell":       {shell, 1, true},
		"several processes killed":     {shell, 3, true},
		"killed by another process":    {itself, 0, false},
		"another exit code":            {"read x; exit 1", 1, false},
		"exit code 0":                  {"read x", 1, false},
		"killed by another signal":     {"read x; kill -15 $$", 1, false},
		"what was killed was replaced": {"read x; sh -c 'kill -9 $$' || true", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			running := start(t, m, command.Spec{Command: c.command, Input: true})
			kills.Add(c.kills) // the kernel counts first
			if _, err := running.WriteInput(t.Context(), strings.NewReader("go\n"), 0, true); err != nil {
				t.Fatal(err)
			}
			wait.For(t, "the end of the command", running.Done())
			status := running.Status()
			if status.OOMKilled != c.want || strings.Contains(status.Error, "memory ran out") != c.want {
				t.Errorf("OOMKilled is %t (%s), want %t", status.OOMKilled, status.Error, c.want)
			}
			events := follow(t, running, 0, nil)
			exit, err := command.ParseExit([]byte(events[len(events)-1].text))
			if err != nil || exit.OOMKilled != c.want {
				t.Errorf("the last event is %+v, %v", exit, err)
			}
		})
	}
	t.Run("killed by its timeout", func(t *testing.T) {
		stubborn := start(t, m, command.Spec{Command: "trap '' TERM; while :; do sleep 0.01; done", Timeout: time.Millisecond})
		kills.Add(1)
		wait.For(t, "the end of the command", stubborn.Done())
		if status := stubborn.Status(); status.OOMKilled {
			t.Errorf("it is %+v", status)
		}
	})
	t.Run("killed after an interrupt", func(t *testing.T) {
		stubborn := start(t, m, command.Spec{Command: "trap '' TERM; while :; do sleep 0.01; done"})
		kills.Add(1)
		if err := m.Interrupt(stubborn.ID()); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the end of the command", stubborn.Done())
		if status := stubborn.Status(); status.OOMKilled || *status.ExitCode != 128+int(syscall.SIGKILL) && *status.ExitCode != 128+int(syscall.SIGTERM) {
			t.Errorf("it is %+v", status)
		}
	})
}
