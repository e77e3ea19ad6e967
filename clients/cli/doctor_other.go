//go:build !linux

package cli

import (
	"context"

	sandbox "sandbox.internal/clients/go"
)

// checkMachine has nothing to check: services run on Linux.
func (t *tool) checkMachine(context.Context, *connection, *sandbox.Version) []check { return nil }
