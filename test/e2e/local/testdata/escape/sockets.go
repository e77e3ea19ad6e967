package main

import (
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sockets tries sockets that are no connection of the sandbox's own, and the host's.
func sockets(target Target) {
	attempt("a raw socket", func() error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW); return err })
	attempt("a packet socket", func() error { _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300); return err },
		unix.EAFNOSUPPORT)
	attempt("a socket to the host's hypervisor", func() error { _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); return err },
		unix.EAFNOSUPPORT)
	attempt("a socket to the kernel's cryptography", func() error { _, err := unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0); return err },
		unix.EAFNOSUPPORT)
	attempt("a rule of nftables, or an address", func() error { // what changes the network needs NET_ADMIN
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_UP)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
	})
	attempt("a mark on packets", func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1)
	})
	attempt("an abstract socket of the host", func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + target.Abstract})
	}, unix.ECONNREFUSED)
	attempt("names of the host's sockets", func() error {
		content, err := os.ReadFile("/proc/net/unix")
		if err == nil && !strings.Contains(string(content), target.Abstract) {
			err = unix.ENOENT
		}
		return err
	}, unix.ENOENT)
}

// dial connects to a server that answers with a line.
func dial(address string) {
	attempt("connect to "+address, func() error {
		connection, err := net.DialTimeout("tcp4", address, 1500*time.Millisecond)
		if err != nil {
			return err
		}
		return connection.Close()
	}, unix.ETIMEDOUT, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH)
}
