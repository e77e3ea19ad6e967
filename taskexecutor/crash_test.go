package taskexecutor_test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/taskexecutor"
	"sandbox.internal/test/random"
	"sandbox.internal/test/wait"
)

// TestExecutorKilled: tasks go on without the executor, and the next one learns how they ended,
// also while there was none.
func TestExecutorKilled(t *testing.T) {
	p := start(t, podOptions{})
	p.put("later", shell("echo x >> /tmp/later; while ! test -e /tmp/go-later; do sleep 0.05; done; exit 5"))
	p.put("meanwhile", shell("echo x >> /tmp/meanwhile; while ! test -e /tmp/go-meanwhile; do sleep 0.05; done; exit 6"))
	p.put("late", tasks.Task{Command: []string{"sleep", "1000"}, TimeoutSeconds: 3})
	began := p.runs("later")
	p.runs("meanwhile")
	p.runs("late")

	first := p.host(p.executor)
	p.signal(first, syscall.SIGSTOP) // it cannot start another one
	p.signal(p.theExecutor(), syscall.SIGKILL)
	p.sh("touch /tmp/go-meanwhile")
	p.vanishes("/task-executor shim", "/tasks/meanwhile.")
	p.vanishes("sleep 1000") // the timeout does not need the executor
	p.signal(first, syscall.SIGCONT)
	p.answers()

	if status := p.ended("meanwhile", tasks.Failed, tasks.ReasonExited); *status.ExitCode != 6 {
		t.Errorf("exit code %d, want 6", *status.ExitCode)
	}
	p.ended("late", tasks.Failed, tasks.ReasonTimedOut)
	if status := p.runs("later"); !status.StartedAt.Equal(*began.StartedAt) {
		t.Errorf("the task started at %s, and after the restart at %s", began.StartedAt, status.StartedAt)
	}
	p.sh("touch /tmp/go-later")
	if status := p.ended("later", tasks.Failed, tasks.ReasonExited); *status.ExitCode != 5 {
		t.Errorf("exit code %d, want 5", *status.ExitCode)
	}
	if got := p.sh("cat /tmp/later /tmp/meanwhile"); got != "x\nx" {
		t.Errorf("the tasks ran %q", got)
	}
}

// TestShimKilled: a task whose shim is killed is Failed, and nothing of it goes on, however well it
// hid; with and without an executor.
func TestShimKilled(t *testing.T) {
	p := start(t, podOptions{})
	script := "echo x >> /tmp/runs; setsid bash -c 'trap \"\" TERM HUP; (setsid sleep 7654321 &); sleep 7654321' & sleep 7654321"
	p.put("seen", shell(script))
	wait.Succeeds(p.t, "all of it runs", func() error {
		if n := len(p.processes("sleep 7654321")); n < 4 {
			return fmt.Errorf("there are %d processes", n)
		}
		return nil
	})
	p.signal(p.shim("seen"), syscall.SIGKILL)
	status := p.ended("seen", tasks.Failed, tasks.ReasonExecutorLost)
	if left := p.processes("sleep 7654321"); len(left) > 0 {
		t.Errorf("%d processes are left of a task that has ended: %+v", len(left), status)
	}

	p.put("unseen", shell(script))
	wait.Succeeds(p.t, "all of it runs", func() error {
		if n := len(p.processes("sleep 7654321")); n < 4 {
			return fmt.Errorf("there are %d processes", n)
		}
		return nil
	})
	first := p.host(p.executor)
	shim := p.shim("unseen")
	p.signal(first, syscall.SIGSTOP)
	p.signal(p.theExecutor(), syscall.SIGKILL)
	p.signal(shim, syscall.SIGKILL)
	p.signal(first, syscall.SIGCONT)
	p.ended("unseen", tasks.Failed, tasks.ReasonExecutorLost)
	p.vanishes("sleep 7654321")
	if got := p.sh("cat /tmp/runs"); got != "x\nx" {
		t.Errorf("the tasks ran %q", got)
	}
}

