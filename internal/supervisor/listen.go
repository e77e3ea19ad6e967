package supervisor

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// listenPatience is how long a port that another process still holds is waited for: in a
	// container that is started again, the processes of the last run may be about to end.
	listenPatience = 5 * time.Second
	listenInterval = 50 * time.Millisecond
	// backlog is how many connections may wait, unless the kernel's own limit is lower.
	backlog = 1<<16 - 1
)

// Listen returns a socket that listens on a port, for Options.Listener, as package net would make
// it; that package alone is half as large as the programs that call this. The zero host stands for
// every interface, of both versions of IP where the kernel has both; 0.0.0.0 for those of IPv4. It
// waits up to 5 s for a port that another process holds. The parameter what names the port in
// errors.
func Listen(host netip.Addr, port int, what string) (*os.File, error) {
	for deadline := time.Now().Add(listenPatience); ; time.Sleep(listenInterval) {
		fd, err := open(host, port)
		if errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			return nil, errors.New(what + " cannot be used: " + err.Error())
		}
		return os.NewFile(uintptr(fd), "listener"), nil
	}
}

func open(host netip.Addr, port int) (int, error) {
	if host = host.Unmap(); host.Is4() {
		return bind(syscall.AF_INET, &syscall.SockaddrInet4{Port: port, Addr: host.As4()})
	}
	if !host.IsValid() {
		fd, err := bind(syscall.AF_INET6, &syscall.SockaddrInet6{Port: port})
		if err == nil || errors.Is(err, syscall.EADDRINUSE) {
			return fd, err
		}
		return bind(syscall.AF_INET, &syscall.SockaddrInet4{Port: port})
	}
	zone, err := zoneID(host.Zone())
	if err != nil {
		return -1, err
	}
	return bind(syscall.AF_INET6, &syscall.SockaddrInet6{Port: port, Addr: host.As16(), ZoneId: zone})
}

func bind(family int, address syscall.Sockaddr) (int, error) {
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	if six, ok := address.(*syscall.SockaddrInet6); ok && err == nil {
		only := 0
		if six.Addr != [16]byte{} {
			only = 1
		}
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, only))
	}
	if err == nil {
		err = os.NewSyscallError("bind", syscall.Bind(fd, address))
	}
	if err == nil {
		err = os.NewSyscallError("listen", syscall.Listen(fd, backlog))
	}
	if err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// zoneID returns the number of an interface (fe80::1%eth0), which may be its name.
func zoneID(zone string) (uint32, error) {
	text := zone
	if zone == "" {
		return 0, nil
	}
	if _, err := strconv.Atoi(zone); err != nil {
		data, err := os.ReadFile("/sys/class/net/" + zone + "/ifindex")
		if err != nil {
			return 0, err
		}
		text = strings.TrimSpace(string(data))
	}
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err
}
