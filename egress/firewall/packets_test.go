package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// own is the address of the tests' namespace.
var own = netip.MustParseAddr("10.77.0.1")

// inSandbox is inNamespace with a loopback and a firewall that has a policy and marks packets.
func inSandbox(t *testing.T, policy string, run func(*Firewall) error) {
	t.Helper()
	inNamespace(t, func() error {
		for _, line := range []string{
			"link set lo up", "link set out address 02:00:00:00:00:01",
			"neigh replace 10.77.0.2 lladdr 02:00:00:00:00:02 dev out", // the new address removed it
		} {
			if out, err := exec.CommandContext(t.Context(), "ip",
				strings.Fields(line)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", line, err, out)
			}
		}
		f, err := opened(t, policy, 1)
		if err != nil {
			return err
		}
		defer f.Close()
		return run(f)
	})
}

// opened installs a firewall that marks packets.
func opened(t *testing.T, policy string, dnsPort uint16) (*Firewall, error) {
	t.Helper()
	return openedWith(t, policy, Options{DNSPort: dnsPort, APIPort: 18080, LogGroup: 1})
}

func openedWith(t *testing.T, policy string, options Options) (*Firewall, error) {
	t.Helper()
	f, err := Install(options, compiled(t, policy))
	if err != nil {
		return nil, err
	}
	if err := f.Open(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// socket opens a UDP socket of this thread's namespace with the mark, if that is not 0.
func socket(at netip.AddrPort, mark uint32) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if mark != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// sendFrom sends one datagram from a socket that is opened for it.
func sendFrom(at netip.AddrPort, mark uint32, to netip.AddrPort) error {
	fd, err := socket(at, mark)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return send(fd, to)
}

func send(fd int, to netip.AddrPort) error {
	return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Addr: to.Addr().As4(),
		Port: int(to.Port())})
}

// received reports whether a datagram waits in a socket, and takes it. What was sent over the
// loopback before is there already.
func received(fd int) (bool, error) {
	_, _, err := unix.Recvfrom(fd, make([]byte, 2048), unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	return err == nil, err
}

// outside is the other end of the interface: a socket that gets all frames of it.
func outside(t *testing.T) (fd int, err error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", "-o", "link", "show", "far").Output()
	if err != nil {
		return -1, err
	}
	var index int
	if _, err := fmt.Sscanf(string(out), "%d:", &index); err != nil {
		return -1, err
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return -1, err
	}
	timeout := unix.NsecToTimeval(int64(10 * time.Second))
	err = errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// packetOf reads frames until one has an IPv4 packet of the protocol that the sandbox sent, and
// returns that.
func packetOf(fd int, protocol byte) ([]byte, error) {
	for {
		frame := make([]byte, 2048)
		n, from, err := unix.Recvfrom(fd, frame, 0)
		if err != nil {
			return nil, fmt.Errorf("no packet of protocol %d: %w", protocol, err)
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype == unix.PACKET_OUTGOING || n < 34 || frame[12] != 8 || frame[13] != 0 {
			continue
		}
		if packet := frame[14:n]; packet[9] == protocol {
			return packet, nil
		}
	}
}

// inject sends a packet of the peer to the sandbox. The kernel takes those of one socket in order.
func inject(wire int, protocol byte, transport []byte) error {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}
	header := make([]byte, 20)
	header[0], header[8], header[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(transport)))
	copy(header[12:], peer.AsSlice())
	copy(header[16:], own.AsSlice())
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	_, err := unix.Write(wire, append(append(frame, header...), transport...))
	return err
}

// datagram is a UDP datagram with a payload, without a checksum.
func datagram(from, to uint16) []byte {
	data := binary.BigEndian.AppendUint16(nil, from)
	data = binary.BigEndian.AppendUint16(data, to)
	return append(data, 0, 9, 0, 0, 'x')
}

// segment is a TCP segment of the peer without data.
func segment(from, to uint16, flags byte, seq, ack uint32) []byte {
	data := binary.BigEndian.AppendUint16(nil, from)
	data = binary.BigEndian.AppendUint16(data, to)
	data = binary.BigEndian.AppendUint32(data, seq)
	data = binary.BigEndian.AppendUint32(data, ack)
	data = append(data, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := append(append(append([]byte{}, peer.AsSlice()...), own.AsSlice()...),
		0, unix.IPPROTO_TCP, 0, byte(len(data)))
	binary.BigEndian.PutUint16(data[16:], checksum(append(pseudo, data...)))
	return data
}

// checksum is that of RFC 1071, of data of an even length.
func checksum(data []byte) uint16 {
	var sum uint32
	for ; len(data) > 0; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// listenTCP opens a socket that listens on a port of the sandbox.
func listenTCP(port int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: port}),
		unix.Listen(fd, 1)); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// connections returns how many entries the conntrack table of this thread's namespace has.
func connections() (n int, err error) {
	data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
