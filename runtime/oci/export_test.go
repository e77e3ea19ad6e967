package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/runtime/oci/internal/layout"
)

// OpenDisk opens the file system of a container that nothing uses.
var OpenDisk = disk.Reopen

// Volumes returns the names of the volumes and directories that carry all the labels.
func (e *Engine) Volumes(_ context.Context, labels map[string]string) ([]string, error) {
	var names []string
	for directory, file := range map[string]string{e.layout.Volumes(): "volume.json", e.layout.Directories(): "folder.json"} {
		entries, err := os.ReadDir(directory)
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for _, entry := range entries {
			var found struct{ Labels map[string]string }
			content, err := os.ReadFile(filepath.Join(directory, entry.Name(), file))
			if err != nil || json.Unmarshal(content, &found) != nil || layout.CheckName("volume", entry.Name()) != nil {
				continue
			}
			missing := false
			for name, value := range labels {
				got, ok := found.Labels[name]
				missing = missing || !ok || got != value
			}
			if !missing {
				names = append(names, entry.Name())
			}
		}
	}
	return names, nil
}

// RemoveVolume removes the volume, and the directory, of the name with what they hold. It succeeds
// when neither is there. It returns [engine.ErrInvalid] while a container that has not been removed
// mounts it.
func (e *Engine) RemoveVolume(_ context.Context, name string) error {
	op := "remove volume " + name
	if err := layout.CheckName("volume", name); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if user := e.containers.MountedBy(func(m engine.Mount) bool { return m.Volume == name || m.Directory == name }); user != "" {
		return fmt.Errorf("%s: %w: container %s mounts it", op, engine.ErrInvalid, user)
	}
	for _, directory := range []string{e.layout.Volumes(), e.layout.Directories()} {
		if err := e.trash.Throw(filepath.Join(directory, name)); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}
