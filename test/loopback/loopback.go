// Package loopback gives ports of 127.0.0.1 to tests, which no other process takes meanwhile.
//
// A port that the kernel has chosen for a listener which is closed again is not free: the next
// listener or connection of any process may get it.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
)

// The kernel gives a port of this range to no socket that asks for any: by default its own range
// begins at 32768.
const (
	first = 20000
	last  = 31999
)

var (
	mu   sync.Mutex
	next = first + os.Getpid()*7%(last-first)
)

// Port returns a port that a program can listen on, until the test ends. Other tests get others, in
// other processes too.
func Port(t testing.TB) int {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	for range last - first {
		if next++; next > last {
			next = first
		}
		// The name of an abstract socket has one owner, and is gone with its process.
		reserved, err := net.Listen("unix", fmt.Sprintf("@sandbox-test-port-%d", next))
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", fmt.Sprintf(":%d", next))
		if err != nil {
			_ = reserved.Close()
			continue
		}
		_ = probe.Close()
		t.Cleanup(func() { _ = reserved.Close() })
		return next
	}
	t.Fatal("no port is free")
	return 0
}

// Refusing returns the address of a port that refuses connections until the test ends.
func Refusing(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", RefusingPort(t))
}

// RefusingPort returns a port that refuses connections until the test ends.
func RefusingPort(t testing.TB) int {
	t.Helper()
	// A socket that is bound and does not listen has the port for itself.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	own, nameErr := syscall.Getsockname(fd)
	if err := errors.Join(err, nameErr); err != nil {
		t.Fatal(err)
	}
	return own.(*syscall.SockaddrInet4).Port
}
