package keeper

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// sealedBytes bounds the program that is copied.
const sealedBytes = 64 << 20

// programs has copies of the runtimes' programs, in memory and sealed, as crun and runc make one of
// themselves at every start and run it instead, so that no container can write to the program. In
// such a copy they find that there is nothing to do, and are loaded once.
type programs struct {
	mu     sync.Mutex
	copies map[string]sealed // by path
}

// sealed is a copy of a file.
type sealed struct {
	of identity
	fd int
}

// identity changes with what a file has.
type identity struct {
	device, inode        uint64
	size                 int64
	modified, attributes unix.Timespec
}

// open returns a descriptor of the copy of the program, which the caller closes.
func (p *programs) open(path string) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return -1, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	of := identity{stat.Dev, stat.Ino, stat.Size, stat.Mtim, stat.Ctim}
	found, known := p.copies[path]
	if !known || found.of != of {
		copied, err := seal(fd, stat.Size)
		if err != nil {
			return -1, err
		}
		if known {
			unix.Close(found.fd)
		}
		if p.copies == nil {
			p.copies = map[string]sealed{}
		}
		found = sealed{of, copied}
		p.copies[path] = found
	}
	// A descriptor of the caller's own: the copy may be replaced meanwhile.
	own, err := unix.FcntlInt(uintptr(found.fd), unix.F_DUPFD_CLOEXEC, 0)
	return own, os.NewSyscallError("fcntl", err)
}

// executable returns the path under which a new process executes what this process has open. It
// names this process and not the new one: that gives its own files new numbers before it executes
// anything, and may put one of them in the place of this.
func executable(fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd) }

// seal returns a descriptor, for reading, of a copy of the file.
func seal(file int, size int64) (int, error) {
	if size > sealedBytes {
		return -1, errors.New("the program is too large")
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	made, err := unix.MemfdCreate("runtime", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		made, err = unix.MemfdCreate("runtime", flags)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(made) // a program that is open for writing cannot be executed
	for left := size; left > 0; {
		n, err := unix.Sendfile(made, file, nil, int(left))
		if err != nil {
			return -1, os.NewSyscallError("sendfile", err)
		}
		if n == 0 {
			return -1, errors.New("the program is shorter than before")
		}
		left -= int64(n)
	}
	// These and no others are what crun and runc look for.
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(made), unix.F_ADD_SEALS, seals); err != nil {
		return -1, os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	copied, err := unix.Open(descriptorPath(made), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return copied, os.NewSyscallError("open", err)
}
