package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// staged is new content on its way to a target: a temporary file in the target's folder, or in the nearest folder above it that exists, because
// a rename is atomic only within a file system. Exactly one of commit and discard is effective; discard after commit does nothing.
type staged struct {
	target string // absolute, no symbolic link
	file   *os.File
	read   *unix.Stat_t // the target before the new content was made from it; nil when it was not
	places *places
	done   bool
}

// stage makes the temporary file in a folder; purpose becomes part of its name.
func (f *Files) stage(target, folder, purpose string) (*staged, error) {
	file, err := os.CreateTemp(folder, TempPrefix+purpose+"-*")
	if errors.Is(err, fs.ErrNotExist) && isDirectory(folder) {
		// What the kernel says in /proc. It is not the folder that is missing.
		return nil, &Error{Kind: KindPermission, Path: target, Msg: "its folder takes no new files", Err: err}
	}
	if err != nil {
		return nil, classify(target, err)
	}
	return &staged{target: target, file: file, places: &f.places}, nil
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// unchanged returns KindConflict when the target is no longer what the new content was made from.
func (s *staged) unchanged() error {
	if s.read == nil {
		return nil
	}
	var now unix.Stat_t
	if err := unix.Lstat(s.target, &now); err != nil {
		return classify(s.target, err)
	}
	if now.Dev != s.read.Dev || now.Ino != s.read.Ino || now.Size != s.read.Size || now.Mtim != s.read.Mtim || now.Ctim != s.read.Ctim {
		return conflict(s.target, "was changed by something else meanwhile; nothing is replaced in it")
	}
	return nil
}

// commit gives the content its attributes and puts it at the target, durably. It makes the target's folder where that is missing, and removes
// it again when the rest fails.
func (s *staged) commit(attrs attributes) error {
	defer s.discard()
	if err := attrs.applyTo(s.file); err != nil {
		return classify(s.target, err)
	}
	if err := s.file.Sync(); err != nil {
		return classify(s.target, err)
	}
	made, err := makeDirectory(filepath.Dir(s.target))
	if err != nil {
		return err
	}
	unlock, err := s.places.lock(s.target)
	if err != nil {
		removeMade(made)
		return err
	}
	defer unlock()
	if err := s.unchanged(); err != nil {
		removeMade(made)
		return err
	}
	err = os.Rename(s.file.Name(), s.target)
	if errors.Is(err, unix.EBUSY) {
		return classify(s.target, s.overwrite(attrs))
	}
	if err != nil {
		removeMade(made)
		if errors.Is(err, unix.EXDEV) {
			return conflict(s.target, "another file system was mounted above it meanwhile")
		}
		return classify(s.target, err)
	}
	s.done = true
	s.file.Close() // written and synced: closing has nothing left to report
	return classify(s.target, syncDirectory(filepath.Dir(s.target)))
}

// overwrite writes into the target itself. Engines mount single files into a sandbox (/etc/hosts, /etc/resolv.conf);
// a mount point cannot be replaced, and writing in place, though not atomic, is what its user wants. Room for all of it
// is made before the first byte is lost.
func (s *staged) overwrite(attrs attributes) error {
	size, err := s.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out, err := os.OpenFile(s.target, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	if size > 0 {
		// A file system that cannot do this is left to find out while it is written to.
		err := unix.Fallocate(int(out.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	if _, err := io.Copy(out, s.file); err != nil {
		return err
	}
	if err := out.Truncate(size); err != nil {
		return err
	}
	if err := attrs.applyTo(out); err != nil {
		return err
	}
	return out.Sync()
}

// discard removes the temporary file. Nothing can be done about a failure, and the name says what is left.
func (s *staged) discard() {
	if s.done {
		return
	}
	s.done = true
	s.file.Close()
	os.Remove(s.file.Name())
}
