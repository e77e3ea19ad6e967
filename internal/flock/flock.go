// Package flock locks files against other processes, with flock(2).
package flock

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long [Exclusive] waits for a lock that is held.
const Patience = 2 * time.Second

// ErrHeld means that another open file has the lock.
var ErrHeld = errors.New("locked by another process")

// Exclusive locks a file until it is closed or the process ends, however it ends. The error is
// [ErrHeld] when another process keeps the lock for longer than [Patience].
//
// It waits because of a holder that was killed: a lock belongs to the open file, which processes
// that the holder was starting share until they execute their program.
func Exclusive(file *os.File) error {
	for deadline := time.Now().Add(Patience); ; time.Sleep(5 * time.Millisecond) { // nothing reports that a lock is free
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR:
		case err != unix.EWOULDBLOCK:
			return os.NewSyscallError("flock", err)
		case time.Now().After(deadline):
			return ErrHeld
		}
	}
}
