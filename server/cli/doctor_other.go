//go:build !linux

package cli

import "context"

// checkMachine has nothing to check: services run on Linux.
func (t *tool) checkMachine(context.Context) []check { return nil }
