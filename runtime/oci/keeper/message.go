package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// messageBytes bounds a message: a launch of 500 layers is about 60 KiB. The kernel's default
	// for what a socket may hold is more.
	messageBytes = 128 << 10
	// messageFiles is how many descriptors a message may carry.
	messageFiles = 2
)

// operation is what a client asks of the keeper.
type operation string

const (
	opHello  operation = "hello"  // its version; ends are reported from now on, those before first
	opLaunch operation = "launch" // start a container; the answer carries its pidfd and its FIFO
	opCancel operation = "cancel" // of the launch with this number; not answered itself
	opAdopt  operation = "adopt"  // watch a container that runs; may carry its pidfd and its FIFO, or else the answer does
	opForget operation = "forget"
	opUsers  operation = "users" // make a user namespace with these ids; the answer carries it
	opLeave  operation = "leave" // end, as soon as no launch is in progress
)

// request is a message to the keeper: one packet of JSON.
type request struct {
	Number    uint64    `json:"number"`
	Operation operation `json:"operation"`
	Container string    `json:"container,omitempty"` // of opForget
	Launch    *Launch   `json:"launch,omitempty"`    // of opLaunch and, with nothing but Watched, of opAdopt
	Process   *Process  `json:"process,omitempty"`   // of opAdopt
	// IDs are those of opUsers, and Owner the user that the namespace belongs to.
	IDs   []syscall.SysProcIDMap `json:"ids,omitempty"`
	Owner int                    `json:"owner,omitempty"`
}

// response is a message from the keeper: the answer to the request of the same number or, with
// number 0, the end of a container or a greeting.
type response struct {
	// Presence is set in the greeting, the first message of a connection. It carries a pipe, see
	// presence.
	Presence bool `json:"presence,omitempty"`

	Number  uint64        `json:"number,omitempty"`
	Version string        `json:"version,omitempty"` // for opHello
	PID     int           `json:"pid,omitempty"`     // for opHello: the keeper's
	Failure *RuntimeError `json:"failure,omitempty"` // for opLaunch
	Error   string        `json:"error,omitempty"`   // another error
	Users   bool          `json:"users,omitempty"`   // for opUsers: the descriptor is for who has asked

	Container string   `json:"container,omitempty"` // for opLaunch and opAdopt, and of End
	Process   *Process `json:"process,omitempty"`   // for opLaunch
	End       *End     `json:"end,omitempty"`
}

// socket is a connection between client and keeper, which keeps the limits of messages
// (SOCK_SEQPACKET).
type socket struct {
	file *os.File
	raw  syscall.RawConn
}

func newSocket(fd int) (*socket, error) {
	file := os.NewFile(uintptr(fd), socketName)
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &socket{file, raw}, nil
}

func openSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

// socketAddress calls use with the address of the socket in a directory, whose path may be longer
// than an address can be.
func socketAddress(directory string, use func(unix.Sockaddr) error) error {
	fd, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: directory, Err: err}
	}
	defer unix.Close(fd)
	return use(&unix.SockaddrUnix{Name: descriptorPath(fd) + "/" + socketName})
}

// descriptorPath returns a path of an open file of this thread, whose descriptors may be its own
// (see presence).
func descriptorPath(fd int) string { return "/proc/thread-self/fd/" + strconv.Itoa(fd) }

// dial connects to the keeper of a directory. The error is ENOENT or ECONNREFUSED when there is
// none.
func dial(directory string) (*socket, error) {
	fd, err := openSocket()
	if err != nil {
		return nil, err
	}
	err = socketAddress(directory, func(address unix.Sockaddr) error {
		return os.NewSyscallError("connect", unix.Connect(fd, address))
	})
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return newSocket(fd)
}

func (s *socket) close() { _ = s.file.Close() }

// send sends a message with descriptors, which stay open here.
func (s *socket) send(message any, files ...int) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return s.sendBytes(data, files)
}

func (s *socket) sendBytes(data []byte, files []int) error {
	if len(data) > messageBytes {
		return fmt.Errorf("message of %d bytes: at most %d", len(data), messageBytes)
	}
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	var sent error
	err := s.raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), data, rights, nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sent, unix.EAGAIN) && !errors.Is(sent, unix.EINTR)
	})
	return errors.Join(err, os.NewSyscallError("sendmsg", sent))
}

// receive returns the next message in buffer, of messageBytes, and its descriptors, which the
// caller closes. The error is io.EOF when the other side has closed the connection.
func (s *socket) receive(buffer []byte, message any) (files []int, err error) {
	rights := make([]byte, unix.CmsgSpace(4*messageFiles))
	var n, rightsLength, flags int
	var received error
	err = s.raw.Read(func(fd uintptr) bool {
		n, rightsLength, flags, _, received = unix.Recvmsg(int(fd), buffer, rights, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(received, unix.EAGAIN) && !errors.Is(received, unix.EINTR)
	})
	switch {
	case err != nil:
		return nil, err
	case received != nil:
		return nil, os.NewSyscallError("recvmsg", received)
	}
	files = receivedFiles(rights[:rightsLength])
	switch {
	case n == 0:
		err = io.EOF
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("message too long")
	default:
		err = json.Unmarshal(buffer[:n], message)
	}
	if err != nil {
		closeAll(files...)
		return nil, err
	}
	return files, nil
}

func receivedFiles(rights []byte) []int {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	var files []int
	for i := range messages {
		if received, err := unix.ParseUnixRights(&messages[i]); err == nil {
			files = append(files, received...)
		}
	}
	return files
}

// closeAll closes descriptors; those that are negative are none.
func closeAll(files ...int) {
	for _, fd := range files {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
