package files

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Kind says what a caller can do about an error. The set is closed.
type Kind int

// The kinds of errors. KindInternal is every error that is not an *Error: a fault of the machine or
// of this program.
const (
	KindInternal   Kind = iota
	KindInvalid         // the request itself is wrong: change it
	KindNotFound        // the path does not exist
	KindConflict        // something else is at the path already, or uses it
	KindPermission      // the sandbox's kernel refuses it to this daemon, or the file system is read-only
	KindNoSpace         // the disk or the quota is full; nothing partial remains
)

// Error is an error of a known kind.
type Error struct {
	Kind Kind
	Path string // subject of the error: an absolute path, or the name of a field
	Msg  string // the rule that was broken
	Err  error  // the cause; may be nil
}

// Error names the path and the rule.
func (e *Error) Error() string { return e.Path + ": " + e.Msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error of this package, also when it is wrapped.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}

func invalid(path, format string, args ...any) error {
	return &Error{Kind: KindInvalid, Path: path, Msg: fmt.Sprintf(format, args...)}
}

func conflict(path, format string, args ...any) error {
	return &Error{Kind: KindConflict, Path: path, Msg: fmt.Sprintf(format, args...)}
}

// classify gives an error of the operating system its kind. Its text is rebuilt from the path that
// the caller gave: the original may name a temporary file.
func classify(path string, err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	kind := KindInternal
	switch {
	case is(fs.ErrNotExist, unix.ENOTDIR):
		return &Error{Kind: KindNotFound, Path: path, Msg: "no such file or directory", Err: err}
	case is(unix.ENOSPC, unix.EDQUOT):
		kind = KindNoSpace
	case is(unix.EACCES, unix.EPERM, unix.EROFS):
		kind = KindPermission
	case is(unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY, unix.ETXTBSY):
		kind = KindConflict
	case is(unix.ENAMETOOLONG, unix.ELOOP, unix.EISDIR):
		kind = KindInvalid
	default:
		return fmt.Errorf("%s: %w", path, err)
	}
	msg := err.Error()
	if errno := unix.Errno(0); errors.As(err, &errno) {
		msg = errno.Error()
	}
	return &Error{Kind: kind, Path: path, Msg: msg, Err: err}
}
