package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// staged is new content on its way to a target: a temporary file in the target's directory, or in
// the nearest directory above it that exists, because a rename is atomic only within a file system.
// Exactly one of commit and discard is effective; discard after commit does nothing.
type staged struct {
	target  string // absolute, no symbolic link
	file    *os.File
	read    *unix.Stat_t // the target before the new content was made from it; nil when it was not
	parents *Owner       // of the directories that commit makes; nil is the daemon
	places  *places
	// inPlace is true when the target is to be written to, because no file of this process's can
	// take its place: the directory is closed to it, the target's owner is another user, or the
	// target is a mount point.
	inPlace bool
	done    bool
}

// stage makes the temporary file in a directory; purpose becomes part of its name. For a target
// that can be written to in a directory that cannot, it is in the directory for temporary files.
func (f *Files) stage(target, directory, purpose string) (*staged, error) {
	file, err := os.CreateTemp(directory, TempPrefix+purpose+"-*")
	if refused(err) && writable(target) {
		if elsewhere, failed := os.CreateTemp("", TempPrefix+purpose+"-*"); failed == nil {
			return &staged{target: target, file: elsewhere, places: &f.places, inPlace: true}, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) && isDirectory(directory) {
		// What the kernel says in /proc. It is not the directory that is missing.
		return nil, &Error{Kind: KindPermission, Path: target, Msg: "its directory takes no new files", Err: err}
	}
	if err != nil {
		return nil, classify(target, err)
	}
	return &staged{target: target, file: file, places: &f.places}, nil
}

// refused reports whether the kernel refuses something to this process alone.
func refused(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// writable reports whether something is at path that this process may write to. What the kernel
// makes up is not: it is no place for content.
func writable(path string) bool {
	var system unix.Statfs_t
	return unix.Access(path, unix.W_OK) == nil && unix.Statfs(path, &system) == nil && !generated(&system)
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
	return s.compare(&now)
}

// compare is unchanged for a target that is now this.
func (s *staged) compare(now *unix.Stat_t) error {
	if s.read == nil {
		return nil
	}
	if now.Dev != s.read.Dev || now.Ino != s.read.Ino || now.Size != s.read.Size || now.Mtim != s.read.Mtim || now.Ctim != s.read.Ctim {
		return conflict(s.target, "was changed by something else meanwhile; nothing is replaced in it")
	}
	return nil
}

// version shows whether a file is still the same with the same attributes; the zero version is that
// of none.
type version struct {
	dev, ino       uint64
	mode, uid, gid uint32        // may change twice within what the kernel's clock resolves
	changed        unix.Timespec // also for an ACL
}

// version returns the target's now.
func (s *staged) version() version {
	var st unix.Stat_t
	if unix.Lstat(s.target, &st) != nil {
		return version{}
	}
	return version{st.Dev, st.Ino, st.Mode, st.Uid, st.Gid, st.Ctim}
}

// takeOver gives the staged file the attributes that are asked for, and for the rest those that the
// target has now. Where this process may not, the target is to be written to.
func (s *staged) takeOver(asked attributes) error {
	attrs, err := keepAttributes(asked, s.target)
	if err != nil {
		return err
	}
	err = s.apply(attrs)
	// EINVAL is what the kernel says of a user that the user namespace does not have.
	s.inPlace = (refused(err) || errors.Is(err, unix.EINVAL)) && writable(s.target)
	if s.inPlace {
		return nil
	}
	return classify(s.target, err)
}

// apply gives the staged file its attributes, and the ACL of the target. In between it permits
// nothing that is forbidden before and after.
func (s *staged) apply(attrs attributes) error {
	if err := attrs.chown(s.file); err != nil {
		return err
	}
	if err := copyACL(s.file, s.target); err != nil {
		return err
	}
	return attrs.chmod(s.file)
}

// commit puts the content at the target, durably, with the attributes that are asked for, and
// otherwise those that the target has when it is replaced, which it keeps by itself where it is
// written to. It makes the target's directory where that is missing, and removes it again when the
// rest fails.
func (s *staged) commit(asked attributes) error {
	defer s.discard()
	before := s.version()
	if !s.inPlace {
		if err := s.takeOver(asked); err != nil {
			return err
		}
	}
	if err := s.file.Sync(); err != nil {
		return classify(s.target, err)
	}
	made, err := makeDirectory(filepath.Dir(s.target), s.parents)
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
	if !s.inPlace && s.version() != before { // while the content went to disk
		if err = s.takeOver(asked); err == nil {
			err = s.file.Sync()
		}
	}
	if err == nil && !s.inPlace {
		err = os.Rename(s.file.Name(), s.target)
		s.inPlace = errors.Is(err, unix.EBUSY)
	}
	if s.inPlace {
		err = s.overwrite(asked)
	}
	if err != nil {
		removeMade(made)
		if errors.Is(err, unix.EXDEV) {
			return conflict(s.target, "another file system was mounted above it meanwhile")
		}
		return classify(s.target, err)
	}
	if s.inPlace {
		return nil
	}
	s.done = true
	s.file.Close() // written and synced: closing has nothing left to report
	return classify(s.target, syncDirectory(filepath.Dir(s.target)))
}

// overwrite writes into the target itself. Engines mount single files into a sandbox (/etc/hosts,
// /etc/resolv.conf); a mount point cannot be replaced, nor can what else inPlace is for, and
// writing in place, though not atomic, is what its user wants. Room for all of it is made, and what
// may not be is refused, before the first byte is lost.
func (s *staged) overwrite(attrs attributes) error {
	size, err := s.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out, before, err := s.openTarget()
	if err != nil {
		return err
	}
	defer out.Close()
	meanwhile := attrs
	meanwhile.mode &= before.mode // permits nothing that is forbidden before or after
	if err := meanwhile.applyTo(out); err != nil {
		return err
	}
	if size > 0 {
		// A file system that cannot do this is left to find out while it is written to.
		err := unix.Fallocate(int(out.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			_ = before.applyTo(out) // fails where nothing of it was changed
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

// openTarget opens the target for writing, and returns its attributes. It must be a regular file
// still, and not a link that came to be there.
func (s *staged) openTarget() (*os.File, attributes, error) {
	file, err := os.OpenFile(s.target, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, unasked, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(file.Fd()), &st)
	if err == nil && typeOf(st.Mode) != TypeFile {
		err = invalid(s.target, "is not a regular file")
	}
	if err == nil {
		err = s.compare(&st)
	}
	if err != nil {
		file.Close()
		return nil, unasked, err
	}
	return file, attributesOf(&st), nil
}

// discard removes the temporary file. Nothing can be done about a failure, and the name says what
// is left.
func (s *staged) discard() {
	if s.done {
		return
	}
	s.done = true
	s.file.Close()
	os.Remove(s.file.Name())
}
