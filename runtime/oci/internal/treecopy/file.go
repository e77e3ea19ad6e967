package treecopy

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// CopyFile copies one file that does not change, of any kind but a directory, with its attributes
// to a new name below a directory, which leads through directories alone.
func CopyFile(ctx context.Context, in int, entry string, to *os.File, name string) error {
	again, err := unix.Openat(in, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: shown(entry), Err: err}
	}
	from := os.NewFile(uintptr(again), entry)
	defer func() { _ = from.Close() }()
	c := &Copy{
		Staging: to, names: make([]byte, maxAttributes), value: make([]byte, maxAttributes), buffer: make([]byte, pieceBytes),
	}
	at, err := openPath(from, entry)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	var info unix.Stat_t
	if err := unix.Fstat(at, &info); err != nil {
		return &os.PathError{Op: "stat", Path: shown(entry), Err: err}
	}
	if info.Mode&unix.S_IFMT != unix.S_IFREG {
		return c.special(from, to, entry, name, &info)
	}
	source, opened, err := openRegular(from, entry)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(source) }()
	_, err = c.file(ctx, source, &opened, to, name)
	return err
}

// CheckRoom returns an error that wraps [engine.ErrNoRoom] when the disk of a directory has only
// what is left to containers.
func CheckRoom(directory *os.File) error { return (&Copy{Staging: directory}).CheckRoom(0) }
