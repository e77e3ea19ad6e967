package sandbox

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"sandbox.internal/clients/go/execd"
	"sandbox.internal/clients/go/lifecycle"
)

// daemonPort is where the execution API listens in every sandbox.
const daemonPort = 44772

// Sandbox is one sandbox of a service.
type Sandbox struct {
	Commands  Commands
	Code      Code
	Files     Files
	Terminals Terminals
	Network   Network

	client *Client
	id     string
	base   string // of the execution API
	daemon *execd.Client

	mu   sync.Mutex
	info Info
}

// box is a sandbox that the service has.
func (c *Client) box(info Info) (*Sandbox, error) {
	s := &Sandbox{client: c, id: info.ID, info: info}
	s.base = s.ProxyURL(daemonPort)
	var err error
	s.daemon, err = execd.NewClient(s.base, execd.WithHTTPClient(c.http),
		execd.WithRequestEditorFn(c.authorize))
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", info.ID, err)
	}
	s.Commands, s.Code, s.Files = Commands{s}, Code{s}, Files{s}
	s.Terminals, s.Network = Terminals{s}, Network{s}
	return s, nil
}

// ID returns the sandbox's id.
func (s *Sandbox) ID() string { return s.id }

// Info returns what was last known about the sandbox. It sends no request.
func (s *Sandbox) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

func (s *Sandbox) update(info Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info = info
}

// Refresh asks the service for the sandbox.
func (s *Sandbox) Refresh(ctx context.Context) (Info, error) { return s.refresh(ctx, 0) }

func (s *Sandbox) refresh(ctx context.Context, wait time.Duration) (Info, error) {
	info, err := s.client.get(ctx, s.id, wait)
	if err == nil {
		s.update(info)
	}
	return info, err
}

// Wait waits until the sandbox is in a state. When the sandbox ends, or has ended, in another
// state, the error is a [*StateError].
func (s *Sandbox) Wait(ctx context.Context, state string) (Info, error) {
	info, err := s.Refresh(ctx)
	if err != nil {
		return info, err
	}
	return s.waitFrom(ctx, info, state)
}

// waitFrom waits, beginning with what is known.
func (s *Sandbox) waitFrom(ctx context.Context, info Info, want string) (Info, error) {
	for {
		switch state := info.Status.State; {
		case state == want, want == Running && sleeps(info.Status):
			return info, nil
		case isOver(state), state == Stopping && want != Terminated && want != Failed:
			return info, &StateError{ID: s.id, State: state, Want: want,
				Reason: info.Status.Reason, Message: info.Status.Message}
		case isStable(state):
			// The state changes only at a request; an event says when.
			if err := s.nextState(ctx, info); err != nil {
				return info, err
			}
		}
		var err error
		if info, err = s.refresh(ctx, waitStep); err != nil {
			return info, err
		}
	}
}

// nextState waits until the state is another one than in info, or was.
func (s *Sandbox) nextState(ctx context.Context, info Info) error {
	for event, err := range s.Events(ctx, &EventOptions{FromStart: true}) {
		if err != nil {
			return err
		}
		if event.Type == EventForgotten || event.Type == EventReset ||
			event.Type == EventState && event.Timestamp.After(info.Status.LastTransitionAt) {
			return nil
		}
	}
	return ctx.Err()
}

// sleeps reports whether a sandbox has been Running and sleeps: a request wakes it.
func sleeps(status lifecycle.SandboxStatus) bool {
	switch status.Reason {
	case "IDLE", "TIMEOUT", "HIBERNATED", "HIBERNATED_FILES":
		return status.State == Paused
	}
	return false
}

// isOver reports whether a state never changes.
func isOver(state string) bool { return state == Terminated || state == Failed }

// isStable reports whether a state lasts until a request changes it.
func isStable(state string) bool { return state == Running || state == Paused }

// Pause stops all processes of the sandbox, and keeps them, and returns when they stand still.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.change(ctx, Paused, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.PauseSandbox(ctx, s.id,
			&lifecycle.PauseSandboxParams{Prefer: prefer(waitStep)}, lifecycle.PauseSandboxRequest{})
	})
}

// Suspend pauses the sandbox without its memory: it ends all processes of the sandbox and keeps its
// files, and returns when that is done. Resume starts its entrypoint again. Services on Docker and
// Kubernetes refuse it.
func (s *Sandbox) Suspend(ctx context.Context) error {
	return s.change(ctx, Paused, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.PauseSandbox(ctx, s.id,
			&lifecycle.PauseSandboxParams{Prefer: prefer(waitStep)}, lifecycle.PauseSandboxRequest{FilesOnly: new(true)})
	})
}

