package cgroup

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// socketsFilled and socketBytes are how many sockets fillSockets has, and how much the queue of
// each takes.
const (
	socketsFilled = 2000
	socketBytes   = 208 << 10
)

// fillSockets sends to UDP sockets of this process, which receive nothing, more than they have room
// for.
func fillSockets() {
	sender, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	datagram := make([]byte, 60_000)
	for i := 0; i < socketsFilled && err == nil; i++ {
		var socket int
		if socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err != nil {
			break
		}
		err = errors.Join(unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBytes/2), // the kernel doubles it
			unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
		address, nameErr := unix.Getsockname(socket)
		err = errors.Join(err, nameErr)
		for range 2 * socketBytes / len(datagram) {
			if err == nil {
				_ = unix.Sendto(sender, datagram, unix.MSG_DONTWAIT, address) // may fail where the buffers of the sender count too
			}
		}
	}
	if err != nil {
		fmt.Println(err)
	}
}

// TestSocketBuffers: what the kernel keeps for sockets of a group is limited, too.
func TestSocketBuffers(t *testing.T) {
	const limit = 64 << 20
	g, err := newTree(t).Make("one", engine.Resources{MemoryBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	before := udpBytes(t)
	command := start(t, g, os.Args[0], "in-group", "fill")
	wait.Until(t, "the sockets are full", func() bool { return output(t, command) != "" })
	if text := output(t, command); text != "filled\n" {
		t.Fatal(text)
	}
	if took := udpBytes(t) - before; took < limit/16 || took > limit {
		t.Errorf("with a limit of %d bytes, sockets with room for %d took %d", limit, socketsFilled*socketBytes, took)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	// The kernel frees them a little after the end of the process.
	wait.Until(t, "the buffers are free", func() bool { return udpBytes(t)-before < limit/16 })
}

// udpBytes returns what UDP sockets take of this host's memory.
func udpBytes(t *testing.T) int {
	t.Helper()
	content, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(content), "\nUDP: ")
	line, _, _ := strings.Cut(after, "\n")
	_, mem, _ := strings.Cut(line, " mem ")
	pages, err := strconv.Atoi(mem)
	if err != nil {
		t.Fatalf("%v in %s", err, content)
	}
	return pages * os.Getpagesize()
}
