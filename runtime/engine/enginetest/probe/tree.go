package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// moment is a time with nanoseconds.
var moment = time.Unix(1_000_000_000, 123_456_789)

// tree makes a directory with files of every kind that a container can make.
func tree(directory string) {
	at := func(name string) string { return filepath.Join(directory, name) }
	for _, name := range []string{"", "kept", "emptied", "emptied/below", "replaced", "replaced/below"} {
		check(os.MkdirAll(at(name), 0o750))
	}
	for name, content := range map[string]string{
		"file": "content", "removed": "gone", "kept/file": "kept", "emptied/file": "gone", "emptied/below/file": "gone",
		"replaced/file": "gone", "replaced/below/file": "gone", "empty": "",
	} {
		check(os.WriteFile(at(name), []byte(content), 0o640))
	}
	check(os.WriteFile(at("program"), []byte("#!"), 0o755))
	check(os.Lchown(at("program"), 7, 8))
	check(syscall.Chmod(at("program"), 0o6711))
	check(os.Link(at("file"), at("kept/link")))
	check(os.Symlink("/etc/passwd", at("symlink")))
	check(os.Lchown(at("symlink"), 9, 10))
	check(syscall.Mkfifo(at("fifo"), 0o600))
	check(os.Chmod(at("fifo"), 0o622))
	check(syscall.Setxattr(at("file"), "user.test", []byte("value"), 0))
	check(syscall.Setxattr(at("kept"), "user.test", []byte("of a directory"), 0))
	sparse, err := os.Create(at("sparse"))
	check(err)
	_, err = sparse.WriteAt([]byte("at the end"), 64<<20)
	check(errors.Join(err, sparse.Close()))
	check(os.Chtimes(at("file"), moment, moment))
	check(os.Chtimes(at("kept"), moment, moment))
}

// prune changes what tree has made, in a container that begins with it: it removes files, and
// replaces directories.
func prune(directory string) {
	at := func(name string) string { return filepath.Join(directory, name) }
	check(os.Remove(at("removed")))
	check(os.RemoveAll(at("emptied")))
	check(os.Mkdir(at("emptied"), 0o700))
	check(os.RemoveAll(at("replaced")))
	check(os.WriteFile(at("replaced"), []byte("a file"), 0o600))
	check(os.WriteFile(at("new"), []byte("new"), 0o600))
	check(os.Chmod(at("kept"), 0o711))
	check(os.Chmod("/", 0o751))
}

