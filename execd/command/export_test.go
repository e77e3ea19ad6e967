package command

import (
	"context"
	"io"
	"time"
)

// WithoutHandles makes a manager do as if the kernel gave no descriptors of processes. It is to be
// called before the first command.
func WithoutHandles(m *Manager) { m.noHandles = true }

// SetRuneDelay changes how long the first bytes of a UTF-8 sequence wait for the others.
func SetRuneDelay(m *Manager, delay time.Duration) { m.runeDelay = delay }

// WriteInputFor is WriteInput with another limit for a command that takes bytes slowly.
func (c *Command) WriteInputFor(ctx context.Context, limit time.Duration, body io.Reader, offset int64, end bool) (InputState, error) {
	return c.writeInput(ctx, body, offset, end, time.Now().Add(limit))
}