// TestContainerRestarted: when the whole container dies, so do its tasks; they are Failed and not
// run again. What was never started is.
func TestContainerRestarted(t *testing.T) {
	p := start(t, podOptions{})
	p.put("done", shell("echo x >> /tmp/runs"))
	p.ended("done", tasks.Succeeded, "")
	p.put("killed", shell("echo x >> /tmp/runs; sleep 7654321"))
	p.put("asked", shell("echo x >> /tmp/runs; trap 'echo bye >> /tmp/said; exit' TERM; while :; do sleep 0.05; done"))
	p.prints("cat /tmp/runs | wc -l", "3")
	p.runs("killed")
	p.runs("asked")
	command(t, "docker", "kill", p.executor)
	command(t, "docker", "start", p.executor)
	p.answers()
	p.ended("done", tasks.Succeeded, "")
	p.ended("killed", tasks.Failed, tasks.ReasonExecutorLost)
	p.ended("asked", tasks.Failed, tasks.ReasonExecutorLost)
	p.vanishes("sleep 7654321")

	p.put("again", shell("echo x >> /tmp/runs; trap 'echo bye >> /tmp/said; exit' TERM; while :; do sleep 0.05; done"))
	p.prints("cat /tmp/runs | wc -l", "4")
	command(t, "docker", "restart", "-t", "60", p.executor)
	p.answers()
	p.ended("again", tasks.Failed, tasks.ReasonStopped)
	if got := p.sh("cat /tmp/said; wc -l < /tmp/runs"); got != "bye\n4" {
		t.Errorf("last words and runs: %q", got)
	}
}

// TestMainRestarted: a task ends with the main container that it runs in. Without one a task waits,
// over a restart of the executor too.
func TestMainRestarted(t *testing.T) {
	p := start(t, podOptions{})
	p.put("inside", shell("trap '' TERM; while :; do sleep 0.1; done"))
	p.runs("inside")
	command(t, "docker", "kill", p.main)
	p.ended("inside", tasks.Failed, tasks.ReasonMainEnded)
	p.put("next", shell("echo x >> /tmp/next"))
	p.until("next", "waits", func(s tasks.Status) bool { return s.State == tasks.Pending && s.Reason == tasks.ReasonWaitingForMain })
	command(t, "docker", "kill", p.executor)
	command(t, "docker", "start", p.executor)
	p.answers()
	p.until("next", "waits", func(s tasks.Status) bool { return s.State == tasks.Pending && s.Reason == tasks.ReasonWaitingForMain })
	command(t, "docker", "start", p.main)
	p.ended("next", tasks.Succeeded, "")
	if got := p.sh("cat /tmp/next"); got != "x" {
		t.Errorf("the task ran %q", got)
	}
}

// TestReset: all tasks are gone, and the main container has ended, so that it is started again.
func TestReset(t *testing.T) {
	p := start(t, podOptions{command: []string{"bash", "-c", "setsid sleep 7654321 & trap '' TERM; while :; do sleep 1; done"}})
	ctx := t.Context()
	p.put("a", shell("trap '' TERM; while :; do sleep 0.1; done"))
	p.put("b", shell("true"))
	p.runs("a")
	p.ended("b", tasks.Succeeded, "")
	p.HTTP.Timeout = wait.Patience()
	result, err := p.Client.Reset(ctx)
	if err != nil || strings.Join(result.Tasks, " ") != "a b" || result.KilledProcesses < 1 {
		t.Errorf("reset: %+v, %v", result, err)
	}
	if left := p.processes("7654321"); len(left) > 0 {
		t.Errorf("%d processes are left", len(left))
	}
	if list, err := p.List(ctx); err != nil || len(list.Items) != 0 {
		t.Errorf("tasks are left: %+v, %v", list, err)
	}
	wait.Succeeds(p.t, "the main container has ended", func() error {
		out, err := run(ctx, "docker", "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", p.main)
		if strings.TrimSpace(out) != "exited 137" {
			return fmt.Errorf("container is %s (%v)", out, err)
		}
		return nil
	})
	// Another one finds nothing to do.
	if result, err := p.Client.Reset(ctx); err != nil || len(result.Tasks) != 0 || result.KilledProcesses != 0 {
		t.Errorf("reset again: %+v, %v", result, err)
	}
	command(t, "docker", "start", p.main)
	p.put("a", shell("true"))
	p.ended("a", tasks.Succeeded, "")
}

