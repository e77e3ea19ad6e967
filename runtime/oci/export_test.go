package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/runtime/engine"
)

// Volumes returns the names of the volumes and folders that carry all the labels.
func (e *Engine) Volumes(_ context.Context, labels map[string]string) ([]string, error) {
	var names []string
	for folder, file := range map[string]string{e.layout.volumes(): volumeFile, e.layout.folders(): folderFile} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for _, entry := range entries {
			found, err := readVolume(filepath.Join(folder, entry.Name(), file))
			if err == nil && validName.MatchString(entry.Name()) && carries(found.Labels, labels) {
				names = append(names, entry.Name())
			}
		}
	}
	return names, nil
}

// RemoveVolume removes the volume, and the folder, of the name with what they hold. One that is gone is no error. It returns
// [engine.ErrInvalid] while a container that has not been removed mounts it.
func (e *Engine) RemoveVolume(_ context.Context, name string) error {
	op := "remove volume " + name
	if err := checkName("volume", name); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if user := e.userOf(func(m engine.Mount) bool { return m.Volume == name || m.Folder == name }); user != "" {
		return fmt.Errorf("%s: %w: container %s mounts it", op, engine.ErrInvalid, user)
	}
	for _, folder := range []string{e.layout.volumes(), e.layout.folders()} {
		if err := e.trash.throw(filepath.Join(folder, name)); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}
