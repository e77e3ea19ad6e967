package cli

import (
	"fmt"
	"strings"
	"time"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// nameKey is the metadata key that names a sandbox.
const nameKey = "name"

func nameOf(s sandbox.Info) string { return s.Metadata[nameKey] }

// label is how a person calls a sandbox: by its name, or by its id.
func label(s sandbox.Info) string {
	if name := nameOf(s); name != "" {
		return name
	}
	return s.ID
}

// shortID is enough of an id to distinguish a few sandboxes.
func shortID(id string) string { return id[:min(len(id), 8)] }

func ended(s sandbox.Info) bool {
	return s.Status.State == sandbox.Terminated || s.Status.State == sandbox.Failed
}

func (t *tool) sandboxView() show.View[sandbox.Info] {
	now := time.Now()
	return show.View[sandbox.Info]{
		ID:   func(s sandbox.Info) string { return s.ID },
		Name: label,
		Columns: []show.Column[sandbox.Info]{
			{Title: "ID", Value: func(s sandbox.Info) string {
				if t.Printer.Format == show.FormatWide {
					return s.ID
				}
				return shortID(s.ID)
			}},
			{Title: "NAME", Usual: 16, Value: nameOf, Least: 8},
			{Title: "STATE", Usual: 10, Value: func(s sandbox.Info) string { return s.Status.State }, Least: 10},
			{Title: "EXPIRES", Usual: 7, Value: func(s sandbox.Info) string {
				if ended(s) {
					return "-"
				}
				return "in " + roughly(s.ExpiresAt.Sub(now))
			}},
			{Title: "AGE", Usual: 4, Value: func(s sandbox.Info) string { return roughly(now.Sub(s.CreatedAt)) }},
			{Title: "IMAGE", Usual: 24, Value: func(s sandbox.Info) string { return s.Image.URI }, Least: 8},
			{Title: "ENTRYPOINT", Wide: true, Value: func(s sandbox.Info) string {
				return strings.Join(s.Entrypoint, " ")
			}},
			{Title: "CLASS", Wide: true, Value: func(s sandbox.Info) string { return optional(s.RuntimeClass) }},
			{Title: "SLEEP", Wide: true, Value: func(s sandbox.Info) string { return describeLifecycle(s.Lifecycle) }},
			{Title: "REASON", Wide: true, Value: func(s sandbox.Info) string { return s.Status.Reason }},
			{Title: "MESSAGE", Wide: true, Value: func(s sandbox.Info) string { return s.Status.Message }},
		},
	}
}

// describeLifecycle is when a sandbox falls asleep or ends by itself, but for its timeout.
func describeLifecycle(settings *sandbox.Lifecycle) string {
	if settings == nil {
		return ""
	}
	var parts []string
	if on := optional(settings.OnIdle); on != "" && on != sandbox.OnIdleNone && settings.IdleSeconds != nil {
		part := fmt.Sprintf("%s after %gs idle", on, *settings.IdleSeconds)
		if on == sandbox.OnIdleHibernate && settings.HibernateSeconds != nil {
			part = fmt.Sprintf("pause after %gs idle, to disk after %gs more", *settings.IdleSeconds, *settings.HibernateSeconds)
		}
		parts = append(parts, part)
	}
	if optional(settings.OnTimeout) == sandbox.OnTimeoutPause {
		parts = append(parts, "pause at its expiry")
	}
	return strings.Join(parts, ", ")
}

// roughly is a time in its largest unit.
func roughly(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// sentence is a status for people: its message, or its reason when it has none.
func sentence(message, reason string) string {
	if message = strings.TrimSpace(message); message != "" {
		return message
	}
	if reason != "" {
		return reason
	}
	return "no reason given"
}
