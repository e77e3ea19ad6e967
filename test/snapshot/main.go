// Command snapshot makes FOLDER a copy of the working tree that it is started in: of every file
// that git tracks or would add. `make test` runs the tests there.
//
// The go command repeats a test's result while the program of the test and the paths, sizes and
// times of the files that it opened are the same. In the copy the path is always the same, and a
// file's time depends on its content alone: a result is repeated in every clone whose files are the
// same, and in no other.
//
// bin/ of the copy is left as it is: `make build` there replaces the programs that have changed.
// Everything else that is not in the working tree is removed.
//
// Usage: snapshot FOLDER
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: snapshot FOLDER")
		os.Exit(2)
	}
	if err := snapshot(".", os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "snapshot: %v\n", err)
		os.Exit(1)
	}
}

// programs is where `make build` puts what it compiles.
const programs = "bin"

// snapshot makes directory a copy of the working tree, whose root is tree.
func snapshot(tree, directory string) error {
	files, err := list(tree)
	if err != nil {
		return err
	}
	isDirectory := map[string]bool{".": true, programs: true}
	for _, name := range files {
		isDirectory[name] = false
		for at := filepath.Dir(name); !isDirectory[at]; at = filepath.Dir(at) {
			isDirectory[at] = true
		}
	}
	if err := os.MkdirAll(filepath.Join(directory, programs), 0o755); err != nil {
		return err
	}
	if err := clean(directory, isDirectory); err != nil {
		return err
	}
	for _, name := range files {
		if err := copyFile(filepath.Join(tree, name), filepath.Join(directory, name)); err != nil {
			return err
		}
	}
	for name, is := range isDirectory {
		if is && name != programs {
			if err := setTime(filepath.Join(directory, name), nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// list names the files and symbolic links of the working tree that git tracks or would add,
// relative to its root.
func list(tree string) (files []string, err error) {
	command := exec.Command("git", "-C", tree, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", command, err, strings.TrimSpace(stderr.String()))
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		// The index may still have what was removed, or is a directory now, or was in a directory
		// that is a symbolic link now.
		if there, err := isFile(tree, name); err != nil {
			return nil, err
		} else if there {
			files = append(files, name)
		}
	}
	return files, nil
}

// isFile reports whether name is a file or symbolic link that is reached through directories only.
func isFile(tree, name string) (bool, error) {
	for at := filepath.Dir(name); at != "."; at = filepath.Dir(at) {
		if info, err := os.Lstat(filepath.Join(tree, at)); err == nil && !info.IsDir() {
			return false, nil
		}
	}
	info, err := os.Lstat(filepath.Join(tree, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && !info.IsDir(), err
}

// clean removes from directory what isDirectory does not have, or has as the other kind.
func clean(directory string, isDirectory map[string]bool) error {
	return filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		if is, wanted := isDirectory[name]; !wanted || is != entry.IsDir() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if name == programs {
			return fs.SkipDir
		}
		return nil
	})
}

// copyFile makes to a copy of a file or symbolic link. What has the content already is not written.
func copyFile(from, to string) error {
	kind, content, err := read(from)
	if err != nil {
		return err
	}
	if has, old, err := read(to); err != nil || has != kind || !bytes.Equal(old, content) {
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := write(to, kind, content); err != nil {
			return err
		}
	}
	return setTime(to, content)
}

// read returns what git keeps of a file or symbolic link: its type, whether its owner may execute
// it, and its content or target.
func read(name string) (kind fs.FileMode, content []byte, err error) {
	info, err := os.Lstat(name)
	if err != nil {
		return 0, nil, err
	}
	switch info.Mode().Type() {
	case 0:
		content, err = os.ReadFile(name)
		return info.Mode() & 0o100, content, err
	case fs.ModeSymlink:
		target, err := os.Readlink(name)
		return fs.ModeSymlink, []byte(target), err
	default:
		return 0, nil, fmt.Errorf("%s is neither a file nor a symbolic link", name)
	}
}

func write(name string, kind fs.FileMode, content []byte) error {
	if kind == fs.ModeSymlink {
		return os.Symlink(string(content), name)
	}
	mode := fs.FileMode(0o644)
	if kind != 0 {
		mode = 0o755
	}
	if err := os.WriteFile(name, content, mode); err != nil {
		return err
	}
	return os.Chmod(name, mode) // whatever the umask is
}

// setTime gives a file, symbolic link or directory a time from 2001 to 2018 that depends on
// content. The go command repeats no test that has opened a file of the last seconds.
func setTime(name string, content []byte) error {
	sum := sha256.Sum256(content)
	at := unix.Timespec{
		Sec:  1e9 + int64(binary.BigEndian.Uint32(sum[:4])>>3),
		Nsec: int64(binary.BigEndian.Uint32(sum[4:8])) % int64(time.Second),
	}
	err := unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &fs.PathError{Op: "set the time of", Path: name, Err: err}
	}
	return nil
}
