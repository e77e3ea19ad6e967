package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sandbox.internal/runtime/internal/limits"
)

// Processors returns the numbers of the processors that groups of the tree may have; none where the
// kernel, or who delegated to us, has no controller for that.
func (t *Tree) Processors() []int {
	for _, h := range t.hierarchies {
		if h.has(cpuset) {
			return readProcessors(h.directory)
		}
	}
	return nil
}

// Processors returns the numbers of the processors that the group may have; none where that is not
// known.
func (g Group) Processors() []int {
	if directory, h := g.in(cpuset); h.directory != "" {
		return readProcessors(directory)
	}
	return nil
}

// Confine has the processes of the group run on those processors alone, those that run already too.
func (g Group) Confine(numbers []int) error {
	directory, h := g.in(cpuset)
	if h.directory == "" {
		return fmt.Errorf("control group: no controller %s", cpuset)
	}
	if err := write(directory, "cpuset.cpus", limits.FormatList(numbers)); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	return nil
}

// readProcessors reads the set that is in force in a directory.
func readProcessors(directory string) []int {
	for _, name := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"} {
		content, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			continue
		}
		if numbers, ok := limits.ParseList(strings.TrimSpace(string(content))); ok {
			return numbers
		}
	}
	return nil
}
