// Package architecture_test holds the tests of the repository as a whole: what packages import, who
// makes HTTP clients, whether documented defaults are the code's and links lead somewhere.
package architecture_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// atRoot makes the root of the repository the working directory of a test, so that paths are those
// that people read.
func atRoot(t *testing.T) {
	t.Helper()
	t.Chdir("../..")
}

// eachGoFile calls do with the path of each Go file of the repository, generated ones included.
func eachGoFile(t *testing.T, do func(name string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") ||
			entry.Name() == "bin" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case !entry.IsDir() && strings.HasSuffix(name, ".go"):
			do(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
