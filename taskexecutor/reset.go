package taskexecutor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sandbox.internal/internal/process"
	"sandbox.internal/internal/tasks"
)

// resetPatience bounds how long a reset waits for the ends of what it has killed.
const resetPatience = 30 * time.Second

// Reset ends and forgets all tasks, without grace, and kills the processes of the main container,
// so that the kubelet starts it again. It returns when they are gone.
func (e *Executor) Reset() (tasks.ResetResult, error) {
	e.mu.Lock()
	resetting := e.resetting
	e.resetting = true
	if !resetting {
		e.resets++
	}
	e.mu.Unlock()
	if resetting {
		return tasks.ResetResult{}, refuse(tasks.CodeResetting, "another reset is going on")
	}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.resetting = false
	}()
	e.changing.Lock()
	defer e.changing.Unlock()
	main, _, err := findMain(e.MainMarker)
	if err != nil && !errors.Is(err, errNoMain) {
		return tasks.ResetResult{}, fmt.Errorf("find the main container: %w", err)
	}
	if main.PID == 1 {
		return tasks.ResetResult{}, refuse(tasks.CodeMainIsProcess1,
			"the main container's process is process 1, which cannot be killed from here: the pod needs shareProcessNamespace: true")
	}
	result := tasks.ResetResult{Tasks: []string{}}
	deadline := time.NewTimer(resetPatience)
	defer deadline.Stop()
	e.mu.Lock()
	running, all := e.running, maps.Clone(e.entries)
	e.mu.Unlock()
	if !running {
		return tasks.ResetResult{}, refuse(tasks.CodeStopping, "the task-executor is about to end")
	}
	for name, t := range all {
		if err := e.ask(t, true); err != nil {
			return tasks.ResetResult{}, err
		}
		result.Tasks = append(result.Tasks, name)
	}
	slices.Sort(result.Tasks)
	for name, t := range all {
		select {
		case <-t.gone:
		case <-deadline.C:
			return tasks.ResetResult{}, fmt.Errorf("task %s did not exit after SIGKILL", name)
		}
	}
	err = nil
	if main.PID != 0 {
		result.KilledProcesses, err = killContainer(main, deadline.C)
	}
	e.Logger.Info().Strs("tasks", result.Tasks).Int("killed_processes", result.KilledProcesses).Err(err).Msg("reset")
	return result, err
}

// killContainer kills all processes of the main container, and returns how many there were when
// they are gone. The runtime kills what has hidden from us, as soon as the container's first
// process has ended.
func killContainer(main process.ID, deadline <-chan time.Time) (int, error) {
	namespace, err := mountNamespace(main.PID)
	if err != nil {
		return 0, nil // it ends by itself
	}
	killed := make(map[process.ID]bool)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		found, err := killNamespace(namespace, killed)
		if err != nil || !found {
			return len(killed), err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-deadline:
			timer.Stop()
			return len(killed), errors.New("processes of the main container do not end, though they were killed")
		}
	}
}
