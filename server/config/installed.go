package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// installedImages is the directory of the images that are installed with the programs, relative to
// the directory of the programs: with PREFIX/bin/sandbox-server it is PREFIX/share/sandbox/images.
const installedImages = "../share/sandbox/images"

// InstalledImages returns the absolute paths of the archives of images that are installed with the
// program that runs, by name. Without such a directory there are none.
func InstalledImages() ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the images of the installation: %w", err)
	}
	return archivesIn(filepath.Join(filepath.Dir(program), installedImages))
}

// archivesIn returns the paths of the regular files NAME.tar in the directory, by name.
func archivesIn(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the images of the installation: %w", err)
	}
	var paths []string
	for _, entry := range entries {
		if entry.Type().IsRegular() && strings.HasSuffix(entry.Name(), ".tar") {
			paths = append(paths, filepath.Join(directory, entry.Name()))
		}
	}
	return paths, nil
}
