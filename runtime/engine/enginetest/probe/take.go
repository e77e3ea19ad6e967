package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Taken is what came of taking many of one kind of the kernel's objects.
type Taken struct {
	Count   int   // how many there were
	Error   int   // number of the error that ended it; 0 when it was enough
	Charged int64 // bytes by which the memory of the control group grew
}

// take takes objects of a kind until the kernel refuses one or there are so many, and reports that.
func take(kind string, most int) {
	one, ok := kinds[kind]
	if !ok {
		fatal("unknown kind " + kind)
	}
	before := groupMemory()
	var taken Taken
	for taken.Count < most {
		if err := one(taken.Count); err != nil {
			var errno syscall.Errno
			if !errors.As(err, &errno) {
				check(err)
			}
			taken.Error = int(errno)
			break
		}
		taken.Count++
	}
	taken.Charged = groupMemory() - before
	check(json.NewEncoder(os.Stdout).Encode(taken))
}

// groupMemory returns how many bytes the control group has, by either version.
func groupMemory() int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory.current"} {
		if content, err := os.ReadFile(path); err == nil {
			bytes, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
			check(err)
			return bytes
		}
	}
	fatal("no control group of memory")
	return 0
}

// Numbers of system calls and constants that package syscall lacks; they are those of every
// architecture unless a map says otherwise.
const (
	ioUringSetup = 425
	rtSignal     = 40
	openLock     = 37 // F_OFD_SETLK
)

var (
	memfdCreate = map[string]uintptr{"amd64": 319, "arm64": 279}
	block       = make([]byte, 1<<20)
	lastFD      int
	inFlight    [2]int
)

// kinds make one object each, the nth.
var kinds = map[string]func(n int) error{
	"netlink": socketOf(syscall.AF_NETLINK, syscall.SOCK_RAW, 2), // of a protocol for messages between processes
	"packet":  socketOf(syscall.AF_PACKET, syscall.SOCK_RAW, 0),
	"ping":    socketOf(syscall.AF_INET, syscall.SOCK_DGRAM, syscall.IPPROTO_ICMP),
	"keys": func(int) error {
		return call(syscall.SYS_ADD_KEY, text("user"), text("probe"), text("x"), 1, ^uintptr(2))
	},
	"mounts": func(int) error { return syscall.Mount("none", "/dev/shm", "tmpfs", 0, "") },
	"namespaces": func(int) error {
		return call(syscall.SYS_UNSHARE, syscall.CLONE_NEWUSER, 0, 0, 0, 0)
	},
	"io_uring": func(int) error {
		var parameters [120]byte
		return call(ioUringSetup, 8, uintptr(unsafe.Pointer(&parameters)), 0, 0, 0)
	},
	"unix": func(int) error {
		return stuff(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0))
	},
	"pipes": fillPipe,
	"memfd": func(int) error { return fillMemory() },
	"terminals": func(int) error {
		_, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY, 0)
		return err
	},
	"inotify": func(int) error { _, err := syscall.InotifyInit1(0); return err },
	"watches": watch,
	"epoll":   func(int) error { _, err := syscall.EpollCreate1(0); return err },
	"signals": func(int) error {
		// Blocked: it waits.
		set := uint64(1) << (rtSignal - 1)
		if err := call(syscall.SYS_RT_SIGPROCMASK, 0, uintptr(unsafe.Pointer(&set)), 0, 8, 0); err != nil {
			return err
		}
		info := [16]int64{rtSignal, int64(uint32(0xffffffff))} // si_signo; si_code SI_QUEUE
		return call(syscall.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(syscall.Gettid()), rtSignal, uintptr(unsafe.Pointer(&info)), 0)
	},
	"timers": func(int) error {
		var timer int32
		return call(syscall.SYS_TIMER_CREATE, 1, 0, uintptr(unsafe.Pointer(&timer)), 0, 0)
	},
	"messages":   sendMessage,
	"semaphores": func(int) error { return call(syscall.SYS_SEMGET, 0, 1000, 0o600, 0, 0) },
	"locks":      lock,
	"in flight":  passFile,
	"files":      func(n int) error { return os.WriteFile(filepath.Join("/dev/shm", strconv.Itoa(n)), nil, 0o600) },
}

func call(number, a, b, c, d, e uintptr) error {
	if _, _, errno := syscall.Syscall6(number, a, b, c, d, e, 0); errno != 0 {
		return errno
	}
	return nil
}

// text returns the address of a text with a zero byte, which stays.
func text(s string) uintptr {
	bytes := append([]byte(s), 0)
	kept = append(kept, bytes)
	return uintptr(unsafe.Pointer(&bytes[0]))
}

var kept [][]byte

func socketOf(family, kind, protocol int) func(int) error {
	return func(int) error { _, err := syscall.Socket(family, kind, protocol); return err }
}

// stuff writes to a socket until it takes no more.
func stuff(pair [2]int, err error) error {
	for err == nil {
		_, err = syscall.Write(pair[0], block[:64<<10])
	}
	if errors.Is(err, syscall.EAGAIN) {
		return nil
	}
	return err
}

func fillPipe(int) error {
	var pair [2]int
	if err := syscall.Pipe2(pair[:], syscall.O_NONBLOCK); err != nil {
		return err
	}
	return stuff([2]int{pair[1], pair[0]}, nil)
}

// fillMemory makes a file in memory with a mebibyte.
func fillMemory() error {
	fd, _, errno := syscall.Syscall(memfdCreate[runtime.GOARCH], text("probe"), 0, 0)
	if errno != 0 {
		return errno
	}
	_, err := syscall.Write(int(fd), block)
	return err
}

// watch watches another file.
func watch(n int) error {
	if n == 0 {
		fd, err := syscall.InotifyInit1(0)
		if err != nil {
			return err
		}
		lastFD = fd
	}
	path := filepath.Join("/dev/shm", strconv.Itoa(n))
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	_, err := syscall.InotifyAddWatch(lastFD, path, syscall.IN_MODIFY)
	return err
}

// sendMessage sends 8 KiB to a queue of System V of its own.
func sendMessage(int) error {
	queue, _, errno := syscall.Syscall(syscall.SYS_MSGGET, 0, 0o600, 0)
	if errno != 0 {
		return errno
	}
	message := append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, block[:8000]...)
	return call(syscall.SYS_MSGSND, queue, uintptr(unsafe.Pointer(&message[0])), 8000, 0, 0)
}

// lock locks a byte of a file that is no neighbour of one that is locked.
func lock(n int) error {
	if n == 0 {
		fd, err := syscall.Open("/dev/shm/locks", syscall.O_CREAT|syscall.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		lastFD = fd
	}
	return syscall.FcntlFlock(uintptr(lastFD), openLock, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: int64(2 * n), Len: 1})
}

// passFile sends a descriptor that is not received, by another socket where one takes no more.
func passFile(n int) error {
	right := syscall.UnixRights(0)
	if n > 0 {
		err := syscall.Sendmsg(inFlight[0], []byte{0}, right, nil, syscall.MSG_DONTWAIT)
		if !errors.Is(err, syscall.EAGAIN) {
			return err
		}
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	inFlight = pair
	return syscall.Sendmsg(inFlight[0], []byte{0}, right, nil, syscall.MSG_DONTWAIT)
}
