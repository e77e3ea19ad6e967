package docker

import (
	"context"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

const (
	killedExitCode = 128 + 9 // what the kernel's out-of-memory killer leaves behind
	// oomWindow is how far from the end of a container the engine's word about its memory may be.
	// Seen: up to 0.4 s late.
	oomWindow = time.Second
)

// diedOfMemory reports whether the kernel killed the container for its memory.
//
// The engine says so in its state only when the news of the shortage came before that of the end;
// about one time in ten it is the other way round, and then only the engine's events have it. So a
// killed container with a memory limit is looked up there, which for one that has just ended means
// to wait until nothing can follow any more.
func (e *Engine) diedOfMemory(ctx context.Context, found container.InspectResponse) bool {
	state := found.State
	if state.OOMKilled {
		return true
	}
	if state.Running || state.ExitCode != killedExitCode || found.HostConfig == nil ||
		found.HostConfig.Memory == 0 {
		return false
	}
	ended, err := time.Parse(time.RFC3339Nano, state.FinishedAt)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	messages, failed := e.api.Events(ctx, events.ListOptions{
		Since: ended.Add(-oomWindow).Format(time.RFC3339Nano),
		Until: ended.Add(oomWindow).Format(time.RFC3339Nano),
		Filters: filters.NewArgs(
			filters.Arg("container", found.ID),
			filters.Arg("event", string(events.ActionOOM)),
		),
	})
	defer func() {
		cancel()
		for range failed { // closed when the client's goroutine has ended
		}
	}()
	select {
	case <-messages:
		return true
	case <-failed: // the end of the window, or no answer: then the state's word stands
		return false
	}
}
