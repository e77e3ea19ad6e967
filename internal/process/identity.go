package process

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrEnded is the error of what needs a process that has ended.
var ErrEnded = errors.New("the process has ended")

// ID identifies one process for good. The number alone does not: the kernel may give it to a later
// process. Execd's programs keep the JSON form across their restarts.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
}

// Identify returns the ID of the process that has this number now, or ErrEnded.
func Identify(pid int) (ID, error) {
	stat, err := ReadStat(Directory(pid))
	return ID{PID: pid, Start: stat.Start}, err
}

// Open returns a descriptor of the process (pidfd_open(2)), or ErrEnded. The caller closes it.
func (id ID) Open() (*os.File, error) {
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrEnded
	}
	if err != nil {
		return nil, &failure{"pidfd_open", err}
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	// A process that has the right start now had it when the descriptor was opened: it is older
	// than that.
	stat, err := ReadStat(Directory(id.PID))
	if err == nil && stat.Start != id.Start {
		err = ErrEnded
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Send sends a signal to the process of a descriptor. Sending to a process that has ended succeeds.
func Send(pidfd *os.File, signal unix.Signal) error {
	connection, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = connection.Control(func(fd uintptr) {
		sent = unix.PidfdSendSignal(int(fd), signal, nil, 0)
	})
	if errors.Is(sent, unix.ESRCH) {
		sent = nil
	}
	return errors.Join(err, sent)
}

// Ended returns a channel that is closed when the process of a descriptor has ended, or when the
// descriptor is closed. The process need not be a child; [AwaitExit] is for those.
func Ended(pidfd *os.File) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		connection, err := pidfd.SyscallConn()
		if err != nil {
			return
		}
		// Its error is that the descriptor was closed.
		_ = connection.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}()
	return ended
}

// List returns the numbers of all processes of the PID namespace.
func List() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			found = append(found, pid)
		}
	}
	return found, nil
}

// Directory returns the path of a process below /proc.
func Directory(pid int) string { return "/proc/" + strconv.Itoa(pid) }

// Stat is a part of proc_pid_stat(5).
type Stat struct {
	State  byte // as ps(1) shows it
	Parent int
	Start  uint64 // clock ticks after boot
}

// Ended reports whether the process has ended and was not waited for.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// ReadStat reads the file stat in the directory of a process or of a thread. It returns ErrEnded
// when there is none any more.
func ReadStat(directory string) (Stat, error) {
	data, err := os.ReadFile(directory + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Stat{}, ErrEnded
	}
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(data)
}

// ParseStat parses the content of such a file.
func ParseStat(data []byte) (Stat, error) {
	// The second field is the program's name, which may contain anything, brackets too.
	end := bytes.LastIndexByte(data, ')')
	fields := bytes.Fields(data[end+1:])
	const state, parent, start = 0, 1, 19 // fields 3, 4 and 22
	if end < 0 || len(fields) <= start {
		return Stat{}, &failure{"parse proc_pid_stat(5)", errors.New(strconv.Quote(string(data)))}
	}
	s := Stat{State: fields[state][0]}
	var err, err2 error
	s.Parent, err = strconv.Atoi(string(fields[parent]))
	s.Start, err2 = strconv.ParseUint(string(fields[start]), 10, 64)
	return s, errors.Join(err, err2)
}
