package command

import (
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	"sandbox.internal/execd/internal/eventlog"
)

// Exit is how a command ended. It is the detail of the terminal event; ParseExit reads it back.
type Exit struct {
	// Code is the exit code, 128+N after signal N, and nil after a timeout.
	Code *int
	// Reason says in words why the command failed; empty for exit code 0.
	Reason string
	// TimedOut is whether the command ran into its timeout.
	TimedOut bool
	// OOMKilled is whether the kernel ended the command, or a process that it waited for, because
	// memory ran out.
	OOMKilled bool `json:",omitempty"`
	// Wait is the status of wait(2) of the process, also after a timeout. It is not in the detail.
	Wait syscall.WaitStatus `json:"-"`
	// Duration is from start to end; At is the end.
	Duration time.Duration
	At       time.Time
}

// Type returns the type of the terminal event: a stream has exactly one.
func (e Exit) Type() eventlog.Type {
	if e.Code != nil && *e.Code == 0 {
		return eventlog.TypeComplete
	}
	return eventlog.TypeError
}

func (e Exit) detail() []byte {
	detail, err := json.Marshal(e)
	if err != nil {
		panic(err) // numbers, words and a time can be encoded
	}
	return detail
}

// ParseExit reads the detail of a terminal event.
func ParseExit(detail []byte) (Exit, error) {
	var exit Exit
	if err := json.Unmarshal(detail, &exit); err != nil {
		return Exit{}, fmt.Errorf("read how the command ended: %w", err)
	}
	return exit, nil
}
