package cli

import (
	"fmt"
	"strings"
	"time"

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

func (t *tool) sandboxView() view[sandbox.Info] {
	now := time.Now()
	return view[sandbox.Info]{
		id:   func(s sandbox.Info) string { return s.ID },
		name: label,
		columns: []column[sandbox.Info]{
			{title: "ID", value: func(s sandbox.Info) string {
				if t.output.format == formatWide {
					return s.ID
				}
				return shortID(s.ID)
			}},
			{title: "NAME", usual: 16, value: nameOf, least: 8},
			{title: "STATE", usual: 10, value: func(s sandbox.Info) string { return s.Status.State }, least: 10},
			{title: "EXPIRES", usual: 7, value: func(s sandbox.Info) string {
				if ended(s) {
					return "-"
				}
				return "in " + roughly(s.ExpiresAt.Sub(now))
			}},
			{title: "AGE", usual: 4, value: func(s sandbox.Info) string { return roughly(now.Sub(s.CreatedAt)) }},
			{title: "IMAGE", usual: 24, value: func(s sandbox.Info) string { return s.Image.URI }, least: 8},
			{title: "ENTRYPOINT", wide: true, value: func(s sandbox.Info) string {
				return strings.Join(s.Entrypoint, " ")
			}},
			{title: "CLASS", wide: true, value: func(s sandbox.Info) string { return optional(s.RuntimeClass) }},
			{title: "SLEEP", wide: true, value: func(s sandbox.Info) string { return describeLifecycle(s.Lifecycle) }},
			{title: "REASON", wide: true, value: func(s sandbox.Info) string { return s.Status.Reason }},
			{title: "MESSAGE", wide: true, value: func(s sandbox.Info) string { return s.Status.Message }},
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
