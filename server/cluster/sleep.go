package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/wire/sandboxhttp"
)

const (
	// wakeTimeout is how long a request waits for a sandbox that a client has resumed.
	wakeTimeout = 30 * time.Second
	// daemonTimeout is how long an execd may take to answer. It thaws a sandbox in milliseconds.
	daemonTimeout = 10 * time.Second
)

var _ lifecycle.Sleeper = (*Cluster)(nil)

// checkLifecycle returns an error for what a cluster does not have.
func checkLifecycle(settings *lifecycle.Lifecycle) error {
	if settings != nil && settings.OnIdle == lifecycle.OnIdleHibernate {
		return lifecycle.Unsupportedf(
			"lifecycle.onIdle: must not be hibernate on a cluster, whose nodes bring no sandbox to the disk; with pause the sandbox sleeps in memory")
	}
	return nil
}

// setLifecycle writes when the sandbox falls asleep or ends by itself into a resource that has
// annotations. Lives is for how long it was to live at its creation, kept for how long a sandbox is
// kept at most whose time is up; 0 is the longest time.
func setLifecycle(b *v1alpha1.BatchSandbox, settings lifecycle.Lifecycle, lives, kept time.Duration) error {
	sleep := &v1alpha1.Sleep{AutoResume: settings.AutoResume}
	action := map[lifecycle.OnIdle]v1alpha1.IdleAction{
		lifecycle.OnIdlePause: v1alpha1.IdlePause, lifecycle.OnIdleDelete: v1alpha1.IdleDelete,
	}[settings.OnIdle]
	if action != "" {
		sleep.Idle = &v1alpha1.Idle{Action: action, Milliseconds: settings.Idle.Milliseconds()}
	}
	if settings.OnTimeout == lifecycle.OnTimeoutPause {
		sleep.Timeout = &v1alpha1.Timeout{
			KeptSeconds: int64(cmp.Or(kept, lifecycle.MaxTimeout) / time.Second), LivesSeconds: max(1, int64(lives/time.Second)),
		}
	}
	b.Spec.Sleep = sleep
	return view.Annotate(b, view.AnnotationSleep, settings)
}

// UpdateLifecycle implements lifecycle.Sleeper.
func (c *Cluster) UpdateLifecycle(
	ctx context.Context, id string, change lifecycle.LifecycleChange, maxTimeout time.Duration,
) (settings lifecycle.Lifecycle, err error) {
	_, err = c.change(ctx, id, func(e *view.Entry, b *v1alpha1.BatchSandbox) (bool, error) {
		if state := e.Sandbox.Status.State; state.Final() || state == lifecycle.StateStopping {
			return false, lifecycle.Conflictf("cannot change the lifecycle: the sandbox is %s", state)
		}
		settings = e.Sandbox.Settings().With(change)
		if err := settings.Validate(); err != nil {
			return false, err
		}
		if err := checkLifecycle(&settings); err != nil {
			return false, err
		}
		lives := cmp.Or(e.Record.Lives, e.Sandbox.ExpiresAt.Sub(e.Sandbox.CreatedAt))
		if err := setLifecycle(b, settings, lives, maxTimeout); err != nil {
			return false, err
		}
		return true, checkAnnotations(b)
	})
	return settings, err
}

// isWoken reports whether a sandbox runs that slept, or is about to.
func isWoken(sandbox *lifecycle.Sandbox) bool {
	return sandbox.Status.State == lifecycle.StateResuming && sandbox.Status.Reason == lifecycle.ReasonWoken
}

// Wake implements lifecycle.Sleeper. Execd wakes the sandbox, and the resource says so later.
func (c *Cluster) Wake(ctx context.Context, id string) error {
	e, err := c.view.Find(ctx, id)
	if err != nil {
		return err
	}
	sandbox := &e.Sandbox
	switch {
	case sandbox.Status.State == lifecycle.StateRunning:
		return nil
	case !sandbox.Wakes():
		return sandbox.Status.State.Conflict("wake the sandbox", lifecycle.StateRunning)
	case sandbox.Sleeps() || isWoken(sandbox):
		return c.thaw(ctx, e)
	}
	e = c.view.Await(ctx, e, wakeTimeout, func(e *view.Entry) bool { return !e.Sandbox.Status.State.Transient() })
	switch {
	case e.Sandbox.Status.State == lifecycle.StateRunning || e.Sandbox.Sleeps():
		return nil
	case e.Sandbox.Wakes():
		return &lifecycle.Error{
			Kind: lifecycle.KindUnavailable, RetryAfter: 1,
			Message: fmt.Sprintf("sandbox %s is being resumed and does not run within %v", id, wakeTimeout),
		}
	}
	return e.Sandbox.Status.State.Conflict("wake the sandbox", lifecycle.StateRunning)
}

