package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// installedImages is the folder of the images that are installed with the programs, relative to the
// folder of the programs: with PREFIX/bin/sandbox-server it is PREFIX/share/sandbox/images.
const installedImages = "../share/sandbox/images"

// InstalledImages returns the absolute paths of the archives of images that are installed with the
// program that runs, by name. Without such a folder there are none.
func InstalledImages() ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the images of the installation: %w", err)
	}
	return archivesIn(filepath.Join(filepath.Dir(program), installedImages))
}

// archivesIn returns the paths of the regular files NAME.tar in the folder, by name.
func archivesIn(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the images of the installation: %w", err)
	}
	var paths []string
	for _, entry := range entries {
		if entry.Type().IsRegular() && strings.HasSuffix(entry.Name(), ".tar") {
			paths = append(paths, filepath.Join(folder, entry.Name()))
		}
	}
	return paths, nil
}
