package oci

import (
	"fmt"
	"path"
	"path/filepath"
	"runtime"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/internal/limits"
	"sandbox.internal/runtime/oci/cgroup"
)

// processors confines containers to processors by their control groups.
type processors struct {
	*limits.Processors
	log zerolog.Logger
}

func newProcessors(numbers []int, log zerolog.Logger) *processors {
	return &processors{Processors: limits.NewProcessors(numbers), log: log}
}

// confine gives the container of the group its processors. One that cannot be confined may use all:
// its quota limits it.
func (p *processors) confine(id string, group cgroup.Group, nanoCPUs int64) {
	numbers := p.Take(id, nanoCPUs)
	if numbers == nil {
		return
	}
	if err := group.Confine(numbers); err != nil {
		p.Release(id)
		p.log.Warn().Err(err).Str("container_id", id).Msg("cannot choose the processors of a container; it sees those of the machine")
	}
}

// writeShown writes the files that show the container its own limits, where these are less than the
// machine.
func (s *start) writeShown(directory string) error {
	if s.runtime.OwnKernel {
		return nil
	}
	files, err := s.hostFiles.Of(s.spec.Resources, runtime.NumCPU())
	if err != nil {
		return fmt.Errorf("files that show limits: %w", err)
	}
	for _, file := range files {
		if err := writeShared(filepath.Join(directory, path.Base(file.Target)), file.Content); err != nil {
			return err
		}
	}
	return nil
}
