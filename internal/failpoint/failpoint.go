// Package failpoint lets a test kill a program of ours at a named place in its code.
//
// Only the linker can arm a program: a test builds it with test/program.BuildWithFailpoints, which
// names the directory where the program looks for what is to happen. In every other build a
// failpoint is a comparison of an empty string; no flag, variable or file changes that.
package failpoint

import (
	"os"
	"path/filepath"
	"syscall"
)

// directory is set by the linker (-X), in programs for tests alone. It has a directory for each
// armed failpoint, in which each file stands for one kill.
var directory string

// Hit kills this process when the failpoint of that name is armed, at once and without a chance to
// clean up, as the kernel does when memory is short. It has used up one of the failpoint's files by
// then, so that the test knows how often the place was hit.
func Hit(name string) {
	if directory != "" {
		hit(filepath.Join(directory, name))
	}
}

func hit(armed string) {
	files, _ := os.ReadDir(armed) // one that is not armed has no directory
	for _, file := range files {
		if os.Remove(filepath.Join(armed, file.Name())) != nil {
			continue // another process has used it
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // nothing behind the failpoint happens
	}
}
