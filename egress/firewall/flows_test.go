package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/nft"
)

// TestTheDaemonAsksAlongNoEntryOfBefore: the entries of the queries that the sandbox sent to a
// daemon that is gone lead neither its successor's queries nor the sandbox's own to the port of
// before, which any process can have.
func TestTheDaemonAsksAlongNoEntryOfBefore(t *testing.T) {
	const policy = `{"defaultAction":"deny"}`
	for name, forgets := range map[string]bool{"forgotten": true, "refused": false} {
		t.Run(name, func(t *testing.T) {
			from := netip.AddrPortFrom(own, 20001)
			server := netip.AddrPortFrom(peer, 53)
			inSandbox(t, policy, func(before *Firewall) error {
				if err := before.Close(); err != nil {
					return err
				}
				local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
				taken, err := socket(netip.AddrPortFrom(local, 5301), 0)
				if err != nil {
					return err
				}
				defer unix.Close(taken)
				next, err := socket(netip.AddrPortFrom(local, 5302), 0)
				if err != nil {
					return err
				}
				defer unix.Close(next)
				wire, err := outside(t)
				if err != nil {
					return err
				}
				defer unix.Close(wire)

				if before, err = opened(t, policy, 5301); err != nil {
					return err
				}
				if err := errors.Join(sendFrom(from, 0, server), before.Close()); err != nil {
					return err
				}
				if ok, err := received(taken); !ok {
					return fmt.Errorf("a query is not redirected: %v", err)
				}
				f, err := opened(t, policy, 5302)
				if err != nil {
					return err
				}
				defer f.Close()
				if !forgets {
					if err := sendFrom(from, f.Mark(), server); !errors.Is(err, unix.EPERM) {
						t.Errorf("a query of the egress daemon along the sandbox's entry gives %v", err)
					}
				} else if err := errors.Join(f.Forget(), sendFrom(from, f.Mark(), server)); err != nil {
					return err
				} else if packet, err := packetOf(wire, unix.IPPROTO_UDP); err != nil {
					return err
				} else if to, _ := netip.AddrFromSlice(packet[16:20]); to != peer {
					t.Errorf("the egress daemon's query goes to %v", to)
				}
				if got, err := received(taken); got || err != nil {
					t.Errorf("the port of before gets the egress daemon's query: %t, %v", got, err)
				}
				if !forgets {
					return nil
				}
				// Its own entry is in the way of the sandbox's query now.
				if err := errors.Join(f.Forget(), sendFrom(from, 0, server)); err != nil {
					return err
				}
				if ok, err := received(next); !ok {
					t.Errorf("the sandbox's next query is not redirected to the egress daemon: %v", err)
				}
				return nil
			})
		})
	}
}

// TestOtherConnectionsAreNotForgotten: only those of queries are.
func TestOtherConnectionsAreNotForgotten(t *testing.T) {
	inSandbox(t, `{}`, func(f *Firewall) error {
		if err := sendFrom(netip.AddrPortFrom(own, 20001), 0,
			netip.AddrPortFrom(peer, 9)); err != nil {
			return err
		}
		if err := f.Forget(); err != nil {
			return err
		}
		if n, err := connections(); err != nil || n != 1 {
			t.Errorf("%d connections are left (%v), want 1", n, err)
		}
		return nil
	})
}

// TestNoQueryPassesAlongTheDaemonsEntry: not even where the policy allows the name server's
// address.
func TestNoQueryPassesAlongTheDaemonsEntry(t *testing.T) {
	inSandbox(t, `{}`, func(f *Firewall) error {
		from, server := netip.AddrPortFrom(own, 20001), netip.AddrPortFrom(peer, 53)
		if err := sendFrom(from, f.Mark(), server); err != nil {
			return err
		}
		if err := sendFrom(from, 0, server); !errors.Is(err, unix.EPERM) {
			t.Errorf("a query from the port of the egress daemon's query gives %v", err)
		}
		return nil
	})
}

// TestABoundSocketsQueryDoesNotLeave: whether the egress daemon runs or not. It is redirected, but
// not to another interface.
func TestABoundSocketsQueryDoesNotLeave(t *testing.T) {
	inSandbox(t, `{}`, func(f *Firewall) error {
		fd, err := socket(netip.AddrPortFrom(own, 20001), 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "out"); err != nil {
			return err
		}
		if err := send(fd, netip.AddrPortFrom(peer, 9)); err != nil {
			return err
		}
		query := func(when string) {
			if err := send(fd, netip.AddrPortFrom(peer, 53)); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s a query gives %v", when, err)
			}
		}
		query("with the egress daemon")
		if err := f.Close(); err != nil {
			return err
		}
		query("without it")
		return nil
	})
}

