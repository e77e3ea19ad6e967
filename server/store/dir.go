package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"sandbox.internal/internal/flock"
)

// lockDir makes the process the only user of the directory until the returned file is closed or the
// process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	err = flock.Exclusive(file)
	if err == nil {
		return file, nil
	}
	if errors.Is(err, flock.ErrHeld) {
		err = fmt.Errorf(
			"store: directory %s is in use by another process; stop it or choose another directory", dir)
	} else {
		err = fmt.Errorf("store: lock directory %s: %w", dir, err)
	}
	return nil, errors.Join(err, file.Close())
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// syncData makes what a file has durable, and its size.
func syncData(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for failed = syscall.EINTR; errors.Is(failed, syscall.EINTR); {
			failed = syscall.Fdatasync(int(fd))
		}
	})
	return errors.Join(err, os.NewSyscallError("fdatasync", failed))
}