// thaw has the execd of a sandbox wake it if it sleeps; one that a client has paused meanwhile
// stays so.
func (c *Cluster) thaw(ctx context.Context, e *view.Entry) error {
	_, err := c.askDaemon(ctx, e, http.MethodPost, "/thaw?onlyAsleep=true")
	if err != nil && ctx.Err() == nil {
		return &lifecycle.Error{
			Kind: lifecycle.KindUnavailable, RetryAfter: 1,
			Message: fmt.Sprintf("sandbox %s sleeps and cannot be woken: %v", e.Sandbox.ID, err),
		}
	}
	return err
}

// resumeAsleep wakes a sandbox that sleeps or is falling asleep, and waits for one that is being
// woken: whoever resumes it need not know which. It returns false for any other.
func (c *Cluster) resumeAsleep(ctx context.Context, id string) (woken bool, err error) {
	e, err := c.latest(ctx, id)
	if err != nil {
		return false, err
	}
	ended := func(e *view.Entry, atMost time.Duration) *view.Entry {
		since := e.Version
		return c.view.Await(ctx, e, atMost, func(e *view.Entry) bool { return e.Version > since && !e.Sandbox.Status.State.Transient() })
	}
	status := e.Sandbox.Status
	switch {
	case e.Sandbox.Sleeps():
		if err := c.thaw(ctx, e); err != nil {
			return false, err
		}
		if status.State != lifecycle.StatePausing || status.Reason != lifecycle.ReasonTimeout {
			ended(e, actTimeout)
			break
		}
		// Execd lets it fall asleep in the middle of work, and perhaps after the thaw.
		if after := ended(e, wakeTimeout); after.Sandbox.Status.State == lifecycle.StatePaused && after.Sandbox.Sleeps() {
			return true, c.thaw(ctx, after)
		}
	case isWoken(&e.Sandbox):
		ended(e, actTimeout)
	default:
		return false, nil
	}
	return true, nil
}

// Holds implements lifecycle.Sleeper.
func (c *Cluster) Holds(ctx context.Context, id string) (lifecycle.Holds, error) {
	e, err := c.view.Find(ctx, id)
	if err != nil {
		return lifecycle.Holds{}, err
	}
	switch state := e.Sandbox.Status.State; state {
	case lifecycle.StateRunning, lifecycle.StatePaused, lifecycle.StatePausing, lifecycle.StateResuming:
	default:
		return lifecycle.Holds{}, state.Conflict("list what keeps the sandbox awake", lifecycle.StateRunning, lifecycle.StatePaused)
	}
	text, err := c.askDaemon(ctx, e, http.MethodGet, "/holds")
	if err != nil && ctx.Err() != nil {
		return lifecycle.Holds{}, err
	}
	var holds lifecycle.Holds
	if err == nil {
		holds, err = lifecycle.ParseHolds(text)
	}
	if err != nil {
		return lifecycle.Holds{}, fmt.Errorf("%w: %w", lifecycle.ErrNoHolds, err)
	}
	if e.Sandbox.Status.State != lifecycle.StateRunning {
		holds = lifecycle.Holds{WakeAt: holds.WakeAt}
	}
	return holds, nil
}

// askDaemon sends a request to the execd of a sandbox, and returns the answer if it is 200.
func (c *Cluster) askDaemon(ctx context.Context, e *view.Entry, method, path string) ([]byte, error) {
	token, _, err := c.view.Tokens(ctx, e)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(e.Address(), strconv.Itoa(v1alpha1.PortExecd))
	request, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(lifecycle.TokenHeader, token)
	response, err := c.daemons.Do(request)
	if err != nil {
		return nil, fmt.Errorf("execd does not answer: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("execd answers %s %s with %d", method, request.URL.Path, response.StatusCode)
	}
	return io.ReadAll(response.Body)
}

// newDaemons returns the client of execds. It keeps no connection: an address may belong to another
// sandbox a moment later.
func newDaemons() *http.Client {
	return sandboxhttp.NewClient(sandboxhttp.Options{Timeout: daemonTimeout, MaxAnswer: lifecycle.MaxHoldsBytes})
}