// TestADeniedPeerBeginsNothing: what the peer of a connection that is over goes on to send does not
// make the sandbox's packets to it answers. TCP comes in, from its beginning.
func TestADeniedPeerBeginsNothing(t *testing.T) {
	inSandbox(t, `{"defaultAction":"deny"}`, func(*Firewall) error {
		fd, err := socket(netip.AddrPortFrom(own, 7001), 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		listener, err := listenTCP(8123)
		if err != nil {
			return err
		}
		defer unix.Close(listener)
		wire, err := outside(t)
		if err != nil {
			return err
		}
		defer unix.Close(wire)

		if err := errors.Join(
			inject(wire, unix.IPPROTO_UDP, datagram(9, 7001)),
			inject(wire, unix.IPPROTO_TCP, segment(9, 8123, nft.ACK, 1, 1)),
			inject(wire, unix.IPPROTO_TCP, segment(10, 8123, nft.SYN, 1, 0)),
		); err != nil {
			return err
		}
		packet, err := packetOf(wire, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		if to := binary.BigEndian.Uint16(packet[22:]); to != 10 || packet[33] != nft.SYN|nft.ACK {
			t.Errorf("the first answer is for port %d, with flags %#x", to, packet[33])
		}
		if got, err := received(fd); got || err != nil {
			t.Errorf("a datagram of the peer comes in: %t, %v", got, err)
		}
		if err := send(fd, netip.AddrPortFrom(peer, 9)); !errors.Is(err, unix.EPERM) {
			t.Errorf("an answer to it gives %v", err)
		}
		return nil
	})
}

// TestNeighboursBeginNothing: of the addresses of the sandbox's own network only gateways connect,
// to its ports and to the API. What it connects to itself answers.
func TestNeighboursBeginNothing(t *testing.T) {
	const port, api = 8123, 18080
	network := netip.PrefixFrom(own, 24)
	for name, test := range map[string]struct {
		gateway netip.Addr
		answers bool
	}{"a gateway": {peer, true}, "a neighbour": {own.Prev(), false}} {
		inSandbox(t, `{}`, func(before *Firewall) error {
			if err := before.Close(); err != nil {
				return err
			}
			f, err := openedWith(t, `{}`, Options{DNSPort: 1, APIPort: api, LogGroup: 1,
				Neighbours: []netip.Prefix{network}, Gateways: []netip.Addr{test.gateway}})
			if err != nil {
				return err
			}
			defer f.Close()
			wire, err := outside(t)
			if err != nil {
				return err
			}
			defer unix.Close(wire)
			for i, to := range []uint16{port, api} {
				listener, err := listenTCP(int(to))
				if err != nil {
					return err
				}
				defer unix.Close(listener)
				if err := inject(wire, unix.IPPROTO_TCP, segment(uint16(10+i), to, nft.SYN, 1, 0)); err != nil {
					return err
				}
				if !test.answers {
					continue
				}
				packet, err := packetOf(wire, unix.IPPROTO_TCP)
				if err != nil {
					return fmt.Errorf("%s, port %d: %w", name, to, err)
				}
				if packet[33] != nft.SYN|nft.ACK {
					t.Errorf("%s, port %d: an answer with flags %#x", name, to, packet[33])
				}
			}
			// The first packet that leaves now is this one, and what answers it comes in.
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: peer.As4(), Port: 9}); !errors.Is(err, unix.EINPROGRESS) {
				return err
			}
			first, err := packetOf(wire, unix.IPPROTO_TCP)
			if err != nil {
				return err
			}
			if first[33] != nft.SYN {
				t.Errorf("%s: it is answered with flags %#x", name, first[33])
			}
			from, seq := binary.BigEndian.Uint16(first[20:]), binary.BigEndian.Uint32(first[24:])
			if err := inject(wire, unix.IPPROTO_TCP, segment(9, from, nft.SYN|nft.ACK, 1, seq+1)); err != nil {
				return err
			}
			second, err := packetOf(wire, unix.IPPROTO_TCP)
			if err != nil {
				return err
			}
			if second[33] != nft.ACK {
				t.Errorf("%s: the answer of a peer is answered with flags %#x", name, second[33])
			}
			return nil
		})
	}
}

