package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

func logsCommand(t *tool) *cobra.Command {
	var follow bool
	var tail int
	var since string
	command := &cobra.Command{
		Use:   "logs [flags] SANDBOX",
		Short: "Print what the main program of a sandbox wrote",
		Long: "Print what the main program of a sandbox wrote, byte for byte. With -f it goes\n" +
			"on until the sandbox ends; a cut connection is resumed, except with --since.",
		Example: "  sandbox logs web --tail 10\n" +
			"  sandbox logs -f web",
		Args:              arguments(1, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			options := sandbox.LogOptions{Follow: follow}
			if c.Flags().Changed("tail") {
				if tail < 0 {
					return usageErrorf("tail: must not be negative")
				}
				options.Tail = &tail
			}
			var err error
			if options.Since, err = moment(since); err != nil {
				return err
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			return t.logs(c.Context(), box, options)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on with what is written, until the sandbox ends")
	flags.IntVar(&tail, "tail", 0, "begin with so many of the last `LINES`")
	flags.StringVar(&since, "since", "", "leave out what is older: a `TIME` (RFC 3339) or a duration")
	return command
}

// moment reads a time, or how long ago it was; empty is the zero time.
func moment(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, usageErrorf("since: must be a time like %s or a duration like 10m, not %q",
			time.RFC3339, text)
	}
	return at, nil
}

func (t *tool) logs(ctx context.Context, box *sandbox.Sandbox, options sandbox.LogOptions) error {
	lines := options.Tail
	// A log that is followed from its beginning can be resumed, one from its last lines cannot.
	fromLast := options.Follow && lines != nil && options.Since.IsZero()
	if fromLast {
		options.Tail = nil
	}
	log, err := box.OpenLogs(ctx, &options)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if fromLast {
		if err := t.printTail(ctx, box, log, *lines); err != nil {
			return err
		}
	}
	_, err = io.Copy(t.Stdout, log)
	return err
}

// printTail prints the last lines of what a log that is followed has had until now. What is kept
// then is at most that, since the log is open already, so that nothing which is printed later is
// left out.
func (t *tool) printTail(ctx context.Context, box *sandbox.Sandbox, log io.Reader, lines int) error {
	kept, err := box.OpenLogs(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = kept.Close() }()
	size, err := io.Copy(io.Discard, kept)
	if err != nil {
		return err
	}
	// The engine keeps 20 MB or so.
	text, err := io.ReadAll(io.LimitReader(log, size))
	if _, failed := t.Stdout.Write(lastLines(text, lines)); failed != nil {
		return failed
	}
	return err
}

// lastLines is the end of a text; a last line without a newline counts.
func lastLines(text []byte, lines int) []byte {
	end := len(text)
	if end > 0 && text[end-1] == '\n' {
		end--
	}
	for range lines {
		if end < 0 {
			break
		}
		end = bytes.LastIndexByte(text[:max(end, 0)], '\n')
	}
	if lines == 0 {
		return nil
	}
	return text[end+1:]
}

func eventsCommand(t *tool) *cobra.Command {
	var follow bool
	command := &cobra.Command{
		Use:   "events [flags] [SANDBOX]",
		Short: "Print what happened to sandboxes",
		Long: "Print what happened to a sandbox, or to all. With -f it goes on with what\n" +
			"happens; a cut connection is resumed without a gap.",
		Example: "  sandbox events box\n" +
			"  sandbox events -f -o json",
		Args:              arguments(0, 1, "a SANDBOX"),
		ValidArgsFunction: t.completeNames(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return t.allEvents(c.Context(), follow)
			}
			box, err := t.find(c.Context(), args[0])
			if err != nil {
				return err
			}
			return t.eventsOf(c.Context(), box, follow)
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	t.registerOutput(command, "the ids of the sandboxes")
	return command
}

var eventView = show.View[sandbox.Event]{
	ID: func(e sandbox.Event) string { return optional(e.SandboxID) },
	Columns: []show.Column[sandbox.Event]{
		{Title: "TIME", Usual: 8, Value: func(e sandbox.Event) string {
			return e.Timestamp.Local().Format(time.TimeOnly)
		}},
		{Title: "SANDBOX", Usual: 8, Value: func(e sandbox.Event) string {
			return shortID(optional(e.SandboxID))
		}},
		{Title: "EVENT", Usual: 13, Value: func(e sandbox.Event) string { return e.Type }},
		{Title: "WHAT", Usual: 400, Least: 4, Value: describeEvent},
	},
}

// optional is the value behind a pointer, or the zero value.
func optional[T any](pointer *T) (value T) {
	if pointer != nil {
		value = *pointer
	}
	return value
}

// describeEvent is an event in a few words.
func describeEvent(e sandbox.Event) string {
	switch e.Type {
	case sandbox.EventState:
		text := optional(e.To)
		if e.From != nil {
			text = *e.From + " -> " + text
		}
		return fmt.Sprintf("%s (%s)", text, sentence(optional(e.Message), optional(e.Reason)))
	case sandbox.EventStage:
		return fmt.Sprintf("%s after %s", optional(e.Stage),
			duration(time.Duration(optional(e.ElapsedMs)*float64(time.Millisecond))))
	case sandbox.EventRenewed:
		return "expires at " + optional(e.ExpiresAt).Local().Format(time.RFC3339)
	case sandbox.EventMetadata:
		return fmt.Sprintf("set %v, removed %v", e.Metadata, e.MetadataRemoved)
	case sandbox.EventLifecycle:
		return cmp.Or(describeLifecycle(e.Lifecycle), "neither sleeps nor ends when idle")
	case sandbox.EventSnapshot:
		text := optional(e.SnapshotID) + " is " + optional(e.SnapshotState)
		if cause := optional(e.Message); cause != "" {
			text += ": " + cause
		}
		return text
	case sandbox.EventNetworkPolicy:
		policy := optional(e.NetworkPolicy)
		return fmt.Sprintf("%s by default, %d rules", optional(policy.DefaultAction), len(policy.Egress))
	}
	return optional(e.Message)
}

// eventsOf prints the events of one sandbox. Without follow it ends with what has happened.
func (t *tool) eventsOf(ctx context.Context, box *sandbox.Sandbox, follow bool) error {
	return t.printEvents(ctx, box.Events(ctx, &sandbox.EventOptions{UntilNow: !follow}))
}

func (t *tool) allEvents(ctx context.Context, follow bool) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	options := sandbox.EventOptions{FromStart: !follow, UntilNow: !follow}
	return t.printEvents(ctx, c.client.Events(ctx, &options))
}

func (t *tool) printEvents(ctx context.Context, events iter.Seq2[sandbox.Event, error]) error {
	printed := show.NewRows(t.Printer, eventView)
	for event, err := range events {
		if err != nil {
			return err
		}
		if err := printed.Print(event); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
