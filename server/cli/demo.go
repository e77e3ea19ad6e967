package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"time"

	"sandbox.internal/gen/lifecycle"
)

const (
	defaultDemoImage = "sandbox/base:dev"

	// quick bounds a step that only has to be answered, generously.
	quick = 30 * time.Second
	// provisioning bounds the way to Running, which may include the image's pull.
	provisioning = 120 * time.Second
	// cleanup bounds the delete of a sandbox whose demo went wrong.
	cleanup = 15 * time.Second
)

func setupDemo(t *tool, flags *flag.FlagSet) func(context.Context) error {
	image := flags.String("image", defaultDemoImage,
		"the `IMAGE` of the sandbox, with a shell; else "+defaultDemoImage)
	return func(ctx context.Context) error { return t.demo(ctx, *image) }
}

// demo takes one sandbox through its whole life. Whatever happens on the way, the
// sandbox is gone in the end, or the output says that it is not.
func (t *tool) demo(ctx context.Context, image string) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	defer c.close()
	l := &life{connection: c, report: t.newReport(), request: demoRequest(image)}
	l.report.line(fmt.Sprintf("The life of a sandbox: image %s, service %s\n", image, c.url))

	start := time.Now()
	for _, s := range l.steps() {
		if err := l.take(ctx, s); err != nil {
			l.abandon(ctx)
			return err
		}
	}
	l.report.line(fmt.Sprintf("\nAll of it worked and took %s.\n\n%s", duration(time.Since(start)),
		l.hint()))
	return nil
}

func demoRequest(image string) lifecycle.CreateSandboxRequest {
	cpu, memory := "1", "512Mi"
	return lifecycle.CreateSandboxRequest{
		Image:          lifecycle.Image{URI: image},
		Timeout:        600,
		ResourceLimits: lifecycle.ResourceLimits{CPU: &cpu, Memory: &memory},
		Entrypoint:     lifecycle.Entrypoint{"sleep", "infinity"},
		Metadata:       lifecycle.Metadata{"name": "demo"},
	}
}

// step is one row of the demo's table.
type step struct {
	name  string
	limit time.Duration
	// do acts, checks the result, and returns what to show of it.
	do func(ctx context.Context) (detail string, err error)
}

// steps is the life, in order; each step builds on those before.
func (l *life) steps() []step {
	return []step{
		{"create", quick, l.create},
		{"running", provisioning, l.awaitRunning},
		{"endpoint", quick, l.findEndpoint},
		{"command", quick, l.stream},
		{"upload", quick, l.upload},
		{"search", quick, l.search},
		{"replace", quick, l.replace},
		{"download", quick, l.download},
		{"range", quick, l.downloadRange},
		{"metrics", quick, l.metrics},
		{"pause", quick, l.pause},
		{"resume", quick, l.resume},
		{"renew", quick, l.renew},
		{"delete", quick, l.delete},
	}
}

// take runs one step, prints its row, and names the step in its error.
func (l *life) take(ctx context.Context, s step) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.limit,
		fmt.Errorf("not finished after %s", s.limit))
	defer cancel()
	start := time.Now()
	detail, err := s.do(limited)
	took := time.Since(start)
	if err == nil {
		l.report.passed(s.name, took, detail)
		return nil
	}
	l.report.failed(s.name, took)
	switch {
	case ctx.Err() != nil:
		err = errors.New("interrupted")
	case errors.Is(err, context.DeadlineExceeded):
		err = context.Cause(limited)
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// abandon deletes the sandbox of a demo that went wrong. An interrupt is the usual
// reason to be here, so it must not stop the delete.
func (l *life) abandon(ctx context.Context) {
	if l.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	response, err := l.service.DeleteSandbox(ctx, l.id, nil)
	err = accept(response, err, http.StatusNoContent)
	var problem *statusError
	switch {
	case err == nil:
		l.report.note("sandbox " + l.id + " is deleted")
	case errors.As(err, &problem) &&
		(problem.status == http.StatusNotFound || problem.status == http.StatusConflict):
		l.report.note("sandbox " + l.id + " has ended already")
	default:
		l.report.note(fmt.Sprintf("sandbox %s could not be deleted: %v\nit ends by itself at %s",
			l.id, err, l.expiresAt.Local().Format(time.TimeOnly)))
	}
}

// hint is what to try next, ready to be pasted. It names the variable of the key, not
// the key.
func (l *life) hint() string {
	body, _ := json.Marshal(l.request) // it was sent as JSON before
	key := ""
	if l.secured {
		key = fmt.Sprintf(` -H "%s: $%s"`, keyHeader, keyVar)
	}
	return fmt.Sprintf("A sandbox of your own, and then its execution API:\n"+
		"  curl %[1]s/v1/sandboxes%[2]s -H 'Content-Type: application/json' -d '%[3]s'\n"+
		"  curl %[1]s/v1/sandboxes/ID/endpoints/%[4]d%[2]s", l.url, key, body, execdPort)
}
