package command

import (
	"slices"

	"sandbox.internal/execd/process"
)

// shell returns the argument vector that runs a command line: bash, else sh, else the built-in interpreter, for images without a shell.
func (m *Manager) shell(env []string, line string) []string {
	if path := process.Shell(env); path != "" {
		return []string{path, "-c", line}
	}
	return append(slices.Clone(m.options.BuiltinShell), "-c", line)
}