// TestNewsOfWhatCameInArrive: that an answer to a client was too large for its way.
func TestNewsOfWhatCameInArrive(t *testing.T) {
	inSandbox(t, `{"defaultAction":"deny"}`, func(*Firewall) error {
		return wantMTU(t, 8123)
	})
}

// wantMTU connects to a port of the sandbox, reports that a packet of it was too large, and wants
// the connection to know.
func wantMTU(t *testing.T, port uint16) error {
	t.Helper()
	const mtu = 1300
	listener, err := listenTCP(int(port))
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	wire, err := outside(t)
	if err != nil {
		return err
	}
	defer unix.Close(wire)
	if err := inject(wire, unix.IPPROTO_TCP, segment(10, port, nft.SYN, 1, 0)); err != nil {
		return err
	}
	packet, err := packetOf(wire, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	next := binary.BigEndian.Uint32(packet[24:]) + 1
	// The packet that is reported has the header of the one that was seen, and the next sequence
	// number.
	reported := append([]byte{3, 4, 0, 0, 0, 0, mtu >> 8, mtu & 0xff}, packet[:28]...)
	binary.BigEndian.PutUint32(reported[8+24:], next)
	binary.BigEndian.PutUint16(reported[2:], checksum(reported))
	if err := errors.Join(
		inject(wire, unix.IPPROTO_TCP, segment(10, port, nft.ACK, 2, next)),
		inject(wire, unix.IPPROTO_ICMP, reported)); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err == nil {
			defer unix.Close(fd)
			for {
				got, err := unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
				if err != nil || got == mtu {
					return err
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("the connection believes in packets of %d bytes", got)
				}
			}
		}
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			return fmt.Errorf("no connection: %w", err)
		}
	}
}

// TestTheAPINeedsNoConnections: those to it are not in the table of connections, which the sandbox
// can fill, and work all the same.
func TestTheAPINeedsNoConnections(t *testing.T) {
	inSandbox(t, `{"defaultAction":"deny"}`, func(*Firewall) error {
		if err := wantMTU(t, 18080); err != nil {
			return err
		}
		if n, err := connections(); err != nil || n != 0 {
			t.Errorf("the table has %d connections (%v), want none", n, err)
		}
		return nil
	})
}

// TestTheSandboxBeginsNothingFromTheAPIsPort: the rules would not look at what follows.
func TestTheSandboxBeginsNothingFromTheAPIsPort(t *testing.T) {
	inSandbox(t, `{}`, func(*Firewall) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		timeout := unix.NsecToTimeval(int64(time.Second))
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: 18080}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: peer.As4(),
			Port: 9}); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a connection from the port of the API gives %v", err)
		}
		return nil
	})
}

// TestOpenConnectionsOutliveTheDefault: a policy that denies by default cuts no connection to an
// address of a name that it allows, although the answer with that address has expired.
func TestOpenConnectionsOutliveTheDefault(t *testing.T) {
	for name, c := range map[string]struct {
		keep func(netip.Addr) bool
		want error
	}{"an allowed name": {all, nil}, "another": {none, unix.EPERM}} {
		t.Run(name, func(t *testing.T) {
			inSandbox(t, `{}`, func(f *Firewall) error {
				fd, err := socket(netip.AddrPortFrom(own, 20001), 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				wire, err := outside(t)
				if err != nil {
					return err
				}
				defer unix.Close(wire)
				to := netip.AddrPortFrom(peer, 9)
				if err := send(fd, to); err != nil {
					return err
				}
				if err := inject(wire, unix.IPPROTO_UDP, datagram(9, 20001)); err != nil {
					return err
				}
				for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
					ok, err := received(fd)
					if err != nil {
						return err
					}
					if ok {
						break
					}
					if time.Now().After(deadline) {
						return errors.New("no answer arrived")
					}
				}
				if err := send(fd, to); err != nil { // along the open connection
					return err
				}
				closed := compiled(t, `{"defaultAction":"deny","egress":[{"action":"allow","target":"db.test"}]}`)
				if err := f.Apply(closed, c.keep, nil); err != nil {
					return err
				}
				if err := send(fd, to); !errors.Is(err, c.want) {
					t.Errorf("a packet of the open connection gives %v, want %v", err, c.want)
				}
				if err := sendFrom(netip.AddrPortFrom(own, 20002), 0, to); !errors.Is(err, unix.EPERM) {
					t.Errorf("a packet of a new connection gives %v", err)
				}
				return nil
			})
		})
	}
}
