package mcp

import (
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	sandbox "sandbox.internal/clients/go"
)

// minIdle and maxIdle bound idle_seconds; they are the contract's.
const (
	minIdle = 0.05
	maxIdle = 86400
)

// sleepSettings are when a sandbox falls asleep or ends by itself. A field that is empty is at the
// service's default.
type sleepSettings struct {
	OnIdle     string  `json:"on_idle,omitempty" jsonschema:"pause: sleeps until a request"`
	Idle       float64 `json:"idle_seconds,omitempty"`
	OnTimeout  string  `json:"on_timeout,omitempty" jsonschema:"when it expires"`
	AutoResume *bool   `json:"auto_resume,omitempty" jsonschema:"false: no request wakes it"`
}

// limitSleep adds what the settings may be to a schema that has them.
func limitSleep(schema *jsonschema.Schema) {
	schema.Properties["on_idle"].Enum = []any{sandbox.OnIdleNone, sandbox.OnIdlePause, sandbox.OnIdleDelete}
	schema.Properties["on_timeout"].Enum = []any{sandbox.OnTimeoutDelete, sandbox.OnTimeoutPause}
	resume := schema.Properties["auto_resume"]
	resume.Type, resume.Types = "boolean", nil // withoutNulls has left out a null
}

func (s sleepSettings) check() error {
	if s.Idle != 0 && s.Idle < minIdle || s.Idle > maxIdle {
		return fmt.Errorf("idle_seconds must be %v to %v, not %v", minIdle, maxIdle, s.Idle)
	}
	return nil
}

// options returns what a sandbox is created with; nil for the service's defaults.
func (s sleepSettings) options() *sandbox.LifecycleOptions {
	options := sandbox.LifecycleOptions{
		OnIdle: s.OnIdle, Idle: time.Duration(s.Idle * float64(time.Second)), OnTimeout: s.OnTimeout, AutoResume: s.AutoResume,
	}
	if options == (sandbox.LifecycleOptions{}) {
		return nil
	}
	return &options
}

// sleepOf returns the settings of a sandbox that are not the defaults of a service.
func sleepOf(info sandbox.Info) (s sleepSettings) {
	has := info.Lifecycle
	if has == nil {
		return s
	}
	if has.OnIdle != nil && *has.OnIdle != sandbox.OnIdleNone {
		s.OnIdle = *has.OnIdle
		if has.IdleSeconds != nil {
			s.Idle = *has.IdleSeconds
		}
	}
	if has.OnTimeout != nil && *has.OnTimeout != sandbox.OnTimeoutDelete {
		s.OnTimeout = *has.OnTimeout
	}
	if has.AutoResume != nil && !*has.AutoResume {
		s.AutoResume = has.AutoResume
	}
	return s
}

// line shows the settings in a line of a list.
func (s sleepSettings) line() string {
	line := field("on_idle", s.OnIdle)
	if s.Idle != 0 {
		line += field("idle_seconds", fmt.Sprint(s.Idle))
	}
	line += field("on_timeout", s.OnTimeout)
	if s.AutoResume != nil {
		line += field("auto_resume", fmt.Sprint(*s.AutoResume))
	}
	return line
}

// field shows a name and a value in a line; nothing for an empty value.
func field(name, value string) string {
	if value == "" {
		return ""
	}
	return " " + name + "=" + value
}

// reasonOf returns why a sandbox does not run; empty for one that runs.
func reasonOf(info sandbox.Info) string {
	if info.Status.State == sandbox.Running {
		return ""
	}
	return info.Status.Reason
}

// sleeps reports whether a sandbox is Paused by itself.
func sleeps(info sandbox.Info) bool {
	reason := reasonOf(info)
	return info.Status.State == sandbox.Paused && (reason == "IDLE" || reason == "TIMEOUT")
}
