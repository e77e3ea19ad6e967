package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/clients/go/lifecycle"
)

const (
	execdPort = 44772 // the execution document's default port

	// answerTimeout bounds a step that only has to be answered, generously.
	answerTimeout = 30 * time.Second
	// provisionTimeout bounds the way to Running, which may include the image's pull.
	provisionTimeout = 120 * time.Second
)

func demoCommand(t *tool) *cobra.Command {
	image := ""
	command := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Take one sandbox through its whole life and check every step",
		Long: "Take one sandbox through its whole life and check every step. It has the\n" +
			"defaults of the service.",
		Example: "  sandbox demo",
		Args:    arguments(0, 0, ""),
		RunE:    func(c *cobra.Command, _ []string) error { return t.demo(c.Context(), image) },
	}
	command.Flags().StringVar(&image, "image", image, "the `IMAGE` of the sandbox, with a shell (default the service's)")
	return command
}

// demo takes one sandbox through its whole life. Whatever happens on the way, the
// sandbox is gone in the end, or the output says that it is not.
func (t *tool) demo(ctx context.Context, image string) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	l := &demoSandbox{t: t, table: t.newStepTable(), options: sandbox.CreateOptions{
		Image: image, Metadata: map[string]string{nameKey: "demo"},
	}}
	l.table.line(fmt.Sprintf("The life of a sandbox at %s\n", c.url))

	start := time.Now()
	for _, s := range l.steps() {
		if err := l.take(ctx, s); err != nil {
			l.abandon(ctx)
			return err
		}
	}
	l.table.line(fmt.Sprintf("\nAll of it worked and took %s.\n\n%s", duration(time.Since(start)),
		l.hint(c)))
	return nil
}

// step is one row of the demo's table.
type step struct {
	name  string
	limit time.Duration
	// do acts, checks the result, and returns what to show of it.
	do func(ctx context.Context) (detail string, err error)
}

// steps is the life, in order; each step builds on those before.
func (l *demoSandbox) steps() []step {
	return []step{
		{"create", answerTimeout, l.create},
		{"running", provisionTimeout, l.awaitRunning},
		{"endpoint", answerTimeout, l.findEndpoint},
		{"command", answerTimeout, l.stream},
		{"upload", answerTimeout, l.upload},
		{"search", answerTimeout, l.search},
		{"replace", answerTimeout, l.replace},
		{"download", answerTimeout, l.download},
		{"range", answerTimeout, l.downloadRange},
		{"metrics", answerTimeout, l.metrics},
		{"pause", answerTimeout, l.pause},
		{"resume", answerTimeout, l.resume},
		{"renew", answerTimeout, l.renew},
		{"delete", answerTimeout, l.delete},
	}
}

// take runs one step, prints its row, and names the step in its error.
func (l *demoSandbox) take(ctx context.Context, s step) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.limit,
		fmt.Errorf("not finished after %s", s.limit))
	defer cancel()
	start := time.Now()
	detail, err := s.do(limited)
	took := time.Since(start)
	if err == nil {
		l.table.passed(s.name, took, detail)
		return nil
	}
	l.table.failed(s.name, took)
	switch {
	case ctx.Err() != nil:
		err = errors.New("interrupted")
	case limited.Err() != nil:
		err = context.Cause(limited)
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// abandon deletes the sandbox of a demo that went wrong.
func (l *demoSandbox) abandon(ctx context.Context) {
	if l.box == nil {
		return
	}
	switch err := deleteUninterrupted(ctx, l.box); {
	case err == nil:
		l.table.note("sandbox " + l.box.ID() + " is deleted")
	case errors.Is(err, sandbox.ErrNotFound):
		l.table.note("sandbox " + l.box.ID() + " has ended already")
	default:
		l.table.note(err.Error())
	}
}

// hint is what to try next, ready to be pasted. It names the variable of the key, not
// the key.
func (l *demoSandbox) hint(c *connection) string {
	request := lifecycle.CreateSandboxRequest{
		Image:      lifecycle.Image{URI: l.options.Image},
		Timeout:    int(l.options.Timeout / time.Second),
		Entrypoint: l.options.Entrypoint, Metadata: l.options.Metadata,

		ResourceLimits: &lifecycle.ResourceLimits{},
	}
	body, _ := json.Marshal(request) // of strings and a number
	key := ""
	if c.secured {
		key = fmt.Sprintf(` -H "%s: $%s"`, sandbox.KeyHeader, sandbox.KeyVariable)
	}
	return fmt.Sprintf("A sandbox of your own, with this tool:\n"+
		"  sandbox run %[5]s -- echo hello\n"+
		"or with the API, and then its execution API:\n"+
		"  curl %[1]s/v1/sandboxes%[2]s -H 'Content-Type: application/json' -d '%[3]s'\n"+
		"  curl %[1]s/v1/sandboxes/ID/endpoints/%[4]d%[2]s", c.url, key, body, execdPort,
		l.options.Image)
}