// reasonResumeFailed is the reason of a sandbox that is Paused again because it could not be
// started after a reboot of its host.
const reasonResumeFailed = "RESUME_FAILED"

// Resume lets the processes of a paused sandbox go on, and returns when they do. After a reboot of
// its host it starts the sandbox again; when that fails, the error is a [*StateError] and the
// sandbox is Paused as before.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.change(ctx, Running, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.ResumeSandbox(ctx, s.id,
			&lifecycle.ResumeSandboxParams{Prefer: prefer(waitStep)})
	})
}

// change sends a request for a state and waits for it. When no answer came, the request may have
// had its effect: whether the sandbox gets there decides.
func (s *Sandbox) change(ctx context.Context, want string,
	request func(context.Context) (*http.Response, error)) error {
	err := s.client.call(ctx, once, nil, request)
	var refused *Error
	if errors.As(err, &refused) || ctx.Err() != nil {
		return err
	}
	info, failure := s.refresh(ctx, waitStep)
	if failure != nil {
		return errors.Join(err, failure)
	}
	if err != nil && isStable(info.Status.State) && info.Status.State != want {
		return err
	}
	if want == Running && info.Status.State == Paused && info.Status.Reason == reasonResumeFailed {
		return &StateError{ID: s.id, State: Paused, Want: want, Reason: info.Status.Reason, Message: info.Status.Message}
	}
	_, err = s.waitFrom(ctx, info, want)
	return err
}

// Renew has the sandbox end so long from now, at most 24 hours, and returns when that is. It cannot
// be made to end sooner.
func (s *Sandbox) Renew(ctx context.Context, d time.Duration) (time.Time, error) {
	var answer lifecycle.Expiration
	body := lifecycle.RenewRequest{ExpiresAt: time.Now().Add(d)}
	err := s.client.call(ctx, once, &answer, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.RenewExpiration(ctx, s.id, body)
	})
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.info.ExpiresAt = answer.ExpiresAt
	}
	return answer.ExpiresAt, err
}

// Delete ends the sandbox and waits for a while until nothing is left of it. It succeeds when the
// sandbox is ending or has ended already.
func (s *Sandbox) Delete(ctx context.Context) error {
	sent := 0
	err := s.client.call(ctx, repeatable, nil, func(ctx context.Context) (*http.Response, error) {
		sent++
		return s.client.service.DeleteSandbox(ctx, s.id,
			&lifecycle.DeleteSandboxParams{Prefer: prefer(waitStep)})
	})
	var refused *Error
	if sent > 1 && errors.As(err, &refused) && refused.Code == "SANDBOX_NOT_FOUND" {
		return nil // an attempt before ended it, and only its answer was lost
	}
	if errors.Is(err, ErrConflict) {
		if info, failure := s.Refresh(ctx); failure == nil && isOver(info.Status.State) {
			return nil
		}
	}
	return err
}

// UpdateMetadata sets the keys that have a value and removes those that are nil. It returns all of
// the metadata that there is then.
func (s *Sandbox) UpdateMetadata(ctx context.Context,
	patch map[string]*string) (map[string]string, error) {
	var all lifecycle.Metadata
	err := s.client.call(ctx, repeatable, &all, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.UpdateMetadataWithApplicationMergePatchPlusJSONBody(ctx, s.id, patch)
	})
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.info.Metadata = all
	}
	return all, err
}

// Endpoint returns how to reach a port directly, where the network allows it. The headers are
// secret.
func (s *Sandbox) Endpoint(ctx context.Context, port int) (Endpoint, error) {
	return s.endpoint(ctx, port, nil)
}

// SignedEndpoint returns a URL of a port that needs no key for so long, in whole seconds and at
// least one. Everyone who has the URL can use the port.
func (s *Sandbox) SignedEndpoint(ctx context.Context, port int, d time.Duration) (Endpoint, error) {
	return s.endpoint(ctx, port, new(strconv.Itoa(max(1, int(d/time.Second)))))
}