// journal appends the numbers from 0 on to one file and then to another one, without end.
func journal(first, second string) {
	var files [2]*os.File
	for i, path := range []string{first, second} {
		var err error
		files[i], err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		check(err)
	}
	for i := 0; ; i++ {
		for _, file := range files {
			_, err := fmt.Fprintln(file, i)
			check(err)
		}
		if i == 100 {
			fmt.Println("journal")
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// count returns how many numbers a file has that journal has written, which must be complete.
func count(path string) int {
	content, err := os.ReadFile(path)
	check(err)
	numbers := 0
	for line := range strings.Lines(string(content)) {
		if line != fmt.Sprintln(numbers) {
			fatal(fmt.Sprintf("line %d is %q", numbers, line))
		}
		numbers++
	}
	return numbers
}

// digest describes everything below a directory that its user can see, a line each.
func digest(directory string) string {
	var lines []string
	links := map[uint64]string{}
	check(filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%q %v %d:%d %v", path, info.Mode(), stat.Uid, stat.Gid, attributes(path, info))
		if !info.IsDir() {
			if first, ok := links[stat.Ino]; ok {
				line += fmt.Sprintf(" is %q", first)
			} else {
				links[stat.Ino] = path
			}
		}
		line += fmt.Sprint(" ", info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			line += fmt.Sprintf(" %d %s sparse=%v", info.Size(), sum(path), stat.Blocks*512 < info.Size()/2)
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			check(err)
			line += " to " + target
		}
		lines = append(lines, line)
		return nil
	}))
	return strings.Join(lines, "\n") + "\n"
}

func sum(path string) string {
	file, err := os.Open(path)
	check(err)
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	check(err)
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// attributes are the extended attributes for users.
func attributes(path string, info fs.FileInfo) []string {
	if info.Mode().Type() == fs.ModeSymlink {
		return nil
	}
	names := make([]byte, 4096)
	n, err := syscall.Listxattr(path, names)
	check(err)
	var all []string
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if !bytes.HasPrefix(name, []byte("user.")) {
			continue
		}
		value := make([]byte, 4096)
		n, err := syscall.Getxattr(path, string(name), value)
		check(err)
		all = append(all, fmt.Sprintf("%s=%q", name, value[:n]))
	}
	slices.Sort(all)
	return all
}

// short is a digest of a digest.
func short(directory string) string {
	hash := sha256.Sum256([]byte(digest(directory)))
	return hex.EncodeToString(hash[:8])
}

// mutate prints a digest of a directory and then, for each file N in another directory, from 1 on,
// makes random changes, for which the file has a seed, and prints the digest again.
func mutate(directory, orders string, operations int) {
	check(os.MkdirAll(directory, 0o755))
	fmt.Println("begin", short(directory))
	for order := 1; ; order++ {
		changes(directory, string(awaitFile(filepath.Join(orders, fmt.Sprint(order)))), operations)
		fmt.Println("done", order, short(directory))
	}
}

// changes makes so many random changes, given a seed.
func changes(directory, seed string, operations int) {
	start, err := strconv.ParseUint(seed, 10, 64)
	check(err)
	numbers := rand.New(rand.NewPCG(start, 0))
	for range operations {
		if err := change(directory, numbers); err != nil && !tolerable(err) {
			fatal(err.Error())
		}
	}
}

// awaitFile returns the content of a file once it is there.
func awaitFile(path string) []byte {
	for {
		content, err := os.ReadFile(path)
		if err == nil {
			return content
		}
		time.Sleep(time.Millisecond)
	}
}

// tolerable reports whether an error only says that the change was not possible on this tree.
func tolerable(err error) bool {
	for _, cause := range []error{syscall.ENOENT, syscall.EEXIST, syscall.ENOTDIR, syscall.EISDIR, syscall.ENOTEMPTY, syscall.EINVAL, syscall.EXDEV, syscall.EPERM, syscall.ELOOP} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// change makes one random change.
func change(directory string, numbers *rand.Rand) error {
	pick := func() string {
		path := directory
		for range 1 + numbers.IntN(3) {
			path = filepath.Join(path, fmt.Sprint("n", numbers.IntN(5)))
		}
		return path
	}
	one, other := pick(), pick()
	switch numbers.IntN(12) {
	case 0, 1, 2:
		_ = os.MkdirAll(filepath.Dir(one), 0o755)
		return os.WriteFile(one, bytes.Repeat([]byte{byte(numbers.IntN(256))}, numbers.IntN(20_000)), 0o644)
	case 3:
		return os.Chmod(one, fs.FileMode(0o700|numbers.IntN(0o100)))
	case 4:
		return os.Rename(one, other)
	case 5:
		return os.RemoveAll(one)
	case 6: // opaque, where a layer below has one
		return errors.Join(os.RemoveAll(one), os.Mkdir(one, 0o755))
	case 7:
		return os.Link(one, other)
	case 8:
		return syscall.Setxattr(one, fmt.Sprint("user.n", numbers.IntN(3)), []byte(fmt.Sprint(numbers.IntN(100))), 0)
	case 9:
		file, err := os.OpenFile(one, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = file.WriteAt([]byte("x"), int64(numbers.IntN(4<<20)))
		return errors.Join(err, file.Close())
	case 10:
		return os.Lchown(one, numbers.IntN(1000), numbers.IntN(1000))
	}
	return os.Symlink(other, one)
}

// many makes files of a size, a hundred in each directory.
func many(directory string, files, size int) {
	content := make([]byte, size)
	for i := range files {
		in := filepath.Join(directory, fmt.Sprint(i/100))
		if i%100 == 0 {
			check(os.MkdirAll(in, 0o755))
		}
		check(os.WriteFile(filepath.Join(in, fmt.Sprint(i)), content, 0o644))
	}
}
