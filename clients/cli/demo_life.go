package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	sandbox "sandbox.internal/clients/go"
)

// demoSandbox is the sandbox of a demo, and what is known about it so far.
type demoSandbox struct {
	t       *tool
	table   *stepTable
	options sandbox.CreateOptions

	box *sandbox.Sandbox // nil until the create is accepted
}

func (l *demoSandbox) create(ctx context.Context) (string, error) {
	defaults, err := l.t.defaults(ctx)
	if err != nil {
		return "", refused(err)
	}
	if l.options.Image == "" && defaults.Image != nil {
		l.options.Image = *defaults.Image
	}
	if l.options.Image == "" {
		return "", errors.New("the service has no default image (server.default_image): name one with --image")
	}
	l.options.Timeout = time.Duration(defaults.Timeout) * time.Second
	l.options.Entrypoint = defaults.Entrypoint
	box, err := l.t.newSandbox(ctx, l.options)
	if err != nil {
		return "", refused(err)
	}
	l.box = box
	return fmt.Sprintf("%s %s of %s", box.Info().Status.State, box.ID(), l.options.Image), nil
}

// refused adds to an error of the network what to look at.
func refused(err error) error {
	var answer *sandbox.Error
	if errors.As(err, &answer) {
		return err
	}
	return fmt.Errorf("%w; is the service running, and is --url right?", err)
}

// awaitRunning shows how provisioning goes on.
func (l *demoSandbox) awaitRunning(ctx context.Context) (string, error) {
	info, err := awaitRunning(ctx, l.box, func(event sandbox.Event) {
		if event.Type == sandbox.EventProgress && event.Message != nil {
			l.table.note(*event.Message)
		}
	})
	if err != nil {
		return "", err
	}
	return sentence(info.Status.Message, info.Status.Reason), nil
}

func (l *demoSandbox) findEndpoint(ctx context.Context) (string, error) {
	endpoint, err := l.box.Endpoint(ctx, execdPort)
	if err != nil {
		return "", err
	}
	if _, err := l.box.Metrics(ctx); err != nil {
		return "", err
	}
	return endpoint.Endpoint + " answers", nil
}

func (l *demoSandbox) pause(ctx context.Context) (string, error) {
	if err := l.box.Pause(ctx); err != nil {
		return "", err
	}
	info, err := l.box.Refresh(ctx)
	return info.Status.State, err
}

func (l *demoSandbox) resume(ctx context.Context) (string, error) {
	if err := l.box.Resume(ctx); err != nil {
		return "", err
	}
	if err := l.checkResumed(ctx); err != nil {
		return "", err
	}
	info, err := l.box.Refresh(ctx)
	return info.Status.State + ", and commands work", err
}

// renew has the sandbox live for as long from now as it was to live at first, which no key refuses.
func (l *demoSandbox) renew(ctx context.Context) (string, error) {
	before := l.box.Info().ExpiresAt
	answer, err := l.box.Renew(ctx, l.options.Timeout)
	if err != nil {
		return "", err
	}
	info, err := l.box.Refresh(ctx)
	if err != nil {
		return "", err
	}
	if !info.ExpiresAt.Equal(answer) || !answer.After(before) {
		return "", fmt.Errorf("the expiry was %s, was answered as %s and then shown as %s",
			before.Format(time.RFC3339), answer.Format(time.RFC3339Nano),
			info.ExpiresAt.Format(time.RFC3339Nano))
	}
	return "expires " + answer.UTC().Format(time.RFC3339), nil
}

func (l *demoSandbox) delete(ctx context.Context) (string, error) {
	if err := l.box.Delete(ctx); err != nil {
		return "", err
	}
	info, err := l.box.Wait(ctx, sandbox.Terminated)
	return info.Status.State, err
}