func (s *Sandbox) endpoint(ctx context.Context, port int, expires *string) (Endpoint, error) {
	var endpoint Endpoint
	err := s.client.call(ctx, repeatable, &endpoint,
		func(ctx context.Context) (*http.Response, error) {
			return s.client.service.GetEndpoint(ctx, s.id, port,
				&lifecycle.GetEndpointParams{Expires: expires})
		})
	return endpoint, err
}

// ProxyURL returns the URL of a port on the service itself. It needs the service's key, in the
// header KeyHeader, and works wherever the service can be reached. ProxyURL sends no request.
func (s *Sandbox) ProxyURL(port int) string {
	return fmt.Sprintf("%s/v1/sandboxes/%s/proxy/%d", s.client.base, url.PathEscape(s.id), port)
}

// Events yields what happens to the sandbox: from its first event that is kept, or after the one
// that o names. It ends after EventForgotten.
func (s *Sandbox) Events(ctx context.Context, o *EventOptions) iter.Seq2[Event, error] {
	options := deref(o)
	return func(yield func(Event, error) bool) {
		stream := s.client.eventsAs(ctx, options, &follower{
			client: s.client, what: "events of sandbox " + s.id, endless: true,
			onOpen: options.OnOpen,
			open: func(ctx context.Context, last string) (*http.Response, error) {
				return s.client.service.StreamSandboxEvents(ctx, s.id,
					&lifecycle.StreamSandboxEventsParams{
						After: options.after(), LastEventID: optional(last),
					})
			},
		})
		for event, err := range stream {
			if !yield(event, err) || event.Type == EventForgotten {
				return
			}
		}
	}
}

// Holds returns what keeps the sandbox awake. It does not wake one that sleeps.
func (s *Sandbox) Holds(ctx context.Context) (Holds, error) {
	var holds Holds
	err := s.client.call(ctx, repeatable, &holds,
		func(ctx context.Context) (*http.Response, error) { return s.client.service.GetHolds(ctx, s.id) })
	return holds, err
}

// UpdateLifecycle changes what the options name of when the sandbox falls asleep or ends by itself,
// and returns what holds then.
func (s *Sandbox) UpdateLifecycle(ctx context.Context, o LifecycleOptions) (Lifecycle, error) {
	var settings Lifecycle
	err := s.client.call(ctx, repeatable, &settings, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.UpdateLifecycle(ctx, s.id, o.request())
	})
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.info.Lifecycle = &settings
	}
	return settings, err
}

// KeepAwakeOptions says for how long to keep a sandbox awake, and when to wake it: one of both at
// least, which are rounded up to whole seconds.
type KeepAwakeOptions struct {
	For       time.Duration // 0 means not at all, an hour is the most
	WakeAfter time.Duration // when to wake it, if it sleeps then; 0 means not at all
	// Name is that of the program that asks. A request under a name takes the place of the last
	// one under it.
	Name string
}

// KeepAwake keeps the sandbox from being taken for idle, or has it woken at a time.
func (s *Sandbox) KeepAwake(ctx context.Context, o KeepAwakeOptions) (KeptAwake, error) {
	seconds := func(d time.Duration) *int {
		if d == 0 {
			return nil
		}
		return new(int((d + time.Second - 1) / time.Second))
	}
	body := execd.KeepAwakeRequest{Seconds: seconds(o.For), WakeAfterSeconds: seconds(o.WakeAfter), Name: optional(o.Name)}
	var granted KeptAwake
	err := s.client.call(ctx, once, &granted,
		func(ctx context.Context) (*http.Response, error) { return s.daemon.KeepAwake(ctx, body) })
	return granted, err
}

// Metrics returns a snapshot of the sandbox's use of processors and memory.
func (s *Sandbox) Metrics(ctx context.Context) (Metrics, error) {
	var metrics Metrics
	err := s.client.call(ctx, repeatable, &metrics,
		func(ctx context.Context) (*http.Response, error) {
			return s.daemon.GetMetrics(ctx, &execd.GetMetricsParams{Format: new(execd.MetricsFormatJSON)})
		})
	return metrics, err
}

// WatchMetrics yields a snapshot every second.
func (s *Sandbox) WatchMetrics(ctx context.Context) iter.Seq2[Metrics, error] {
	return events(ctx, &follower{
		client: s.client, what: "metrics of sandbox " + s.id, endless: true,
		open: func(ctx context.Context, _ string) (*http.Response, error) {
			return s.daemon.WatchMetrics(ctx)
		},
	}, func(Metrics) bool { return false })
}
