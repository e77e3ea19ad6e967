package cli

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"sandbox.internal/gen/execd"
	"sandbox.internal/gen/lifecycle"
)

const (
	execdPort = 44772 // the execution document's default port

	pollInterval = 50 * time.Millisecond
	// noteInterval keeps the progress of a pull from scrolling the screen away.
	noteInterval = time.Second
)

// The states that the demo distinguishes. Others may appear on the way.
const (
	statePending    lifecycle.SandboxState = "Pending"
	stateRunning    lifecycle.SandboxState = "Running"
	statePaused     lifecycle.SandboxState = "Paused"
	stateTerminated lifecycle.SandboxState = "Terminated"
	stateFailed     lifecycle.SandboxState = "Failed"
)

// life is the sandbox of a demo, and what is known about it so far.
type life struct {
	*connection
	report  *report
	request lifecycle.CreateSandboxRequest

	id        string // empty until the create is accepted
	expiresAt time.Time
	noted     string // the last status message that was shown, or needs no showing
	daemon    *execd.Client
}

func (l *life) create(ctx context.Context) (string, error) {
	// Not cut short by an interrupt: an accepted sandbox whose id was not read could
	// not be deleted. The answer takes milliseconds.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quick)
	defer cancel()
	response, err := l.service.CreateSandbox(ctx, nil, l.request)
	created, err := decode[lifecycle.CreatedSandbox](response, err, http.StatusAccepted)
	if err != nil {
		return "", err
	}
	l.id, l.expiresAt, l.noted = created.ID, created.ExpiresAt, created.Status.Message
	if want := "/v1/sandboxes/" + l.id; response.Header.Get("Location") != want {
		return "", fmt.Errorf("header Location is %q, not %q", response.Header.Get("Location"),
			want)
	}
	return fmt.Sprintf("%s %s", created.Status.State, l.id), nil
}

func (l *life) awaitRunning(ctx context.Context) (string, error) {
	sandbox, err := l.await(ctx, stateRunning)
	if err != nil {
		return "", err
	}
	return sentence(sandbox.Status.Message, sandbox.Status.Reason), nil
}

func (l *life) findEndpoint(ctx context.Context) (string, error) {
	response, err := l.service.GetEndpoint(ctx, l.id, execdPort, nil)
	endpoint, err := decode[lifecycle.Endpoint](response, err, http.StatusOK)
	if err != nil {
		return "", err
	}
	if l.daemon, err = l.connection.daemon(endpoint); err != nil {
		return "", err
	}
	response, err = l.daemon.Ping(ctx, nil)
	if err := accept(response, err, http.StatusOK); err != nil {
		return "", fmt.Errorf("ping %s: %w", endpoint.URL, err)
	}
	return endpoint.Endpoint + " answers", nil
}

func (l *life) pause(ctx context.Context) (string, error) {
	response, err := l.service.PauseSandbox(ctx, l.id, nil)
	if err := accept(response, err, http.StatusAccepted); err != nil {
		return "", err
	}
	sandbox, err := l.await(ctx, statePaused)
	return sandbox.Status.State, err
}

func (l *life) resume(ctx context.Context) (string, error) {
	response, err := l.service.ResumeSandbox(ctx, l.id, nil)
	if err := accept(response, err, http.StatusAccepted); err != nil {
		return "", err
	}
	sandbox, err := l.await(ctx, stateRunning)
	if err != nil {
		return "", err
	}
	if err := l.checkAwake(ctx); err != nil {
		return "", err
	}
	return sandbox.Status.State + ", and commands work", nil
}

// renew moves the expiry by five minutes, in whole seconds: a service may keep its
// times less exactly than a client can send them.
func (l *life) renew(ctx context.Context) (string, error) {
	want := l.expiresAt.Add(5 * time.Minute).Truncate(time.Second)
	response, err := l.service.RenewExpiration(ctx, l.id, lifecycle.RenewRequest{ExpiresAt: want})
	answer, err := decode[lifecycle.Expiration](response, err, http.StatusOK)
	if err != nil {
		return "", err
	}
	sandbox, err := l.get(ctx)
	if err != nil {
		return "", err
	}
	if !answer.ExpiresAt.Equal(want) || !sandbox.ExpiresAt.Equal(want) {
		return "", fmt.Errorf("asked for expiry %s, was answered %s and then shown %s",
			want.Format(time.RFC3339), answer.ExpiresAt.Format(time.RFC3339Nano),
			sandbox.ExpiresAt.Format(time.RFC3339Nano))
	}
	l.expiresAt = want
	return "expires " + want.UTC().Format(time.RFC3339), nil
}

func (l *life) delete(ctx context.Context) (string, error) {
	response, err := l.service.DeleteSandbox(ctx, l.id, nil)
	if err := accept(response, err, http.StatusNoContent); err != nil {
		return "", err
	}
	sandbox, err := l.await(ctx, stateTerminated)
	return sandbox.Status.State, err
}

func (l *life) get(ctx context.Context) (lifecycle.Sandbox, error) {
	response, err := l.service.GetSandbox(ctx, l.id, nil)
	return decode[lifecycle.Sandbox](response, err, http.StatusOK)
}

// await polls until the sandbox is in the state, and notes what the service says about
// its provisioning. A final state is an error that says why; a
// state that this tool does not have is an intermediate one.
func (l *life) await(ctx context.Context, want lifecycle.SandboxState) (lifecycle.Sandbox, error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var notedAt time.Time
	for {
		sandbox, err := l.get(ctx)
		if err != nil {
			return sandbox, err
		}
		status := sandbox.Status
		switch status.State {
		case want:
			return sandbox, nil
		case stateFailed, stateTerminated:
			return sandbox, fmt.Errorf("the sandbox is %s: %s: %s", status.State, status.Reason,
				sentence(status.Message, "no message"))
		}
		if status.State == statePending && status.Message != l.noted &&
			time.Since(notedAt) >= noteInterval {
			l.noted, notedAt = status.Message, time.Now()
			l.report.note(sentence(status.Message, status.Reason))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return sandbox, fmt.Errorf("still %s, not %s: %w", status.State, want,
				context.Cause(ctx))
		}
	}
}