// TestWrongPods: what the executor says about pods that it cannot work in.
func TestWrongPods(t *testing.T) {
	t.Run("process 1", func(t *testing.T) {
		p := start(t, podOptions{noPause: true})
		p.put("task", shell("true"))
		p.ended("task", tasks.Succeeded, "")
		if _, err := p.Client.Reset(t.Context()); !tasks.HasCode(err, tasks.CodeMainIsProcess1) {
			t.Errorf("reset: %v", err)
		}
	})
	t.Run("no marker", func(t *testing.T) {
		p := start(t, podOptions{marker: "OTHER=1"})
		p.put("task", shell("true"))
		status := p.until("task", "waits", func(s tasks.Status) bool { return s.Reason == tasks.ReasonWaitingForMain })
		if !strings.Contains(status.Message, "OTHER=1") {
			t.Errorf("message %q", status.Message)
		}
		if gone, err := p.Delete(t.Context(), "task", tasks.MaxWait); !gone || err != nil {
			t.Errorf("delete: %t, %v", gone, err)
		}
	})
	t.Run("no SYS_PTRACE", func(t *testing.T) {
		p := start(t, podOptions{idle: true, caps: []string{"--cap-drop", "KILL"}})
		wait.Succeeds(p.t, "the container ends and says why", func() error {
			state, _ := run(t.Context(), "docker", "inspect", "-f", "{{.State.Status}}", p.executor)
			logs, _ := run(t.Context(), "docker", "logs", p.executor)
			if strings.TrimSpace(state) != "exited" || !strings.Contains(logs, "SYS_PTRACE, KILL") {
				return fmt.Errorf("%s: %s", state, logs)
			}
			return nil
		})
	})
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// TestCrashes: wherever the executor is killed, and whenever, an accepted task runs exactly once,
// and its end is known.
func TestCrashes(t *testing.T) {
	p := start(t, podOptions{failpoints: true})
	const (
		number   = 30
		rounds   = 3 // at each failpoint
		randomly = 6 // kills beside them, at most
	)
	places := []string{taskexecutor.LoadedFailpoint, taskexecutor.RecordedFailpoint, taskexecutor.ShimStartedFailpoint, taskexecutor.EndedFailpoint}
	stop := p.killRandomly(randomly)
	defer stop()
	for i := range number {
		if i < rounds*len(places) { // after which there are enough tasks for those that are armed last
			if err := p.armed.Arm(places[i%len(places)], 1); err != nil {
				t.Fatal(err)
			}
		}
		p.put(fmt.Sprintf("task-%d", i), shell(fmt.Sprintf("echo %d >> /tmp/runs; exit %d", i, i%2)))
	}
	for i := range number {
		p.ends(fmt.Sprintf("task-%d", i))
	}
	stop()
	for _, place := range places {
		wait.Succeeds(p.t, "the executor is killed at "+place, func() error {
			left, err := p.armed.Left(place)
			if err == nil && left > 0 {
				err = fmt.Errorf("%d times of %d are left", left, rounds)
			}
			return err
		})
	}
	p.answers()
	for i := range number {
		name := fmt.Sprintf("task-%d", i)
		if i%2 == 0 {
			p.ended(name, tasks.Succeeded, "")
		} else {
			p.ended(name, tasks.Failed, tasks.ReasonExited)
		}
	}
	if got := p.sh("sort -n /tmp/runs | uniq -c | awk '$1 == 1' | wc -l; wc -l < /tmp/runs"); got != fmt.Sprintf("%d\n%d", number, number) {
		t.Errorf("tasks that ran once, and runs in all: %q", got)
	}
}

// killRandomly kills the executor at random moments, so many times at most, until stop is called.
func (p *pod) killRandomly(times int) (stop func()) {
	ctx, cancel := context.WithCancel(p.t.Context())
	moments := random.New(p.t)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for killed := 0; ctx.Err() == nil && killed < times; {
			// Only what has answered is killed, else a slow machine would never get further.
			if _, err := p.List(ctx); err == nil {
				pause(ctx, time.Duration(moments.IntN(150))*time.Millisecond)
				for _, pid := range p.processes("/task-executor") {
					// Neither process 1 of the container nor a shim.
					if line, err := cmdline(pid); err == nil && line == "/task-executor\x00" && syscall.Kill(pid, syscall.SIGKILL) == nil {
						killed++
					}
				}
			}
			pause(ctx, 10*time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-stopped
	}
}
